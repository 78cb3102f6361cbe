"""Return queues follow their queues, are declared like them, and are consumed although the prefetch is full."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import celery
import kombu
import pytest
import redis
from kombu import Exchange

from celery_ratelimit.backlog.backlog import backlog_of
from celery_ratelimit.operations.setup_checks import check_workers
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, NewFleet, assert_never_over, until
from tests.rabbitmq import Broker, RabbitMQ

APP = "tests.apps.returning"
RETRY = "tests.apps.fleet.retry"


def done_by(fleet: Fleet, index: int) -> list[str]:
    return sorted(re.findall(r"\[([0-9a-f-]{36})\] succeeded", fleet.log(index)))


def received(fleet: Fleet, id: str, index: int = 0) -> int:
    return fleet.log(index).count(f"[{id}] received")


# -- Split workers -----------------------------------------------------------------------------------------------------

QUORUM = {"x-queue-type": "quorum"} if celery.VERSION[:2] >= (5, 5) else {}
#: As people have them: one with priorities, one of the other type.
SPLIT: dict[str, Any] = {
    "task_queues": {
        "a": {"exchange": "a", "routing_key": "a", "queue_arguments": {"x-max-priority": 5}},
        "b": {"exchange": "b", "exchange_type": "topic", "routing_key": "b", "queue_arguments": QUORUM},
    },
    "task_default_queue": "a",
    "ratelimit_quotas": {"shared": "60/s"},
    "ratelimit_tasks": {"tests.apps.fleet.plain": "shared"},
}


def send_to_both(fleet: Fleet, number: int) -> dict[str, list[str]]:
    sent: dict[str, list[str]] = {"a": [], "b": []}
    for index in range(number):
        for queue, ids in sent.items():
            ids.append(fleet.send("plain", index if queue == "a" else -1 - index, queue=queue, priority=index % 5).id)
    return {queue: sorted(ids) for queue, ids in sent.items()}


def test_each_worker_runs_tasks_of_its_own_queue_only(new_fleet: NewFleet, broker: Broker) -> None:
    """Each worker returns parked tasks of the shared quota, also tasks of the other worker's queue."""
    with new_fleet(broker=broker.url, install=True, **SPLIT) as fleet:
        for queue in ("a", "b"):
            fleet.launch("-Q", queue)
        fleet.start(number=0)
        sent = send_to_both(fleet, 120)
        fleet.wait_for(240, 40)
        until(lambda: all(done_by(fleet, n) == sent[queue] for n, queue in enumerate("ab")), 20, "each by its own")
        assert_never_over(fleet.permits(), 60)
        for index in (0, 1):
            assert "PreconditionFailed" not in fleet.log(index)
            assert "Traceback" not in fleet.log(index)
        fleet.stop()
        assert broker.ready("a", "b", "a.throttled", "b.throttled") == 0


def test_tasks_wait_until_their_return_queue_is_declared(new_fleet: NewFleet, broker: Broker) -> None:
    """Its own worker declares it. Until then its tasks stay where they are, and the others go on."""
    with new_fleet(broker=broker.url, install=True, **SPLIT) as fleet:
        fleet.start("-Q", "a,b")
        fleet.kill(0)
        fleet.workers.clear()
        for queue in ("a.throttled", "b.throttled"):
            broker.delete(queue)
        fleet.launch("-Q", "b")
        until(lambda: broker.consumers("b") == 1, 20, "the worker")
        sent = send_to_both(fleet, 30)
        until(lambda: done_by(fleet, 0) == sent["b"], 20, "all of its own")
        assert broker.ready("a") == 30
        assert "Traceback" not in fleet.log(0)


@pytest.mark.slow
def test_return_queue_with_other_arguments_is_used(new_fleet: NewFleet, broker: Broker) -> None:
    """Left by a queue that was declared anew, or declared by an operator."""
    with new_fleet(rate="20/s", broker=broker.url, **{**SPLIT, "ratelimit_tasks": {}}) as fleet:
        broker.declare("a.throttled")
        fleet.start("-Q", "a")
        fleet.send_each("retry", range(30), queue="a")
        fleet.wait_for(30, 20)
        assert "other arguments" in fleet.log()
        assert "Traceback" not in fleet.log()
        fleet.stop()
        assert broker.ready("a", "a.throttled") == 0


