"""A production app in one file; docs/production.md gives the reason for each line of it.

    celery -A example_project.production worker -n a@%h -c 2 -Q celery
    celery -A example_project.production worker -n b@%h -c 3 -Q celery,reports
    celery -A example_project.production worker -n c@%h -c 3 -Q emails,reports
    python -m example_project.production

It calls the same upstream as ``tasks.py``. Each path says what the call is for, so that a call that comes twice is done
once.
"""

from __future__ import annotations

import os

from celery import Celery, chain, chord
from kombu import Queue

from celery_ratelimit import Concurrency, Limit, RateLimitedTask

from .client import Refused, call

app = Celery("example_project.production")  # the name of its module, which is "__main__" where it is run
app.conf.update(
    broker_url=os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379/0"),
    result_backend=os.environ.get("RESULT_BACKEND", "redis://localhost:6379/0"),
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_time_limit=300,
    worker_prefetch_multiplier=1,
    task_queues=[Queue("celery"), Queue("emails"), Queue("reports")],
    task_routes={"*.send_receipt": {"queue": "emails"}, "*.render_report": {"queue": "reports"}},
    ratelimit_url=os.environ.get("RATELIMIT_URL", "redis://localhost:6379/0"),
    ratelimit_quotas={"stripe": {"rate": "20/s", "burst": 5}},
    ratelimit_queues={"emails": "10/s"},
)


class UpstreamTask(RateLimitedTask):
    """A task that is tried again when the upstream fails; each attempt takes a permit."""

    autoretry_for = (OSError, Refused)
    retry_backoff = 1
    max_retries = 5


per_tenant = Limit("8/s", name="tenant", key="{tenant}")


@app.task
def track(event: int) -> None:
    """Unlimited: starts at once, whatever waits in its queue."""
    call(f"/events/{event}")


@app.task
def reserve(order: int) -> None:
    call(f"/shop/reserve-{order}")


@app.task(base=UpstreamTask, limits=[per_tenant, "stripe"])
def charge(order: int, tenant: str) -> None:
    """At most 8 a second for each tenant, and 20 a second with all other calls of ``stripe``."""
    call(f"/stripe/charge-{order}")


@app.task(base=UpstreamTask, throttle="wait")
def send_receipt(order: int) -> None:
    """Limited by its queue; the backlog stays in the broker."""
    call(f"/mail/receipt-{order}")


@app.task(base=UpstreamTask, limits=[per_tenant, "stripe"])
def sync_page(page: int, tenant: str) -> int:
    call(f"/stripe/{tenant}-{page}")
    return page


@app.task
def close_books(pages: list[int], tenant: str) -> None:
    call(f"/books/{tenant}-{len(pages)}")


@app.task(base=UpstreamTask, limits=Concurrency(2, name="renderers", lease=10))
def render_report(report: int) -> None:
    """Two at once in the whole fleet, and no rate."""
    call(f"/reports/{report}")


@app.task(base=UpstreamTask, limits=Limit("6000/m", name="llm", burst=200, cost="tokens"))
def summarize(document: int, tokens: int) -> None:
    """6,000 tokens a minute, however many calls that is."""
    call(f"/llm/{document}")


#: Pages to synchronize, by tenant.
PAGES = {"acme": 90, "globex": 40, "initech": 40, "umbrella": 40}


def send(orders: int = 40, reports: int = 40, documents: int = 20) -> None:
    """Send a chain for each order, a chord for each tenant, and the rest."""
    tenants = list(PAGES)
    for order in range(orders):
        tenant = tenants[order % len(tenants)]
        chain(reserve.si(order), charge.si(order, tenant), send_receipt.si(order)).delay()
    for tenant, pages in PAGES.items():
        chord([sync_page.s(page, tenant) for page in range(pages)])(close_books.s(tenant))
    for report in range(reports):
        render_report.delay(report)
    for document in range(documents):
        summarize.delay(document, tokens=20 + 9 * document)


if __name__ == "__main__":
    send()
