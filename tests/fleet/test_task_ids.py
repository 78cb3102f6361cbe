"""Several messages with one task id: each is a task of its own, as in Celery."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from kombu import Connection, Exchange, Queue
from kombu import Consumer as KombuConsumer

from celery_ratelimit._celery import stored_id
from celery_ratelimit._celery.saved_message import COPY_HEADER, RETURN_HEADER
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, NewFleet, assert_never_over, until

APP = "tests.apps.ids"


def fleet_of_ids(new_fleet: NewFleet, broker_url: str, **conf: Any) -> Fleet:
    return new_fleet(app=APP, prefix=f"{APP}.", broker=broker_url, **conf)


@pytest.mark.slow
def test_replacing_task_waits_for_a_lease_of_its_own(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis, broker_url: str
) -> None:
    """It has the id of the one that it replaces, which is still running when it comes."""
    with fleet_of_ids(new_fleet, broker_url) as fleet:
        fleet.start("-P", "prefork" if broker_url == server.url else "threads")
        for number in range(2):
            fleet.send("replacing", 10 * number, 0.3)
        fleet.wait_for(8, 60)
        changes = sorted((start.at, -1 if start.index < 0 else 1) for start in fleet.starts())
        inside = 0
        for at, change in changes:
            inside += change
            assert inside <= 1, f"two at once, at {at}"
        until(lambda: not store.keys("*{one}*leases"), 20, "every place being given back")


@pytest.mark.parametrize(
    ("broker_url", "task"),
    [("redis", "numbered"), pytest.param("rabbitmq", "patient", marks=pytest.mark.slow)],
    indirect=["broker_url"],
)
def test_reused_task_id_loses_no_task(new_fleet: NewFleet, server: EmbeddedServer, broker_url: str, task: str) -> None:
    with fleet_of_ids(new_fleet, broker_url, rate="2/s") as fleet:
        fleet.start(number=2)
        fleet.send(task, 0)
        fleet.wait_for(1, 20)
        fleet.send_each(task, range(1, 7), task_id="used again")
        if broker_url == server.url:  # elsewhere nothing tells them from one that is delivered twice
            fleet.send_each(task, (7, 7), task_id="used again")
        expected = {**dict.fromkeys(range(7), 1), **({7: 2} if broker_url == server.url else {})}
        fleet.wait_for(sum(expected.values()), 30)
        assert Counter(start.index for start in fleet.starts()) == expected
        assert_never_over(fleet.permits(), 2)
        assert not fleet.parking_lots().lots()


def test_redelivered_message_keeps_its_stored_id(broker_url: str) -> None:
    """Of two copies that are the same in all that a sender can see, on Redis each is one of its own."""
    ids = []

    def came(message: Any) -> None:
        fields = {"id": message.headers["id"], "retries": 0, "replaced_task_nesting": 0}
        request = SimpleNamespace(id=message.headers["id"], message=message, request_dict=fields)
        ids.append(stored_id(request, "jobs"))
        if len(ids) in (1, 3):
            message.requeue()
        else:
            message.ack()

    with Connection(broker_url) as connection:
        queue = Queue("jobs", Exchange(""), "jobs")
        with connection.channel() as channel, KombuConsumer(channel, [queue], on_message=came):
            producer = connection.Producer(channel)
            for _ in range(2):
                producer.publish([[1], {}, {}], routing_key="jobs", headers={"id": "this", "task": "task"})
                before = len(ids)
                while len(ids) < before + 2:
                    connection.drain_events(timeout=5)
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert (ids[1] == ids[2]) == broker_url.startswith("amqp")


@pytest.mark.parametrize(
    "headers",
    [
        {RETURN_HEADER: {"eta": None, "exchange": "", "routing_key": "jobs", "queue": "jobs", "id": "stored@id"}},
        {COPY_HEADER: {"lot": ["api", ""], "id": "stored@id", "copy": 3}},
    ],
    ids=["returned", "handed back"],
)
def test_returned_message_keeps_its_stored_id(headers: dict[str, Any]) -> None:
    message = SimpleNamespace(headers=headers, body=b"", properties={}, channel=None)
    request = SimpleNamespace(id="this", message=message, request_dict={})
    assert stored_id(request, "jobs") == "stored@id"


def test_stored_ids_differ_by_attempt_nesting_body_and_queue() -> None:
    def known_as(id: str = "this", queue: str = "jobs", body: bytes = b"1", **fields: Any) -> str:
        message = SimpleNamespace(headers={}, body=body, properties={"delivery_tag": 1}, channel=None)
        return stored_id(SimpleNamespace(id=id, message=message, request_dict=fields), queue)

    others = [
        known_as("that"),
        known_as(queue="b"),
        known_as(body=b"2"),
        known_as(retries=1),
        known_as(retries=2),
        known_as(replaced_task_nesting=1),
        known_as(replaced_task_nesting=2),
        known_as("th~is"),
        known_as("this@jobs"),
        known_as("\ud83d"),
    ]
    assert known_as() == known_as(retries=0, replaced_task_nesting=0)
    assert len({known_as(), *others}) == 1 + len(others)
    assert all(each.endswith(("@jobs", "@b")) for each in others)