def test_worker_consumes_only_configured_queues(new_fleet: NewFleet, broker_url: str) -> None:
    queues = {name: {"exchange": name} for name in ("a", "gpu", "later")}
    conf = {"task_queues": queues, "task_create_missing_queues": False}
    with new_fleet(rate="20/s", broker=broker_url, task_default_queue="a", **conf) as fleet:
        fleet.start("-Q", "a")
        fleet.send_each("retry", range(30), queue="a")
        fleet.wait_for(30, 10)
        assert "Traceback" not in fleet.log()
        assert [queue["name"] for queue in fleet.asked("active_queues")] == ["a"], "what Celery says of the worker"


def test_return_queue_is_declared_with_the_first_throttled_task_of_any_worker(
    new_fleet: NewFleet, broker: Broker
) -> None:
    """What another worker sends back when it is full is for these, which have throttled nothing of its queue."""
    with new_fleet(rate="10/s", broker=broker.url) as fleet:
        fleet.start("-Q", "celery,others", number=2)
        backlog_of(fleet.sender).register.seen((), [("others.throttled", "others")])
        for index in range(20):
            fleet.send("wait", index)
            fleet.send("plain", 100 + index)
        fleet.wait_for(40, 20)
        assert not broker.has("celery.throttled"), "no task has needed it"
        fleet.send_each("retry", range(200, 230))
        fleet.wait_for(70, 20)
        until(lambda: broker.consumers("celery.throttled") == 2, 10, "both workers consume it")
        until(lambda: broker.consumers("others.throttled") == 2, 25, "their consuming the other one's return queue")
        fleet.kill(0)
        fleet.kill(1)
        fleet.workers.clear()
        fleet.start()
        assert broker.consumers("celery.throttled") == 1, "it is there already"


@pytest.mark.parametrize(
    ("topology", "why"),
    [
        ("none", "no right"),
        ("exchange", "no right"),
        pytest.param("none", "no new queues", marks=pytest.mark.slow),
        pytest.param("queue", "no new queues", marks=pytest.mark.slow),
    ],
)
def test_tasks_return_where_no_queue_may_be_declared(
    new_fleet: NewFleet, broker: Broker, topology: str, why: str
) -> None:
    """By a return queue that others have made, else by their own queue."""
    queues = {name: {"exchange": name} for name in ("jobs", "later")}
    conf: dict[str, Any] = {"task_queues": queues, "task_default_queue": "jobs"}
    if topology != "none":
        broker.declare("jobs.throttled")
    if topology == "exchange":
        broker.bind("jobs.throttled", "jobs.throttled.fanout")
    if why == "no new queues":
        conf["task_create_missing_queues"] = False
    url = broker.locked_url if why == "no right" else broker.url
    with new_fleet(rate="20/s", broker=url, **conf) as fleet:
        fleet.start("-Q", "jobs", number=2)
        fleet.send_each("wait", range(10))
        fleet.wait_for(10, 20)
        assert "return queue" not in fleet.log(0), "no task has needed it"
        fleet.send_each("retry", range(100, 160))
        fleet.wait_for_each([*range(10), *range(100, 160)], 20)
        assert_never_over([permit for permit in fleet.permits() if permit.index >= 100], 20)
        warned = [fleet.log(index).count("not for this worker") for index in (0, 1)]
        assert sum(warned) in ((1, 2) if topology == "none" else (0,))
        assert max(warned) <= 1
        found = [each for each in check_workers(fleet.sender) if "may not declare the return queue of 'jobs'" in each]
        assert len(found) == sum(warned)
        assert fleet.log(0).count("Traceback") == 0
        assert broker.has("jobs.throttled") == (topology != "none")
        fleet.stop()
        assert broker.ready("jobs", "jobs.throttled") == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "declared", "configure", "write", "read"),
    [
        pytest.param(*("gevent", False, ".*", ".*", r"^(?!.*\.throttled$).*"), id="read of the queue that it declares"),
        pytest.param(
            *("prefork", True, r"^(?!.*\.throttled).*", ".*", r"^(?!.*\.throttled$).*"), id="read of one that is there"
        ),
        pytest.param(*("prefork", False, ".*", r"^(?!.*\.fanout$).*", ".*"), id="write to the exchange"),
    ],
)
def test_tasks_return_by_their_own_queue_without_rights_to_the_return_queue(
    new_fleet: NewFleet, rabbitmq: RabbitMQ, declared: bool, configure: str, write: str, read: str, pool: str
) -> None:
    """Unlimited tasks run as well: the broker closes the connection once, and not for ever.

    RabbitMQ delivers a message again whose acknowledgement was on its way when the connection ended: the tasks that the
    pool's two processes had then may run twice, as without a limit.
    """
    broker = rabbitmq.broker()
    rabbitmq.ctl("set_permissions", "-p", broker.url.rpartition("/")[2], "other", configure, write, read)
    if declared:
        broker.declare("celery.throttled")
    url = broker.url.replace("guest:guest", "other:other")
    with new_fleet(rate="20/s", broker=url) as fleet:
        fleet.send_each("retry", range(30))
        fleet.send("plain", 30)
        fleet.start("-P", pool)
        until(lambda: {start.index for start in fleet.starts()} == set(range(31)), 20, "a start of each task")
        assert len(fleet.starts()) <= 31 + 2
        assert_never_over(fleet.permits(), 20)
        assert fleet.log().count("not for this worker") == 1


