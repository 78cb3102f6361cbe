"""The laws on RabbitMQ, with classic and with quorum queues: real workers, a node of the suite's own."""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis

from benchmarks.measures import displacement
from tests.fleet_of import AGAIN, Fleet, NewFleet, assert_never_over, assert_over, errors, until
from tests.rabbitmq import Broker, needs_quorum_queues

TASKS, RATE = 150, 50

#: Celery turns its native delayed delivery on for these, and its prefetch no longer grows for what waits for its ETA.
QUORUM: dict[str, Any] = {
    "task_default_queue_type": "quorum",
    "task_default_exchange_type": "topic",
    "broker_native_delayed_delivery_queue_type": "quorum",
}


def indexes(fleet: Fleet) -> list[int]:
    return sorted(start.index for start in fleet.starts())


def assert_all_acknowledged(fleet: Fleet, broker: Broker, *queues: str) -> None:
    """When its workers are gone, the broker has nothing left to deliver."""
    fleet.stop()
    assert broker.ready(*queues) == 0


@pytest.mark.parametrize(
    ("throttle", "conf"),
    [
        pytest.param("retry", {}, id="retry, classic"),
        pytest.param("wait", QUORUM, id="wait, quorum", marks=needs_quorum_queues),
        pytest.param("retry", QUORUM, id="retry, quorum", marks=[pytest.mark.slow, needs_quorum_queues]),
    ],
)
def test_a_backlog_leaves_at_the_rate(new_fleet: NewFleet, broker: Broker, throttle: str, conf: dict[str, Any]) -> None:
    with new_fleet(rate=f"{RATE}/s", broker=broker.url, **conf) as fleet:
        fleet.start(number=2)
        fleet.send_each(throttle, range(TASKS))
        starts = fleet.wait_for(TASKS, 40)

        assert sorted(start.index for start in starts) == list(range(TASKS))  # each once: nothing lost
        permits = fleet.permits()
        assert sorted(permit.index for permit in permits) == list(range(TASKS))
        assert_never_over(permits, RATE)
        assert_over(permits, RATE / 2)
        median, last_percent = displacement(permits)
        if throttle == "retry":
            assert fleet.sent_back() <= TASKS * AGAIN
            assert median <= 30
        else:
            assert fleet.sent_back() == 0
            assert median <= 4
            assert last_percent <= 16  # what two workers have prefetched
        logs = fleet.log(0) + fleet.log(1)
        assert "Traceback" not in logs
        assert not errors(logs)
        assert_all_acknowledged(fleet, broker, "celery", "celery.throttled")
        assert indexes(fleet) == list(range(TASKS))


@pytest.mark.slow
@needs_quorum_queues
def test_short_waits_with_confirmed_publishes_lose_no_task(new_fleet: NewFleet, broker: Broker) -> None:
    """Native delayed delivery knows whole seconds only, from one on. With ``confirm_publish`` whoever publishes waits
    for the broker's answer, and other messages come in meanwhile.
    """
    conf = {**QUORUM, "broker_transport_options": {"confirm_publish": True}}
    with new_fleet(rate="20/s", broker=broker.url, **conf) as fleet:
        fleet.send_each("retry", range(50))
        fleet.start()
        fleet.wait_for(50, 30)
        assert_never_over(fleet.permits(), 20)
        assert "Traceback" not in fleet.log()
        assert_all_acknowledged(fleet, broker, "celery", "celery.throttled")
        assert indexes(fleet) == list(range(50))


