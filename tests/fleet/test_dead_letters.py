"""Dead letters, bounds and times to live of RabbitMQ hold for tasks that were throttled, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kombu import Exchange, Queue

from tests.fleet_of import NewFleet, assert_never_over, until
from tests.rabbitmq import Broker, RabbitMQ, needs_quorum_queues

APP = "tests.apps.rejecting"
REJECTED = "tests.apps.rejecting.rejected"


def bound(broker: Broker, kind: str, key: str, **arguments: Any) -> None:
    """A dead-letter exchange ``dlx`` and a queue ``dead`` that gets what has this routing key."""
    with broker.channel() as channel:
        Queue("dead", Exchange("dlx", kind), key, queue_arguments=arguments)(channel).declare()


def dead_letters(broker: Broker) -> list[Any]:
    with broker.channel() as channel:
        return list(iter(Queue("dead")(channel).get, None))


def conf(queue: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    queues = {"jobs": {**queue, "queue_arguments": {"x-dead-letter-exchange": "dlx", **arguments}}}
    return {"task_queues": queues, "task_default_queue": "jobs"}


DIRECT = {"exchange": "shop", "exchange_type": "direct", "routing_key": "charge"}
TOPIC = {"exchange": "shop", "exchange_type": "topic", "routing_key": "order.#"}


@pytest.mark.parametrize(
    ("queue", "arguments", "dlx", "sent", "key"),
    [
        pytest.param(DIRECT, {}, "direct", "charge", "charge", id="direct"),
        pytest.param(TOPIC, {"x-max-priority": 3}, "topic", "order.new.eu", "order.new.eu", id="topic"),
        pytest.param(
            *(DIRECT, {"x-dead-letter-routing-key": "gone"}, "direct", "charge", "gone"),
            id="key of the queue",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(TOPIC, {"x-queue-type": "quorum", "x-delivery-limit": 3}, "topic", "order.new", "order.new"),
            id="quorum",
            marks=[pytest.mark.slow, needs_quorum_queues],
        ),
        pytest.param(TOPIC, None, "topic", "order.new", "order.new", id="policy", marks=pytest.mark.slow),
    ],
)
def test_a_task_that_is_rejected_after_its_return_is_a_dead_letter_as_any(
    new_fleet: NewFleet,
    rabbitmq: RabbitMQ,
    queue: dict[str, Any],
    arguments: dict[str, Any] | None,
    dlx: str,
    sent: str,
    key: str,
) -> None:
    broker = rabbitmq.broker()
    bound(broker, dlx, key)
    settings = conf(queue, **(arguments or {}))
    if arguments is None:  # it sets the dead-letter exchange, which no worker knows of
        settings["task_queues"]["jobs"] = queue
        host, policy = broker.url.rpartition("/")[2], json.dumps({"dead-letter-exchange": "dlx"})
        rabbitmq.ctl("set_policy", "-p", host, "dead", r"^jobs(\.throttled)?$", policy)
    with new_fleet(rate="20/s", app=APP, broker=broker.url, **settings) as fleet:
        fleet.start()
        for index in range(40):
            fleet.send(REJECTED, index, exchange="shop", routing_key=sent, priority=index % 3)
        fleet.wait_for(40, 20)
        assert_never_over(fleet.permits(), 20)
        until(lambda: broker.ready("dead") >= 40, 10, "40 dead letters")
        assert fleet.sent_back() >= 30, "most of them were throttled"
        letters = dead_letters(broker)
        assert len(letters) == 40
        for letter in letters:
            assert letter.delivery_info["routing_key"] == key
            (death,) = letter.headers["x-death"]
            assert (death["reason"], death["routing-keys"]) == ("rejected", [sent])


def test_a_dead_letter_that_comes_back_to_its_queue_is_run(new_fleet: NewFleet, broker: Broker) -> None:
    """As people delay a retry: by a queue that nothing consumes, whose messages expire into the first one."""
    back = {"x-message-ttl": 500, "x-dead-letter-exchange": "shop"}
    bound(broker, "direct", "charge", **back)
    with new_fleet(rate="20/s", app=APP, broker=broker.url, **conf(DIRECT)) as fleet:
        fleet.start()
        fleet.send_each("tests.apps.rejecting.second_time", range(30), exchange="shop", routing_key="charge")
        until(lambda: len(fleet.starts()) >= 60, 20, "each a second time")
        assert sorted(start.index for start in fleet.starts()) == sorted([*range(30), *range(30)])
        assert_never_over(fleet.permits(), 20)
        fleet.stop()
        assert broker.ready("jobs", "jobs.throttled", "dead") == 0


@pytest.mark.slow
def test_a_dead_letter_is_throttled_by_the_queue_that_it_has_come_to(new_fleet: NewFleet, broker: Broker) -> None:
    settings = conf(DIRECT)
    settings["task_queues"]["dead"] = {"exchange": "dlx", "exchange_type": "direct", "routing_key": "charge"}
    with new_fleet(rate="20/s", app=APP, broker=broker.url, **settings) as fleet:
        fleet.start("-Q", "jobs")
        fleet.start("-Q", "dead")
        fleet.send_each("tests.apps.rejecting.second_time", range(30), exchange="shop", routing_key="charge")
        until(lambda: len(fleet.starts()) >= 60, 20, "each a second time")
        until(lambda: fleet.log(1).count("succeeded") >= 30, 20, "the end of the last one")
        assert fleet.log(1).count("succeeded") == 30
        assert fleet.log(0).count("succeeded") == 0


def test_a_task_finds_the_routing_key_that_it_was_sent_with(
    new_fleet: NewFleet, broker: Broker, tmp_path: Path
) -> None:
    with new_fleet(rate="5/s", broker=broker.url, **conf(TOPIC)) as fleet:
        results = [fleet.send("whole", exchange="shop", routing_key=f"order.{n}", priority=1) for n in range(10)]
        fleet.start()
        paths = [tmp_path / f"{result.id}.request" for result in results]
        until(lambda: all(path.exists() for path in paths), 20, "every task's request")
        found = [json.loads(path.read_text())["delivery_info"] for path in paths]
        assert [(each["exchange"], each["routing_key"]) for each in found] == [
            ("shop", f"order.{n}") for n in range(10)
        ]
        assert "parked" in fleet.log()


@pytest.mark.parametrize("broker_of", [pytest.param("server", marks=pytest.mark.slow), "broker"])
def test_a_queue_that_expires_is_its_own_return_queue(
    new_fleet: NewFleet, request: pytest.FixtureRequest, broker_of: str
) -> None:
    """Another one would be left behind, or be deleted with what is in it."""
    queues = {"task_queues": {"jobs": {**DIRECT, "queue_arguments": {"x-expires": 60_000}}}}
    url = request.getfixturevalue(broker_of).url
    with new_fleet(rate="20/s", broker=url, task_default_queue="jobs", **queues) as fleet:
        fleet.start()
        fleet.send_each("retry", range(30))
        fleet.wait_for_each(range(30), 20)
        assert_never_over(fleet.permits(), 20)
        if broker_of == "broker":
            assert not request.getfixturevalue("broker").has("jobs.throttled")


# -- Bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overflow", ["drop-head", pytest.param("reject-publish", marks=pytest.mark.slow)])
def test_a_return_queue_has_no_length(new_fleet: NewFleet, broker: Broker, overflow: str) -> None:
    """Its queue's would drop, or refuse, what returns while no worker takes it."""
    bounds = {"x-max-length": 5, "x-overflow": overflow}
    with new_fleet(rate="5/s", broker=broker.url, **conf(DIRECT, **bounds)) as fleet:
        fleet.send_each("retry", range(5))
        fleet.start(number=2)
        fleet.wait_for(5, 20)
        until(lambda: broker.has("jobs.throttled"), 10, "the return queue")
        with broker.channel() as channel:
            declared = Queue(
                "jobs.throttled", queue_arguments={"x-dead-letter-exchange": "dlx", "x-overflow": overflow}
            )
            declared(channel).queue_declare()  # refused, if it had another argument