def test_tasks_return_by_their_own_queue_at_the_brokers_queue_limit(new_fleet: NewFleet, rabbitmq: RabbitMQ) -> None:
    """The virtual host is full: of its queues the worker's own come first."""
    broker = rabbitmq.broker()
    conf: dict[str, Any] = {"worker_enable_remote_control": False}
    with new_fleet(rate="20/s", broker=broker.url, **conf) as fleet:
        fleet.start("--without-gossip")
        rabbitmq.ctl("set_vhost_limits", "-p", broker.url.rpartition("/")[2], '{"max-queues": 1}')
        fleet.send_each("retry", range(30))
        fleet.wait_for(30, 20)
        assert fleet.log().count("not for this worker") == 1
        assert not broker.has("celery.throttled")


@pytest.mark.slow
def test_overflow_queue_is_declared_when_it_is_missing(new_fleet: NewFleet, broker: Broker) -> None:
    """It is declared as for any sender. (Where none may be declared, the worker does not start.)"""
    conf = {"task_queues": {"celery": {"exchange": "celery", "routing_key": "celery"}}, "task_queue_max_priority": 3}
    with new_fleet(rate="4/s", broker=broker.url, **conf) as fleet:
        results = [fleet.send("overflowing", index, queue="celery") for index in range(20)]
        fleet.start("-Q", "celery")
        until(lambda: broker.ready("later") >= 5, 10, "tasks going to the other queue")
        fleet.start("-Q", "later")
        assert sorted(result.get(timeout=20) for result in results) == list(range(20))
        assert "Traceback" not in fleet.log()


@pytest.mark.slow
def test_release_to_a_missing_queue_keeps_tasks_parked(new_fleet: NewFleet, broker: Broker) -> None:
    with new_fleet(rate="1/h", broker=broker.url) as fleet:
        fleet.send_each("retry", range(5))
        fleet.start()
        until(lambda: [lot.parked for lot in fleet.parking_lots().lots(RETRY)] == [4], 10, "four being parked")
        fleet.kill(0)
        fleet.workers.clear()
        broker.delete("celery.throttled")
        assert fleet.parking_lots().release(RETRY) == 0
        fleet.start()
        until(lambda: fleet.log(0).count("received") >= 4, 30, "all being there still")


# -- What breaks a channel ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "swallowed", "pool"),
    [
        pytest.param("main", 1, (), id="main, swallowed"),
        pytest.param("main", 0, ("-P", "threads"), id="main, read, threads", marks=pytest.mark.slow),
        pytest.param("beside", 1, ("-P", "gevent"), id="beside, swallowed, gevent", marks=pytest.mark.slow),
    ],
)
def test_worker_recovers_from_a_closed_channel(
    new_fleet: NewFleet, broker: Broker, which: str, swallowed: int, pool: tuple[str, ...]
) -> None:
    broker.declare("celery.throttled")
    with new_fleet(rate="20/s", app=APP, broker=broker.url) as fleet:
        fleet.start(*pool)
        fleet.asked("ping")  # else it may not have subscribed to what it is told yet
        fleet.sender.control.broadcast("break_channel", arguments={"which": which, "swallowed": swallowed})
        until(
            lambda: "Trying to re-establish" in fleet.log() or "onnection to broker lost" in fleet.log(), 10, "a loss"
        )
        until(lambda: all(broker.consumers(each) == 1 for each in ("celery", "celery.throttled")), 20, "both again")
        fleet.send_each("retry", range(30))
        fleet.wait_for(30, 20)
        assert sorted({start.index for start in fleet.starts()}) == list(range(30))
        assert fleet.workers[0].poll() is None


