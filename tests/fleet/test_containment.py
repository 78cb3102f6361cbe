"""No message and no user code ends a worker or blocks the tasks behind it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis

from celery_ratelimit import Limit
from celery_ratelimit.backlog.backlog import backlog_of
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer
from tests.any_messages import generated, redis_form
from tests.apps.unforeseen import STEPS
from tests.fleet_of import Fleet, NewFleet, until
from tests.parks import park_one
from tests.rabbitmq import Broker

APP = "tests.apps.falling"


class Falling(Fleet):
    def __init__(self, server: EmbeddedServer, directory: Path, **conf: Any) -> None:
        super().__init__(server, directory, app=APP, **conf)

    def call(self, task: str, *args: Any, **options: Any) -> Any:
        return self.sender.send_task(f"{APP}.{task}", args=args, **options)

    def said(self, what: str) -> list[dict[str, Any]]:
        path = self.directory / "said"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["what"] == what]

    def alive(self) -> bool:
        return all(worker.poll() is None for worker in self.workers)


def holds_nothing(fleet: Fleet) -> bool:
    """Whether the worker answers that it has ended every task that it received."""
    inspect = fleet.sender.control.inspect(timeout=5)
    replies = [inspect.reserved(), inspect.active(), inspect.scheduled()]
    return all(replies) and not any(requests for reply in replies for requests in reply.values())


@pytest.mark.parametrize(
    ("broker_url", "pool"),
    [
        ("redis", "prefork"),
        pytest.param("rabbitmq", "threads", marks=pytest.mark.slow),
        pytest.param("redis", "solo", marks=pytest.mark.slow),
    ],
    indirect=["broker_url"],
)
def test_errors_in_user_hooks_end_only_their_task(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis, broker_url: str, pool: str
) -> None:
    with Falling(new_fleet, rate="1/h", broker=broker_url) as fleet:
        fleet.start("-P", pool)
        results = {"first": fleet.call("failing", 0)}
        until(lambda: fleet.started() == 1, 20, "the one that takes the only permit")
        kinds = ("failing", "impatient", "keyless", "storeless", "dropped")
        for number in range(3):
            for kind in kinds:
                results[f"{kind}{number}"] = fleet.call(kind, number)
                fleet.call("good", 10 * number + kinds.index(kind) + 1)
        results["exit"] = fleet.call("failing", "exit")
        fleet.call("good", 99)

        good = {0, 99, *(10 * number + kind + 1 for number in range(3) for kind in range(5))}
        until(lambda: {start.index for start in fleet.starts()} == good, 20, "every good task")
        fails = {name: result for name, result in results.items() if name[:-1] in kinds[:4] or name == "exit"}
        until(lambda: len(fleet.said("task_failure")) >= len(fails), 20, "each failure")
        assert fleet.alive()
        said = fleet.said("on_failure")
        assert sorted(line["id"] for line in said) == sorted(result.id for result in fails.values()), "each once"
        assert all(line["request"] == line["id"] and len(line["args"]) == 1 for line in said), "self.request is there"
        assert {line["id"] for line in fleet.said("task_failure")} == {line["id"] for line in said}
        for name, result in fails.items():
            if not name.startswith("storeless"):
                with pytest.raises(Exception, match=r"throttled by|no such tenant"):
                    result.get(timeout=10)
        broken = "its result backend raised RuntimeError('the result backend is broken')"
        until(lambda: fleet.log().count(broken) >= 6, 20, "the end of each whose backend is broken")
        log = fleet.log()
        assert log.count(broken) == 6
        assert log.count("its on_failure raised ValueError('on_failure is broken')") == len(fails) - 1
        assert "its on_failure raised SystemExit(3)" in log
        assert "Unrecoverable" not in log
        fleet.stop()  # whatever is unacknowledged goes back
        if broker_url == server.url:
            assert not store.exists("celery", "celery.throttled", "unacked")


def test_key_with_half_of_a_surrogate_pair_is_limited_as_any_other(new_fleet: NewFleet, store: redis.Redis) -> None:
    """It is valid JSON, and users' data. Tasks of that key are limited, parked, held and run as any others."""
    half = json.loads('"\\ud83d"')
    with Falling(new_fleet) as fleet:
        fleet.start()
        for index in range(10):
            fleet.call("of_tenant", index, half)
            fleet.call("waiting_tenant", 100 + index, half)
            fleet.call("good", 1000 + index)
        expected = [*range(10), *range(100, 110), *range(1000, 1010)]
        fleet.wait_for(30, 30)
        assert sorted(start.index for start in fleet.starts()) == expected
        assert fleet.alive()
        assert "throttled by" in fleet.log()
        assert list(store.scan_iter("ratelimit:*%ED%A0%BD*")), "escaped"
        until(lambda: not store.keys("*payloads@*"), 20, "an empty lot")
        assert "Unrecoverable" not in fleet.log()