@pytest.mark.parametrize(
    ("arguments", "expiration", "pool"),
    [
        pytest.param({"x-message-ttl": 3000}, None, "prefork", id="of the queue"),
        pytest.param({}, 2, "prefork", id="its own"),
        pytest.param({}, 2, "threads", id="its own, threads", marks=pytest.mark.slow),
    ],
)
def test_a_parked_task_ends_by_the_time_to_live_of_its_queue_or_its_own(
    new_fleet: NewFleet, broker: Broker, arguments: dict[str, Any], expiration: int | None, pool: str
) -> None:
    bound(broker, "direct", "charge")
    with new_fleet(rate="5/s", broker=broker.url, **conf(DIRECT, **arguments)) as fleet:
        fleet.start("-P", pool)
        for index in range(60):
            brief = {"expiration": expiration} if expiration and index >= 30 else {}
            fleet.send("retry", index, exchange="shop", routing_key="charge", **brief)
        until(lambda: fleet.started() + broker.ready("dead") >= 60, 30, "an end of each")
        started, letters = fleet.started(), dead_letters(broker)
        assert started + len(letters) == 60
        assert started < 40, "the rest would have been run after seconds"
        assert {start.index for start in fleet.starts()} >= set(range(30 if expiration else 0))
        assert {letter.delivery_info["routing_key"] for letter in letters} == {"charge"}
        until(lambda: not any(lot.parked for lot in fleet.parking_lots().lots()), 10, "no task being parked")
        assert "Traceback" not in fleet.log()