# -- They go with their queues -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_return_queues_follow_added_and_cancelled_queues(new_fleet: NewFleet, broker_url: str) -> None:
    with new_fleet(rate="5/s", broker=broker_url) as fleet:
        fleet.start("-Q", "first")
        control = fleet.sender.control
        control.add_consumer("second", reply=True)
        fleet.send_each("retry", range(20), queue="second")
        fleet.wait_for(20, 20)

        fleet.send_each("retry", range(20, 60), queue="second")
        fleet.wait_for(22, 20)
        control.cancel_consumer("second", reply=True)
        until(lambda: "Canceling queue second" in fleet.log(), 10)
        # What it has in its hands comes to its end, a second's worth; the rest waits for a consumer of the queue.
        at_most = fleet.started() + 15
        fleet.send_each("tenant", range(100, 140), "idle", queue="first")
        until(lambda: {start.index for start in fleet.starts()} >= set(range(100, 140)), 20, "the other queue's tasks")
        assert fleet.started() - 40 <= at_most < 60
        control.add_consumer("second", reply=True)
        fleet.wait_for_each([*range(60), *range(100, 140)], 30)


def test_worker_may_consume_a_return_queue_alone(new_fleet: NewFleet, broker_url: str) -> None:
    """Parked tasks return by the queue that it consumes, although the task queue has no consumer yet."""
    with new_fleet(rate="20/s", broker=broker_url) as fleet:
        fleet.start("-Q", "celery.throttled")
        attend = backlog_of(fleet.sender).register.attend
        attend("other", ["celery", "c"], [], 6.0)
        until(lambda: "celery" not in attend("other", ["c"], ["celery"], 6.0), 10, "its saying that it consumes both")
        fleet.start("-Q", "celery")
        fleet.send_each("retry", range(100))
        fleet.wait_for_each(range(100), 30)
        assert_never_over(fleet.permits(), 20)
        assert done_by(fleet, 0), "it has run some of them"
        assert "throttled.throttled" not in fleet.log(0)


@pytest.mark.skipif(kombu.VERSION[:2] < (5, 7), reason="in earlier versions the queues are in random order")
@pytest.mark.parametrize("strategy", ["priority", pytest.param("sorted", marks=pytest.mark.slow)])
def test_queue_order_strategy_does_not_delay_returned_tasks(
    new_fleet: NewFleet, store: redis.Redis, strategy: str
) -> None:
    options = {"queue_order_strategy": strategy}
    with new_fleet(rate="20/s", app=APP, broker_transport_options=options) as fleet:
        ids = [each.id for each in fleet.send_each("retry", range(20), queue="high")]
        fleet.send_each("tests.apps.returning.long", range(100, 180), 0.1, queue="low")
        fleet.start("-c", "1", "-Q", "high,low")
        until(lambda: sum(received(fleet, id) >= 2 for id in ids) >= 17, 30, "what was throttled coming back")
        assert store.llen("low") >= 20, "before the other queue is empty"


# -- What the prefetch is ----------------------------------------------------------------------------------------------


def prefetch_of(fleet: Fleet) -> int:
    return int(fleet.asked("stats")["prefetch_count"])


@pytest.mark.parametrize(
    ("broker_url", "most"),
    [("redis", None), ("redis", 5), pytest.param("rabbitmq", 5, marks=pytest.mark.slow)],
    indirect=["broker_url"],
)
def test_prefetch_count_is_restored_after_throttled_tasks_and_countdowns(
    new_fleet: NewFleet, broker_url: str, most: int | None
) -> None:
    """``worker_eta_task_limit`` bounds how far kombu widens it, but not how far it narrows it again."""
    with new_fleet(rate="20/s", broker=broker_url, worker_eta_task_limit=most) as fleet:
        fleet.start("-c", "4")
        assert prefetch_of(fleet) == 16
        for number, (task, options) in enumerate([("retry", {}), ("plain", {"countdown": 1})], 1):
            fleet.send_each(task, range(20), **options)
            fleet.wait_for(20 * number, 20)
            until(lambda: prefetch_of(fleet) == 16, 10, f"the prefetch count being restored after {task}")