@pytest.mark.slow
def test_sender_properties_that_rabbitmq_refuses_from_workers_are_dropped(new_fleet: NewFleet, broker: Broker) -> None:
    """RabbitMQ refuses a ``user_id`` that is not the publisher's, by closing the channel that the worker listens on."""
    other = broker.url.replace("guest:guest", "other:other")
    with Falling(new_fleet, broker=broker.url) as fleet, Falling(new_fleet, broker=other) as sender:
        fleet.start()
        said = {
            "user_id": "other",
            "message_id": "m1",
            "app_id": "shop",
            "type": "order",
            "timestamp": 1700000000,
            "cluster_id": "",
            "reply_to": "nobody",
            "priority": 200,
            "headers": {"nothing": None, "list": [1, "a", {"b": 2.5}], "number": 2**40, "yes": True},
        }
        for index in range(8):
            sender.call("of_tenant", index, "a", **said)
        sender.call("of_tenant", 8, "a", expiration=1000)
        fleet.wait_for(9, 20)
        for index in range(10, 12):
            fleet.call("of_tenant", index, "b", user_id="guest")
        fleet.wait_for_each([*range(9), 10, 11], 20)
        log = fleet.log()
        assert "throttled by" in log
        assert "PRECONDITION" not in log
        assert "Connection to broker lost" not in log
        fleet.stop()
        assert broker.ready("celery", "celery.throttled") == 0


#: ``TEST_MESSAGES=10000`` for a long run.
MESSAGES = int(os.environ.get("TEST_MESSAGES", "300"))


def until_or_dead(fleet: Falling, store: redis.Redis, timeout: float, done: Callable[[], bool], what: str) -> None:
    """The same as ``until``, but a worker that has ended is a failure at once. A failure says what is left."""
    try:
        until(lambda: done() or not fleet.alive(), timeout, what)
        assert fleet.alive(), f"a worker has ended before {what}"
    except AssertionError as error:
        left = {queue: (store.llen(queue), store.lrange(queue, -2, -1)) for queue in ("celery", "celery.throttled")}
        exits = [worker.poll() for worker in fleet.workers]
        logs = "\n".join(fleet.log(index)[-2000:] for index in range(len(exits)))
        raise AssertionError(f"{error}; {exits=}, {left=}, unacked={store.hgetall('unacked')}\n{logs}") from None


@pytest.mark.slow
def test_generated_messages_on_redis_stop_no_worker_and_no_task(new_fleet: NewFleet, store: redis.Redis) -> None:
    """Generated ones, raw, in the queue of real workers, mixed with good ones: these run, and nothing stays."""
    with Falling(new_fleet, rate="20/s") as fleet:
        fleet.start(number=2)
        good = 0
        for number, message in enumerate(generated(MESSAGES)):
            store.lpush("celery", redis_form(message, "celery"))
            if number % 5 == 0:
                fleet.call("good", good)
                good += 1
        patience = 8 + MESSAGES / 25  # three times that is less than pytest's time-out
        wait = partial(until_or_dead, fleet, store, patience)
        wait(lambda: not store.exists("celery", "celery.throttled"), "every message being taken")
        for _ in range(20):  # each worker is still at it
            fleet.call("good", good)
            good += 1
        wait(lambda: set(range(good)) <= {start.index for start in fleet.starts()}, "every good task")
        wait(lambda: not store.exists("celery", "celery.throttled", "unacked"), "every message being let go")
        assert fleet.sender.control.ping(timeout=5) != []
        assert not fleet.parking_lots().lots()
        logs = fleet.log(0) + fleet.log(1)
        assert "Unrecoverable" not in logs
        assert "Timer" not in logs
        fleet.stop()
        assert not store.exists("celery", "celery.throttled", "unacked")


