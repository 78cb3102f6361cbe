"""One message for a parking lot."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from celery_ratelimit.backlog.backlog import Backlog, ParkResult, ToPark
from celery_ratelimit.limiter.limit_request import LimitRequest

__all__ = ["EMPTY", "answer", "packed", "park_one"]

#: No task is parked, behind which a task could be parked.
EMPTY = ParkResult("empty")


def packed(id: str, cost: int, message: str, copy: int, since: int = 0, *, token: str = "", **fields: Any) -> ToPark:
    """A message of a task and a queue as ``id`` and the message name them. Each copy has another ``token``."""
    one, task = ToPark(id, cost, message, copy, token or f"t{copy}", since, **fields), id.partition("@")[0]
    with suppress(ValueError, AttributeError):
        task = json.loads(one.message).get("id", task)
    return one._replace(task=task, queue=id.rpartition("@")[2] if "@" in id else "")


def park_one(
    parking: Backlog,
    demand: LimitRequest,
    id: str,
    message: str,
    *,
    copy: int = 1,
    since: int = 0,
    expires: float = 0.0,
    only_behind: bool = False,
    most: int | None = None,
    token: str = "",
    attempt: int = 0,
) -> int | ParkResult:
    """Park it; see :func:`answer`."""
    one = packed(id, demand.cost, message, copy, since, expires=expires, token=token, attempt=attempt)
    bucket = demand.name, demand.key
    (result,) = parking.park({bucket: [one]}, only_behind=only_behind, most=most)[bucket]
    return answer(result)


def answer(result: ParkResult) -> int | ParkResult:
    """Permits that the tasks ahead of a parked task cost; the whole result if it was not parked."""
    return result.ahead if result.is_parked else result