def test_returned_tasks_arrive_beside_a_full_prefetch_and_do_not_widen_it(new_fleet: NewFleet, broker_url: str) -> None:
    """It is not part of the prefetch; Celery would let in a message for each that waits for its countdown."""
    with new_fleet(rate="40/s", app=APP, broker=broker_url) as fleet:
        ids = [fleet.send("retry", index).id for index in range(60)]
        longs = [each.id for each in fleet.send_each("tests.apps.returning.long", range(100, 150), 5.0)]
        fleet.start("-c", "1")
        until(lambda: sum(received(fleet, id) >= 2 for id in ids) >= 40, 20, "what was throttled coming back")
        assert sum(received(fleet, id) for id in longs) <= 8, "one runs, four wait; the same again to be sure"


def test_celerys_own_rate_limit_is_charged_once(new_fleet: NewFleet) -> None:
    """On the first delivery, and not again when a task comes back."""
    with new_fleet(rate="18/s", app=APP) as fleet:
        fleet.send_each("tests.apps.returning.twice_limited", range(30))
        fleet.start()
        fleet.wait_for_each(range(30), 30)
        assert_never_over(fleet.permits(), 18)
        (paid,) = (
            each["paid"] for reply in fleet.sender.control.broadcast("paid", reply=True) for each in reply.values()
        )
        assert paid == 30


# -- Queues that end with their worker ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_exclusive_queues_leave_no_return_queue(
    new_fleet: NewFleet, request: pytest.FixtureRequest, broker_url: str, server: EmbeddedServer, store: redis.Redis
) -> None:
    with new_fleet(rate="10/s", app=APP, broker=broker_url, worker_direct=True) as fleet:
        fleet.env["TEST_BROADCAST"] = "everywhere.one"
        everywhere = Exchange("everywhere", type="fanout")
        fleet.start()
        for index in range(15):
            fleet.send("retry", index, exchange="everywhere", routing_key="celery", declare=[everywhere])
            fleet.send("retry", 100 + index, exchange="C.dq2", exchange_type="direct", routing_key="w0@test")
        fleet.wait_for_each([*range(15), *range(100, 115)], 20)
        assert_never_over(fleet.permits(), 10)
        assert "throttled by" in fleet.log()
        fleet.stop()
        names = ("everywhere.one.throttled", "w0@test.dq2.throttled")
        if broker_url == server.url:
            assert not store.keys("*everywhere.one.throttled*")
            assert not store.keys("*dq2.throttled*")
        else:
            broker: Broker = request.getfixturevalue("broker")
            assert not any(broker.has(name) for name in names)


@pytest.mark.slow
def test_auto_delete_queue_keeps_its_consumer_while_the_limit_is_closed(new_fleet: NewFleet, broker: Broker) -> None:
    """Others are, while their limit is closed for long: with ``throttle="wait"``."""
    with new_fleet(rate="2/s", app=APP, broker=broker.url) as fleet:
        fleet.env["TEST_BROADCAST"] = "everywhere.one"
        everywhere = Exchange("everywhere", type="fanout")
        fleet.start("-c", "4")
        fleet.send_each("wait", range(20), exchange="everywhere", routing_key="celery", declare=[everywhere])
        fleet.wait_for_each(range(20), 20)


# -- The marker --------------------------------------------------------------------------------------------------------


def test_queue_with_the_longest_name_is_its_own_return_queue(new_fleet: NewFleet, broker: Broker) -> None:
    """Its return queue's name would be too long: it is its own."""
    with new_fleet(rate="20/s", broker=broker.url, task_default_queue="ü" * 127) as fleet:
        fleet.send_each("retry", range(30))
        fleet.start()
        fleet.wait_for_each(range(30), 20)
        assert_never_over(fleet.permits(), 20)


def test_user_header_named_ratelimit_is_left_alone(new_fleet: NewFleet, tmp_path: Path) -> None:
    with new_fleet(rate="2/s") as fleet:
        values: list[Any] = ["mine", {"limit": 5}, {"queue": "x"}, None]
        sent = {fleet.send("whole", headers={"ratelimit": own}).id: own for own in values}
        fleet.start()
        until(lambda: all((tmp_path / f"{id}.request").exists() for id in sent), 15, "every task")
        for id, own in sent.items():
            found = json.loads((tmp_path / f"{id}.request").read_text())
            assert found["headers"]["ratelimit"] == own
            assert not [name for name in found["headers"] if name.startswith("celery-ratelimit")]