@pytest.mark.slow
@needs_quorum_queues
def test_native_delayed_delivery_changes_no_limit_and_no_message_field(
    new_fleet: NewFleet, store: redis.Redis, broker: Broker, tmp_path: Path
) -> None:
    """What comes late through ``celery_delayed_27`` has a routing key of 28 bits before the queue's own."""
    queues = {"ratelimit_queues": {"celery": "2/s"}}
    with new_fleet(rate="100/s", broker=broker.url, install=True, **queues, **QUORUM) as fleet:
        fleet.start()
        ids = [str(uuid.uuid4()) for _ in range(4)]
        for task_id in ids:
            fleet.send("whole", task_id=task_id, countdown=1)
        fleet.wait_for(4, 20)
        assert_never_over(fleet.permits(), 2)
        assert list(store.scan_iter("ratelimit:*{celery}*")), "the limit of the queue"
        assert not list(store.scan_iter("ratelimit:*delayed*")), "a limit of the queue that it came through"
        paths = [tmp_path / f"{task_id}.request" for task_id in ids]
        until(lambda: all(path.exists() for path in paths), 10, "every task's request")
        throttled = {task_id for task_id in ids if f"[{task_id}] throttled" in fleet.log()}
        assert 0 < len(throttled) < 4
        found = [json.loads(path.read_text()) for path in paths]
        fields = ("exchange", "routing_key", "priority", "redelivered")
        routing = [tuple(request["delivery_info"].get(name) for name in fields) for request in found]
        assert len(set(routing)) == 1, "throttled and not throttled: the same"
        assert routing[0][1].endswith("celery")
        assert not any("ratelimit" in request or "ratelimit" in (request["headers"] or {}) for request in found)
        assert_all_acknowledged(fleet, broker, "celery", "celery.throttled")


def test_throttled_task_returns_to_its_own_queue_of_a_topic_exchange(
    new_fleet: NewFleet, broker: Broker, tmp_path: Path
) -> None:
    """A topic exchange makes two copies for two queues. Sent back through it, each would be two once more."""
    events = {"exchange": "events", "exchange_type": "topic"}
    queues = {"bills": {**events, "routing_key": "order.#"}, "mails": {**events, "routing_key": "*.new"}}
    with new_fleet(rate="20/s", broker=broker.url, task_queues=queues) as fleet:
        fleet.launch("-Q", "bills")
        fleet.launch("-Q", "mails")
        fleet.start(number=0)
        results = [fleet.send("retry", n, exchange="events", routing_key="order.new") for n in range(20)]
        fleet.wait_for(40, 30)
        assert_never_over(fleet.permits(), 20)
        fleet.stop()
        assert Counter(start.index for start in fleet.starts()) == dict.fromkeys(range(20), 2)
        for index in range(2):
            log = (tmp_path / f"worker{index}.log").read_text()
            done = re.findall(r"\[([0-9a-f-]{36})\] succeeded", log)
            assert sorted(done) == sorted(result.id for result in results)
            assert "throttled by" in log
        assert broker.ready("bills", "mails", "bills.throttled", "mails.throttled") == 0


@needs_quorum_queues
def test_backlog_of_one_key_does_not_block_another(new_fleet: NewFleet, broker: Broker) -> None:
    """The prefetch, 8 here, does not grow with the tasks that wait for their time; those of the first key fill it."""
    with new_fleet(rate="1/s", broker=broker.url, **QUORUM) as fleet:
        fleet.start()
        fleet.send_each("tenant", range(40), "busy")
        until(lambda: fleet.log().count("throttled by") >= 20, 20, "a line")
        for index in (100, 101):
            fleet.send("tenant", index, "idle")
        until(lambda: {100, 101} <= set(indexes(fleet)), 15, "the start of the other key's tasks")
        permits = fleet.permits()
        idle = [permit for permit in permits if permit.index >= 100]
        assert_never_over(idle, 1)
        assert_never_over([permit for permit in permits if permit.index < 100], 1)
        assert sum(permit.at < idle[1].at for permit in permits) <= 20, "its turn was after a second"


def test_removed_return_queue_loses_no_task(new_fleet: NewFleet, broker: Broker) -> None:
    """A message to a queue that is not there is dropped without a word, unless the publisher asks for one."""
    with new_fleet(rate="2/s", broker=broker.url) as fleet:
        fleet.start()
        worker = fleet.workers[0].pid
        os.kill(worker, signal.SIGSTOP)
        try:
            fleet.send_each("retry", range(6))
            # Delivered to the worker, which reads them before it reads that the queue is gone.
            until(lambda: broker.consumers("celery") == 1 and broker.ready("celery") == 0, 10, "the delivery")
            broker.delete("celery.throttled")
        finally:
            os.kill(worker, signal.SIGCONT)
        until(lambda: set(indexes(fleet)) == set(range(6)), 15, "every task")
        assert_never_over(fleet.permits(), 2)
        until(lambda: broker.consumers("celery.throttled") == 1, 10, "a return queue with a consumer")
