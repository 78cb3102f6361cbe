"""A task that was handed back to its queue runs once beside its other copies, and is never lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit._celery.saved_message import ReturnAddress, as_sent, copy_in, marker_in, parcel_of
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.backlog.messages import Parked, marker_of, read_parcel
from tests.conftest import START, Clock
from tests.parks import answer, packed

from .backlog_steps import BUCKET, let_out, publish

ID = "a@q"
OWN = {"queue": "q", "eta": None, "exchange": "", "routing_key": "q", "id": ID}
MESSAGE = (
    '{"id": "a", "to": "q.throttled", "body": "", "priority": 0, "expires": null, "properties": {}, '
    '"headers": {"id": "a", "celery-ratelimit-return": %s}}'
)


def park(parking: Backlog, copy: int = 1, *, since: int = 0) -> None:
    written = MESSAGE % str(OWN).replace("'", '"').replace("None", "null")
    (result,) = parking.park({BUCKET: [packed(ID, 1, written, copy, since)]})[BUCKET]
    assert answer(result) == 0


def take_for_original_queues(parking: Backlog, *, overdue: float = 0.0) -> list[Parked]:
    _, leaving = parking.contents.take_for_original_queues(BUCKET, overdue=overdue)
    return leaving


def message_of(parked: Parked) -> Any:
    """As it is in its queue again."""
    return SimpleNamespace(headers=as_sent(read_parcel(parked), marker_of(BUCKET, parked))["headers"])


def may_run(parking: Backlog, message: Any) -> bool:
    said = copy_in(message)
    assert (said["lot"], said["id"]) == (list(BUCKET), ID)
    return not parking.copies.arrive(BUCKET, {ID: said["copy"]})


def test_drained_copy_carries_its_number_only(parking: Backlog) -> None:
    park(parking)
    (handed,) = take_for_original_queues(parking)
    message = message_of(handed)
    assert not marker_in(message), "it did not return: it is as it was sent"
    assert {key: value for key, value in message.headers.items() if value is not None} == {
        "id": "a",
        "celery-ratelimit-copy": {"lot": list(BUCKET), "id": ID, "copy": 1},
    }


@pytest.mark.parametrize("confirmed", [False, True])
def test_redelivered_drained_copy_runs(parking: Backlog, confirmed: bool) -> None:
    """The message that was parked was not acknowledged: the broker may deliver it again, and that one ends."""
    park(parking)
    (handed,) = take_for_original_queues(parking)
    message = message_of(handed)
    if confirmed:
        parking.published({BUCKET: [handed]})
    assert may_run(parking, message)
    assert may_run(parking, message), "its worker was killed"
    assert parking.copies.arrive(BUCKET, {ID: 0}) == {ID}, "the user's own, delivered again"
    assert may_run(parking, message)


def test_copy_drained_from_the_return_queue_runs(parking: Backlog) -> None:
    park(parking)
    (returned,) = let_out(parking)
    publish(parking, (ID, 1))
    message = message_of(returned)
    assert may_run(parking, message)
    assert may_run(parking, message)
    assert parking.copies.arrive(BUCKET, {ID: 0}) == {ID}


def test_copy_in_flight_and_drained_copy_run_once(parking: Backlog) -> None:
    """It has left the backlog, and is not confirmed yet: a drain hands it back once more."""
    park(parking)
    parking.untold.note_acknowledged(BUCKET, ID, "t1")
    (on_its_way,) = let_out(parking)
    (handed,) = take_for_original_queues(parking, overdue=20.0)
    assert (on_its_way.copy, handed.copy) == (1, 2)
    parking.published({BUCKET: [handed]})
    assert parking.copies.arrive(BUCKET, {ID: 1}) == {ID}
    assert may_run(parking, message_of(handed))
    assert parking.copies.arrive(BUCKET, {ID: 1}) == {ID}


def test_one_copy_of_two_drains_runs(parking: Backlog) -> None:
    park(parking)
    (first,) = take_for_original_queues(parking)
    (second,) = take_for_original_queues(parking, overdue=20.0)
    assert not may_run(parking, message_of(first))
    assert may_run(parking, message_of(second))
    assert take_for_original_queues(parking, overdue=20.0) == [], "it has arrived"


def test_arrived_copy_is_not_drained(parking: Backlog) -> None:
    park(parking)
    let_out(parking)
    assert parking.copies.arrive(BUCKET, {ID: 1}) == set()
    assert take_for_original_queues(parking, overdue=20.0) == []


def test_copy_parked_again_before_confirmation_stays_parked(parking: Backlog) -> None:
    park(parking)
    (handed,) = take_for_original_queues(parking)
    assert may_run(parking, message_of(handed))
    park(parking, handed.copy + 1)
    parking.published({BUCKET: [handed]})
    assert not may_run(parking, message_of(handed)), "delivered again: it is parked"
    assert [(each.id, each.copy) for each in let_out(parking)] == [(ID, 2)]


def test_killed_drain_loses_no_task(parking: Backlog, clock: Clock) -> None:
    """Whether it has published the message is not known: it is let out once more, and the first that comes runs."""
    park(parking)
    (handed,) = take_for_original_queues(parking)
    clock.set(START + 10_000_000)
    (again,) = let_out(parking)
    assert (again.id, again.copy) == (ID, 2)
    assert parking.copies.arrive(BUCKET, {ID: 2}) == set()
    assert not may_run(parking, message_of(handed))


def test_released_copy_runs(parking: Backlog) -> None:
    park(parking)
    (released,) = parking.contents.remove(BUCKET, [ID], purge=False)[1]
    parking.published({BUCKET: [released]})
    assert parking.copies.arrive(BUCKET, {ID: released.copy}) == set()
    assert parking.copies.arrive(BUCKET, {ID: 0}) == {ID}
    assert parking.copies.arrive(BUCKET, {ID: released.copy}) == set()


def test_drained_copy_sent_back_keeps_its_number(parking: Backlog) -> None:
    park(parking)
    (handed,) = take_for_original_queues(parking)
    message = message_of(handed)
    message.properties, message.body, message.content_type, message.content_encoding = {}, "", "json", "utf-8"
    request = SimpleNamespace(message=message, delivery_info={}, expires=None)
    parcel = parcel_of(request, "q", ReturnAddress("q.throttled"), ID)
    again = SimpleNamespace(headers=parcel["headers"])
    assert "celery-ratelimit-copy" not in again.headers
    assert may_run(parking, again)
