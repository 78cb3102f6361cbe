"""Ways to limit a task. None of the bodies knows of its limit."""

from __future__ import annotations

from celery_ratelimit import Limit, RateLimitedTask

from .app import app
from .client import call


@app.task(base=RateLimitedTask, limits="100/s")
def charge(order_id: int) -> None:
    """A limit of the task's own: at most 100 a second over all workers."""
    call(f"/charges/{order_id}")


@app.task
def send_email(message_id: int) -> None:
    """Limited by its queue: ``emails`` may send 14 a second (``ratelimit_queues`` in ``app.py``)."""
    call(f"/emails/{message_id}")


@app.task(base=RateLimitedTask, limits="stripe")
def refund(order_id: int) -> None:
    """Shares the quota ``stripe`` with :func:`payout`: 50 a second together."""
    call(f"/stripe/refund-{order_id}")


@app.task
def payout(merchant_id: int) -> None:
    """Shares the quota ``stripe`` too, although it is a plain task (``ratelimit_tasks`` in ``app.py``)."""
    call(f"/stripe/payout-{merchant_id}")


@app.task(base=RateLimitedTask, limits=Limit("5/s", key="tenant:{tenant_id}"))
def sync_page(tenant_id: str, page: int) -> None:
    """Every tenant has 5 a second to itself, however busy the others are."""
    call(f"/tenant-{tenant_id}/{page}")


@app.task(base=RateLimitedTask, limits="100/s")
def export_as_it_comes(tenant_id: str, number: int) -> None:
    """All tenants wait in one line: whoever sends much keeps the others waiting."""
    call(f"/exports/{tenant_id}-{number}")


@app.task(base=RateLimitedTask, limits=Limit("100/s", fair="{tenant_id}"))
def export_fairly(tenant_id: str, number: int) -> None:
    """Tenants that wait have turns alike, whoever came first."""
    call(f"/exports/{tenant_id}-{number}")
