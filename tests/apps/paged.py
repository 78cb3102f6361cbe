"""An app for the page: limits of each kind, and names that are not sensible."""

from __future__ import annotations

import os

from celery import Celery

from celery_ratelimit import Limit, RateLimitedTask
from tests.web.server import NAMES

app = Celery("paged", broker=os.environ["TEST_BROKER"], backend="cache+memory://")
app.conf.update(
    ratelimit_url=os.environ.get("TEST_STORE", os.environ["TEST_BROKER"]),
    ratelimit_quotas={
        "stripe": {"rate": "100/s", "burst": 5},
        "gpu": {"limit": 4},
        "crm": Limit("10/s", name="crm", fair="{tenant_id}", weights={"gold": 4}),
        **{name: Limit("7/m", name=name) for name in NAMES},
    },
)


@app.task(base=RateLimitedTask, limits="stripe", name="shop.charge")
def charge(*_: object) -> None: ...


@app.task(base=RateLimitedTask, limits=Limit("5/s", name="tenant", key="tenant:{tenant}"), name="shop.sync")
def sync(tenant: str) -> None: ...


@app.task(base=RateLimitedTask, limits="crm", name="shop.refresh")
def refresh(tenant_id: str) -> None: ...
