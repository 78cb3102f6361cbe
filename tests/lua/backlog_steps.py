"""Steps of tests with a backlog: park tasks, take those that are due, confirm that they are published."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from celery_ratelimit.backlog.backlog import Backlog, ParkResult, ToPark
from celery_ratelimit.backlog.messages import Parked
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.parks import answer, park_one

from .frozen import demand, us

BUCKET = ("api", "")
API = demand("10/s")
#: The queues that no worker consumes.
ABSENT_A = frozenset("a")


def message_of(id: str) -> str:
    """A message: the task's own id stands before the @ and its queue."""
    return json.dumps({"id": id.partition("@")[0], "headers": {"id": id.partition("@")[0]}})


def park(
    parking: Backlog,
    *ids: str,
    asked: LimitRequest = API,
    copy: int = 1,
    since: int = 0,
    expires: float = 0.0,
    only_behind: bool = False,
    most: int | None = None,
    token: str = "",
) -> int | ParkResult:
    """Park tasks; the last answer: the cost of the tasks ahead, or why the task was not parked."""
    said: int | ParkResult = 0
    for id in ids:
        said = park_one(
            parking,
            asked,
            id,
            message_of(id),
            copy=copy,
            since=since,
            expires=expires,
            only_behind=only_behind,
            most=most,
            token=token,
        )
    return said


def park_all(parking: Backlog, *messages: ToPark, most: int | None = None) -> list[int | ParkResult]:
    """Park messages with one script; an answer for each."""
    return [answer(each) for each in parking.park({BUCKET: messages}, most=most)[BUCKET]]


def let_out(
    parking: Backlog, asked: LimitRequest = API, absent: Collection[str] = (), horizon: float = 1.0
) -> list[Parked]:
    """Take all due tasks, with as many scripts as that needs."""
    leaving: list[Parked] = []
    again: float | None = 0.0
    while again == 0.0:
        (looked,) = parking.take_due([asked], absent=absent, horizon=horizon)
        leaving, again = [*leaving, *looked.leaving], looked.again
    return leaving


def take_due(parking: Backlog, asked: LimitRequest = API) -> list[tuple[str, int]]:
    """The due tasks, and the microseconds until their slots."""
    return [(each.id, us(each.wait)) for each in let_out(parking, asked)]


def publish(parking: Backlog, *copies: tuple[str, int]) -> None:
    parking.published({BUCKET: [Parked(id, copy, 0, 0.0, "") for id, copy in copies]})


def attend(parking: Backlog, worker: str, *queues: str, left: Sequence[str] = (), lasts: float = 6.0) -> frozenset[str]:
    """A worker reports its queues. Returns the queues that no worker consumes."""
    return parking.register.attend(worker, queues, left, lasts)
