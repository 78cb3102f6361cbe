"""Limits as a shop might have them, for the pictures of docs/web.md; and any number of them, for ``benchmarks.web``."""

from __future__ import annotations

import os

from celery import Celery

from celery_ratelimit import Concurrency, Limit, RateLimitedTask

app = Celery("shop", broker=os.environ.get("BENCH_BROKER"), backend="cache+memory://")
app.conf.ratelimit_url = os.environ.get("BENCH_STORE", app.conf.broker_url)

SHOP = {
    "shop.charge": Limit("100/s", burst=20, name="stripe"),
    "shop.refund": Limit("10/s", name="stripe-refunds"),
    "crm.sync": Limit("20/s", burst=5, name="crm", fair="{tenant_id}", weights={"gold": 4}),
    "mail.send": Limit("14/s", name="emails"),
    "llm.complete": Limit("200000/m", burst=20000, name="openai-tokens", cost="tokens"),
    "llm.ask": Limit("500/m", name="openai-requests"),
    "geo.look_up": Limit("50/s", name="geocoder"),
    "tenant.export": Limit("5/s", name="exports", key="tenant:{tenant_id}"),
    "media.encode": Concurrency(4, name="gpu"),
    "sms.send": Limit("1/s", name="sms-gateway"),
    "search.index": Limit("40/s", name="search"),
}
MANY = int(os.environ.get("BENCH_LIMITS", 0))


def _body(tenant_id: str = "", tokens: int = 1) -> None: ...


for _name, _limit in {f"many.task{n}": Limit("10/s", name=f"limit{n:03}") for n in range(MANY)}.items() or SHOP.items():
    app.task(base=RateLimitedTask, limits=_limit, name=_name, shared=False)(_body)
