"""The fleet's app with packages and options that tasks are often combined with."""

from __future__ import annotations

import pydantic

from celery_ratelimit import Limit, RateLimitedTask
from tests.apps.fleet import app, note

__all__ = ["app"]


class Order(pydantic.BaseModel):
    tenant_id: str = pydantic.Field(alias="tenantId")
    weight: int = 1


@app.task(
    base=RateLimitedTask,
    pydantic=True,
    throttle="drop",
    name="modelled",
    limits=Limit("1/h", burst=3, key="{order.tenant_id}", cost="order.weight"),
)
def modelled(order: Order, index: int) -> str:
    note(index)
    return f"{order.tenant_id} {order.weight}"
