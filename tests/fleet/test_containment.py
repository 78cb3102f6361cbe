"""No message and no user code ends a worker or blocks the tasks behind it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
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


def falling(new_fleet: NewFleet, **conf: Any) -> Fleet:
    return new_fleet(app=APP, prefix=f"{APP}.", **conf)


def said(fleet: Fleet, what: str) -> list[dict[str, Any]]:
    path = fleet.directory / "said"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["what"] == what]


def alive(fleet: Fleet) -> bool:
    return all(worker.poll() is None for worker in fleet.workers)


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
    with falling(new_fleet, rate="1/h", broker=broker_url) as fleet:
        fleet.start("-P", pool)
        results = {"first": fleet.send("failing", 0)}
        until(lambda: fleet.started() == 1, 20, "the one that takes the only permit")
        kinds = ("failing", "impatient", "keyless", "storeless", "dropped")
        for number in range(3):
            for kind in kinds:
                results[f"{kind}{number}"] = fleet.send(kind, number)
                fleet.send("good", 10 * number + kinds.index(kind) + 1)
        results["exit"] = fleet.send("failing", "exit")
        fleet.send("good", 99)

        good = {0, 99, *(10 * number + kind + 1 for number in range(3) for kind in range(5))}
        until(lambda: {start.index for start in fleet.starts()} == good, 20, "every good task")
        fails = {name: result for name, result in results.items() if name[:-1] in kinds[:4] or name == "exit"}
        until(lambda: len(said(fleet, "task_failure")) >= len(fails), 20, "each failure")
        assert alive(fleet)
        failed = said(fleet, "on_failure")
        assert sorted(line["id"] for line in failed) == sorted(result.id for result in fails.values()), "each once"
        assert all(line["request"] == line["id"] and len(line["args"]) == 1 for line in failed), "self.request is there"
        assert {line["id"] for line in said(fleet, "task_failure")} == {line["id"] for line in failed}
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
    with falling(new_fleet) as fleet:
        fleet.start()
        fleet.send_each("of_tenant", range(10), half)
        fleet.send_each("waiting_tenant", range(100, 110), half)
        fleet.send_each("good", range(1000, 1010))
        fleet.wait_for_each([*range(10), *range(100, 110), *range(1000, 1010)], 30)
        assert alive(fleet)
        assert "throttled by" in fleet.log()
        assert list(store.scan_iter("ratelimit:*%ED%A0%BD*")), "escaped"
        until(lambda: not store.keys("*payloads@*"), 20, "an empty lot")
        assert "Unrecoverable" not in fleet.log()


@pytest.mark.slow
def test_sender_properties_that_rabbitmq_refuses_from_workers_are_dropped(new_fleet: NewFleet, broker: Broker) -> None:
    """RabbitMQ refuses a ``user_id`` that is not the publisher's, by closing the channel that the worker listens on."""
    other = broker.url.replace("guest:guest", "other:other")
    with falling(new_fleet, broker=broker.url) as fleet, falling(new_fleet, broker=other) as sender:
        fleet.start()
        properties = {
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
        sender.send_each("of_tenant", range(8), "a", **properties)
        sender.send("of_tenant", 8, "a", expiration=1000)
        fleet.wait_for(9, 20)
        fleet.send_each("of_tenant", range(10, 12), "b", user_id="guest")
        fleet.wait_for_each([*range(9), 10, 11], 20)
        log = fleet.log()
        assert "throttled by" in log
        assert "PRECONDITION" not in log
        assert "Connection to broker lost" not in log
        fleet.stop()
        assert broker.ready("celery", "celery.throttled") == 0


#: ``TEST_MESSAGES=10000`` for a long run.
MESSAGES = int(os.environ.get("TEST_MESSAGES", "300"))


def until_or_dead(fleet: Fleet, store: redis.Redis, timeout: float, done: Callable[[], bool], what: str) -> None:
    """The same as ``until``, but a worker that has ended is a failure at once. A failure says what is left."""
    try:
        until(lambda: done() or not alive(fleet), timeout, what)
        assert alive(fleet), f"a worker has ended before {what}"
    except AssertionError as error:
        left = {queue: (store.llen(queue), store.lrange(queue, -2, -1)) for queue in ("celery", "celery.throttled")}
        exits = [worker.poll() for worker in fleet.workers]
        logs = "\n".join(fleet.log(index)[-2000:] for index in range(len(exits)))
        raise AssertionError(f"{error}; {exits=}, {left=}, unacked={store.hgetall('unacked')}\n{logs}") from None


@pytest.mark.slow
def test_generated_messages_on_redis_stop_no_worker_and_no_task(new_fleet: NewFleet, store: redis.Redis) -> None:
    """Generated ones, raw, in the queue of real workers, mixed with good ones: these run, and nothing stays."""
    with falling(new_fleet, rate="20/s") as fleet:
        fleet.start(number=2)
        good = 0
        for number, message in enumerate(generated(MESSAGES)):
            store.lpush("celery", redis_form(message, "celery"))
            if number % 5 == 0:
                fleet.send("good", good)
                good += 1
        patience = 8 + MESSAGES / 25  # three times that is less than pytest's time-out
        wait = partial(until_or_dead, fleet, store, patience)
        wait(lambda: not store.exists("celery", "celery.throttled"), "every message being taken")
        fleet.send_each("good", range(good, good + 20))  # each worker is still at it
        good += 20
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
    with falling(new_fleet, rate="20/s", broker=broker.url) as fleet:
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
                message = channel.prepare_message(body, priority, "application/json", "utf-8", headers, options)
                channel.basic_publish(message, exchange="", routing_key="celery")
                sent += 1
            except Exception:  # AMQP cannot say that, or its server will not hear it
                connection.close()
                connection = kombu.Connection(broker.url, transport_options={"confirm_publish": True})
            if number % 5 == 0:
                fleet.send("good", good)
                good += 1
        connection.close()
        assert sent > MESSAGES / 6
        fleet.send("good", good)
        until(lambda: set(range(good + 1)) <= {s.index for s in fleet.starts()}, 90)
        assert alive(fleet)
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


def test_unforeseen_errors_and_unreadable_parked_messages_end_only_their_tasks(
    new_fleet: NewFleet, store: redis.Redis
) -> None:
    """At any step of the gate: tasks behind it in its queue or lot go on, and its leases are released."""
    with new_fleet(rate="20/s", app="tests.apps.injected") as fleet:
        name = "tests.apps.fleet.retry"
        for id, text in (("broken@celery", "{"), ("odd@celery", '{"to": 1}')):
            park_one(backlog_of(fleet.sender), LimitRequest(Limit("20/s", name=name), name), id, text)
        fleet.start()
        results, index = {}, 0
        for step in STEPS:
            for kind, more in (("retry", ()), ("wait", ()), ("place", (0.01,)), ("patient_place", (0.01,))):
                result = results[f"{step}-{kind}"] = fleet.send(kind, -1, *more, task_id=f"{step}-{kind}")
                if step == "ask":  # alone: of several that ask together it happens to the first
                    until(result.ready, 20, f"the end of {result.id}")
                fleet.send_each(kind, range(index, index + 3), *more)
                index += 3
        good = set(range(index))
        until(lambda: good <= {start.index for start in fleet.starts()}, 60, "every good task")
        until(lambda: not store.exists("celery", "celery.throttled", "unacked"), 20, "every message being let go")
        assert alive(fleet)
        for each in ("ask-retry", "ask-wait", "ask-place", "start-retry", "start-place", "grant-patient_place"):
            with pytest.raises(ZeroDivisionError, match="at "):
                results[each].get(timeout=10)
        log = fleet.log()
        assert log.count("[ask-retry] cannot go on: ZeroDivisionError('at ask')") == 1
        assert "Unrecoverable" not in log
        for text in ("could not be published", "broken@celery", "odd@celery"):
            assert text in log
        # All three places are free again: as many more tasks run as hold one at once.
        fleet.send_each("place", range(index, index + 6), 0.01)
        until(lambda: set(range(index + 6)) <= {start.index for start in fleet.starts()}, 20, "places")
        until(lambda: store.zcard("ratelimit:v1:{places}::leases") == 0, 10, "every place being given back")
        store.flushall()  # what is unreadable stays


@pytest.mark.slow
def test_returned_message_with_cc_header_is_not_copied_again(new_fleet: NewFleet, broker: Broker) -> None:
    """RabbitMQ also sends a message to the queues in its header ``CC``, by every publisher."""
    with falling(new_fleet, broker=broker.url) as fleet:
        fleet.start("-Q", "celery,other")
        fleet.send_each("of_tenant", range(10), "a", headers={"CC": ["other"]})
        fleet.wait_for(20, 30)
        assert "throttled by" in fleet.log()
        fleet.stop()
        assert Counter(start.index for start in fleet.starts()) == dict.fromkeys(range(10), 2)
        assert broker.ready("celery", "other", "celery.throttled", "other.throttled") == 0