@pytest.mark.slow
def test_generated_messages_on_rabbitmq_stop_no_worker_and_no_task(
    new_fleet: NewFleet, server: EmbeddedServer, broker: Broker
) -> None:
    with Falling(new_fleet, rate="20/s", broker=broker.url) as fleet:
        fleet.start()
        good = sent = 0
        connection = kombu.Connection(broker.url, transport_options={"confirm_publish": True})
        for number, (headers, properties, body) in enumerate(generated(MESSAGES // 3)):
            names = ("correlation_id", "reply_to", "type", "app_id", "message_id", "expiration")
            options = {name: properties[name] for name in names if isinstance(properties.get(name), str)}
            priority = properties.get("priority")
            priority = priority if isinstance(priority, int) and 0 <= priority <= 255 else None
            try:
                channel = connection.default_channel
                said = channel.prepare_message(body, priority, "application/json", "utf-8", headers, options)
                channel.basic_publish(said, exchange="", routing_key="celery")
                sent += 1
            except Exception:  # AMQP cannot say that, or its server will not hear it
                connection.close()
                connection = kombu.Connection(broker.url, transport_options={"confirm_publish": True})
            if number % 5 == 0:
                fleet.call("good", good)
                good += 1
        connection.close()
        assert sent > MESSAGES / 6
        fleet.call("good", good)
        until(lambda: set(range(good + 1)) <= {s.index for s in fleet.starts()}, 90)
        assert fleet.alive()
        assert "Unrecoverable" not in fleet.log()
        # What waits for its slot goes back as the worker stops, and is run by the next one.
        for _ in range(10):
            until(lambda: broker.ready("celery", "celery.throttled") == 0, 30, "empty queues")
            until(lambda: not fleet.parking_lots().lots(), 60, "empty lots")
            until(lambda: holds_nothing(fleet), 60, "a worker that holds nothing")
            fleet.stop()
            if not broker.ready("celery", "celery.throttled"):
                return
            fleet.launch()
        raise AssertionError("a message comes back again and again")


def test_unforeseen_error_at_any_step_ends_only_its_task(new_fleet: NewFleet, store: redis.Redis) -> None:
    """At any step of the gate: tasks behind it in its queue go on, and its leases are released."""
    with new_fleet(rate="20/s", app="tests.apps.injected") as fleet:
        fleet.start()
        results, index = {}, 0
        for step in STEPS:
            for kind, more in (("retry", ()), ("wait", ()), ("place", (0.01,)), ("patient_place", (0.01,))):
                results[f"{step}-{kind}"] = fleet.send(kind, -1, *more, task_id=f"{step}-{kind}")
                for _ in range(3):
                    fleet.send(kind, index, *more)
                    index += 1
        good = set(range(index))
        until(lambda: good <= {start.index for start in fleet.starts()}, 60, "every good task")
        until(lambda: not store.exists("celery", "celery.throttled", "unacked"), 20, "every message being let go")
        assert fleet.workers[0].poll() is None
        for name in ("ask-retry", "ask-wait", "ask-place", "start-retry", "start-place", "grant-patient_place"):
            with pytest.raises(ZeroDivisionError, match="at "):
                results[name].get(timeout=10)
        log = fleet.log()
        assert log.count("[ask-retry] cannot go on: ZeroDivisionError('at ask')") == 1
        assert "Unrecoverable" not in log
        # All three places are free again: as many more tasks run as hold one at once.
        for number in range(6):
            fleet.send("place", index + number, 0.01)
        until(lambda: set(range(index + 6)) <= {start.index for start in fleet.starts()}, 20, "places")
        until(lambda: store.zcard("ratelimit:v1:{places}::leases") == 0, 10, "every place being given back")


def test_unreadable_parked_message_does_not_block_the_backlog(new_fleet: NewFleet, store: redis.Redis) -> None:
    with new_fleet(rate="10/s") as fleet:
        name = "tests.apps.fleet.retry"
        parking = backlog_of(fleet.sender)
        demand = LimitRequest(Limit("10/s", name=name), name)
        for id, text in (("broken@celery", "{"), ("odd@celery", '{"to": 1}')):
            park_one(parking, demand, id, text)
        fleet.start()
        fleet.send_each("retry", range(10))
        fleet.wait_for_each(range(10), 30)
        assert "could not be published" in fleet.log()
        assert "broken@celery" in fleet.log()
        assert "odd@celery" in fleet.log()
        store.flushall()


@pytest.mark.slow
def test_returned_message_with_cc_header_is_not_copied_again(new_fleet: NewFleet, broker: Broker) -> None:
    """RabbitMQ also sends a message to the queues in its header ``CC``, by every publisher."""
    with Falling(new_fleet, broker=broker.url) as fleet:
        fleet.start("-Q", "celery,other")
        for index in range(10):
            fleet.call("of_tenant", index, "a", headers={"CC": ["other"]})
        fleet.wait_for(20, 30)
        assert "throttled by" in fleet.log()
        fleet.stop()
        assert Counter(start.index for start in fleet.starts()) == dict.fromkeys(range(10), 2)
        assert broker.ready("celery", "other", "celery.throttled", "other.throttled") == 0
