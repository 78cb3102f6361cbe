"""Of several copies of a task one may run, wherever a worker or a drain dies."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import redis

from celery_ratelimit._celery.saved_message import ReturnAddress, as_sent, copy_in, marker_in, parcel_of
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.backlog.messages import Parked, marker_of, read_parcel
from celery_ratelimit.backlog.tuning import REDELIVERY_LATE
from tests.conftest import START, Clock
from tests.parks import answer, packed

from .backlog_steps import BUCKET, let_out, park, publish, take_due
from .frozen import expiries, us

ID = "a@q"
RETURN = {"queue": "q", "eta": None, "exchange": "", "routing_key": "q", "id": ID}
MESSAGE = (
    '{"id": "a", "to": "q.throttled", "body": "", "priority": 0, "expires": null, "properties": {}, '
    f'"headers": {{"id": "a", "celery-ratelimit-return": {json.dumps(RETURN)}}}}}'
)

#: What becomes of one task. Its copies have numbers; the user's own message is 0, and is parked as 1.
#:
#: "park 2": it is parked as copy 2, and "park 1 t": by another delivery, of token t. "acked t1": the broker has the
#: acknowledgement of that delivery, which is told with the next call; "told": by itself. "leaves 1", "drained 1",
#: "released 1": the copies that leave to the return queue, to their own queue, by hand; "overdue 1": by a drain that
#: takes copies in flight, too. "published 1": so the worker says. "1 runs", "1 is stale": it arrives at a worker.
#: "remembered", "forgotten": the store's memory of the copies.
TRACES = {
    "parked message is delivered again": "park 1, 0 is stale, leaves 1, published 1, 1 runs, 0 is stale, 1 runs",
    "all is acknowledged": "park 1, acked t1, leaves 1, published 1, 1 runs, forgotten",
    "acknowledgement is told after the return": "park 1, leaves 1, remembered, acked t1, published 1, forgotten",
    "acknowledgement is never told": "park 1, leaves 1, published 1, 2 runs, 0 is stale, 1 is stale",
    "another acknowledgement is told": "park 1, leaves 1, published 1, 1 runs, acked t2, told, 0 is stale, remembered",
    "worker dies before it publishes": (
        "park 1, acked t1, leaves 1, after 9 s, leaves, after 10 s, leaves 2, published 2, 2 runs"
    ),
    "worker dies before it confirms": (
        "park 1, acked t1, leaves 1, after 10 s, leaves 2, published 2, 1 runs, 2 is stale, 1 runs"
    ),
    "arrival confirms the publish": "park 1, acked t1, leaves 1, 1 runs, after 60 s, leaves",
    "older copy comes once more after the task is parked again": (
        "park 1, acked t1, leaves 1, published 1, 1 runs, park 2, 1 is stale, leaves 2, published 2, 1 is stale, 2 runs"
    ),
    "first of two copies is parked again and gets a new number": (
        "park 1, leaves 1, after 10 s, leaves 2, published 2, 0 runs, park 1 again, acked again, 1 is stale, "
        "2 is stale, after 11 s, leaves 3, published 3, 0 is stale, 2 is stale, 3 runs"
    ),
    "confirmation comes after the task is parked again": (
        "park 1, acked t1, leaves 1, 1 runs, park 2, published 1, 1 is stale, after 1 s, leaves 2"
    ),
    "parked in a second backlog meanwhile, confirmed before": (
        "park 1, acked t1, leaves 1, published 1, 2 runs, park 3, acked t3, after 60 s, leaves 3, 3 runs"
    ),
    "parked in a second backlog meanwhile, confirmed after": (
        "park 1, acked t1, leaves 1, 2 runs, park 3, acked t3, published 1, after 60 s, leaves 3, 3 runs"
    ),
    "parked in a second backlog meanwhile, never confirmed": (
        "park 1, acked t1, leaves 1, 2 runs, park 3, acked t3, after 60 s, leaves 3, 3 runs"
    ),
    "answer of the park is lost": "park 1, leaves 1, park 1, leaves",
    "drained copy is delivered again": "park 1, drained 1, 1 runs, 1 runs, 0 is stale, 1 runs",
    "confirmed drained copy is delivered again": "park 1, drained 1, published 1, 1 runs, 1 runs, 0 is stale, 1 runs",
    "drain takes a copy that is in flight": (
        "park 1, acked t1, leaves 1, overdue 2, published 2, 1 is stale, 2 runs, 1 is stale"
    ),
    "two drains take one copy": "park 1, drained 1, overdue 2, 1 is stale, 2 runs, overdue",
    "drain finds the copy arrived": "park 1, leaves 1, 1 runs, overdue",
    "drain confirms after the copy is parked again": (
        "park 1, drained 1, 1 runs, park 2, published 1, 1 is stale, leaves 2"
    ),
    "drain is killed": "park 1, drained 1, after 10 s, leaves 2, 2 runs, 1 is stale",
    "released by hand": "park 1, released 1, published 1, 1 runs, 0 is stale, 1 runs",
}


def follow(trace: str, parking: Backlog, clock: Clock, store: redis.Redis) -> None:
    for step in trace.split(", "):
        match step.split():
            case ["park", copy, *token]:
                since = 0 if copy == "1" else START
                one = packed(ID, 1, MESSAGE, int(copy), since, token=token[0] if token else "")
                assert answer(parking.park({BUCKET: [one]})[BUCKET][0]) == 0, step
            case ["acked", token]:
                parking.untold.note_acknowledged(BUCKET, ID, token)
            case ["told"]:
                parking.published()
            case [("leaves" | "drained" | "overdue" | "released") as how, *copies]:
                assert [str(each.copy) for each in taken(parking, how)] == copies, step
            case ["published", copy]:
                publish(parking, (ID, int(copy)))
            case ["after", seconds, _]:
                clock.set(START + int(seconds) * 1_000_000)
            case [("remembered" | "forgotten") as memory]:
                assert bool(store.keys("ratelimit:*:valid_copy@fleet")) == (memory == "remembered"), step
            case [copy, *runs]:
                assert parking.copies.arrive(BUCKET, {ID: int(copy)}) == (set() if runs == ["runs"] else {ID}), step


def taken(parking: Backlog, how: str) -> list[Parked]:
    if how == "leaves":
        return let_out(parking)
    if how == "released":
        return parking.contents.remove(BUCKET, [ID], purge=False)[1]
    return parking.contents.take_for_original_queues(BUCKET, overdue=20.0 if how == "overdue" else 0.0)[1]


@pytest.mark.parametrize("name", TRACES)
def test_one_copy_may_run_when(parking: Backlog, clock: Clock, store: redis.Redis, name: str) -> None:
    follow(TRACES[name], parking, clock, store)


def round_of(copy: int) -> str:
    """It is parked, let out, and comes back."""
    return f"park {copy}, leaves {copy}, published {copy}, {copy} runs"


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("told_after", [1, 2])
def test_one_of_two_older_messages_is_unacknowledged(
    parking: Backlog, clock: Clock, store: redis.Redis, left: int, told_after: int
) -> None:
    """A worker is stopped before it has heard that it was parked, and gives the message back; that the other message
    is acknowledged is told before the task is parked again, or when it has left once more.
    """
    first, second = [f", acked t{2 - left}, told" if told_after == each else "" for each in (1, 2)]
    stale = f"{left} is stale"
    trace = f"{round_of(1)}, park 2{first}, leaves 2, published 2{second}, {stale}, 2 runs, {stale}"
    follow(trace, parking, clock, store)


@pytest.mark.parametrize("times", [2, 3, 12])
def test_last_of_several_older_messages_is_awaited(
    parking: Backlog, clock: Clock, store: redis.Redis, times: int
) -> None:
    rounds = [round_of(copy) for copy in range(1, times + 1)]
    acknowledged = [f"acked t{copy}, told" for copy in range(times, 1, -1)]
    trace = [*rounds, *acknowledged, "0 is stale", "acked t1", "told", "forgotten"]
    follow(", ".join(trace), parking, clock, store)


def test_tasks_stay_and_memory_of_copies_expires(parking: Backlog, store: redis.Redis) -> None:
    park(parking, "a", "b", expires=START / 1e6 + 3600)
    take_due(parking)
    assert {key.rpartition(":")[2] for key in store.keys("ratelimit:*@fleet")} == {
        f"{kind}@fleet" for kind in ("payloads", "in_flight", "valid_copy", "due", "code")
    }
    (remembered,) = store.keys("ratelimit:*:valid_copy@fleet")
    assert expiries(store).get(remembered) == START + 7_200_000_000 + us(REDELIVERY_LATE)


def test_drained_copy_is_as_it_was_sent_but_for_its_number(parking: Backlog, clock: Clock, store: redis.Redis) -> None:
    """It keeps the number when it is sent back to be parked, too."""
    follow("park 1", parking, clock, store)
    (handed,) = taken(parking, "drained")
    message = SimpleNamespace(
        delivery_info={}, headers=as_sent(read_parcel(handed), marker_of(BUCKET, handed))["headers"]
    )
    assert not marker_in(message), "it did not return"
    copy = {"lot": list(BUCKET), "id": ID, "copy": 1}
    assert {key: value for key, value in message.headers.items() if value is not None} == {
        "id": "a",
        "celery-ratelimit-copy": copy,
    }
    message.properties, message.body, message.content_type, message.content_encoding = {}, "", "json", "utf-8"
    request = SimpleNamespace(message=message, delivery_info={}, expires=None)
    headers = parcel_of(request, "q", ReturnAddress("q.throttled"), ID)["headers"]
    assert "celery-ratelimit-copy" not in headers
    again = copy_in(SimpleNamespace(delivery_info={}, headers=headers))
    assert {key: again[key] for key in copy} == copy
