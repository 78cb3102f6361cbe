"""Amazon SQS: return queues, FIFO queues and visibility timeouts, with workers on moto's server.

Unlike SQS, moto refuses a deduplication id only while the message with it is in its queue, waits for whole seconds, and
checks no rights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from celery import Celery
from moto.server import ThreadedMotoServer

from celery_ratelimit._celery import BrokerDidNotAnswer, message_counts, query_workers, visibility_timeouts_of
from celery_ratelimit.operations.setup_checks import InformationalFinding, check_settings, check_workers
from tests.fleet_of import Fleet, NewFleet, assert_never_over, until

REGION = {"region": "us-east-1", "is_secure": False}


class SQS:
    """An account without queues."""

    def __init__(self, port: int) -> None:
        self.url = f"sqs://test:test@127.0.0.1:{port}//"
        login = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        self.client: Any = boto3.client("sqs", endpoint_url=f"http://127.0.0.1:{port}", **login)

    def make(self, name: str, visibility: int = 300) -> str:
        attributes = {"VisibilityTimeout": str(visibility), **({"FifoQueue": "true"} if ".fifo" in name else {})}
        return str(self.client.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def urls(self) -> list[str]:
        return list(self.client.list_queues().get("QueueUrls", []))

    def names(self) -> set[str]:
        return {url.rsplit("/", 1)[1] for url in self.urls()}

    def left(self) -> int:
        """Messages in all queues, also those that a worker has."""
        asked = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answers = [self.client.get_queue_attributes(QueueUrl=url, AttributeNames=asked) for url in self.urls()]
        return sum(int(value) for answer in answers for value in answer["Attributes"].values())


@pytest.fixture(scope="module")
def moto() -> Iterator[int]:
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    yield running.get_host_and_port()[1]
    running.stop()


@pytest.fixture
def sqs(moto: int) -> Iterator[SQS]:
    account = SQS(moto)
    yield account
    for url in account.urls():
        account.client.delete_queue(QueueUrl=url)


def fleet_on(new_fleet: NewFleet, sqs: SQS, *predefined: str, **more: Any) -> Fleet:
    """Workers that may use no other queue than ``predefined``, which are made now; if none is given, any queue."""
    options: dict[str, Any] = {**REGION, "wait_time_seconds": 1, "polling_interval": 0.1}
    if predefined:
        options["predefined_queues"] = {name: {"url": sqs.make(name)} for name in predefined}
    return new_fleet(broker=sqs.url, broker_transport_options=options, **more)


def test_return_queues_of_predefined_queues(new_fleet: NewFleet, sqs: SQS) -> None:
    """Where a queue has none, its throttled tasks return by the queue itself, and one warning says so."""
    with fleet_on(new_fleet, sqs, "jobs", "mails", "mails-throttled", rate="2/s") as fleet:
        fleet.start("-Q", "jobs,mails")
        for index in range(6):
            fleet.send("retry", index, queue="jobs")
            fleet.send("late", 6 + index, queue="mails")
        fleet.wait_for(12, 20)
        until(lambda: sqs.left() == 0, 10, "the last acknowledgement")
        assert sorted(start.index for start in fleet.starts()) == list(range(12))
        assert_never_over(fleet.permits(), 4, burst=2)
        assert fleet.sent_back() > 0
        assert fleet.log().count("'jobs-throttled' is not at the broker") == 1
        assert "'mails-throttled'" not in fleet.log()
        (found,) = check_settings(fleet.sender)
        assert "predefined_queues lack 'jobs-throttled'" in found
        assert [type(note) for note in check_workers(fleet.sender)] == [InformationalFinding]


def test_return_queue_is_made_when_a_task_needs_it(new_fleet: NewFleet, sqs: SQS) -> None:
    with fleet_on(new_fleet, sqs, rate="2/s") as fleet:
        fleet.start()
        assert sqs.names() == {"celery"}
        assert message_counts(fleet.sender, ["celery", "celery-throttled"]) == {"celery": 0, "celery-throttled": 0}
        with pytest.raises(BrokerDidNotAnswer, match="no remote control"):
            query_workers(fleet.sender, "ping", 1)
        assert sqs.names() == {"celery"}
        fleet.send_each("retry", range(6))
        fleet.wait_for(6, 20)
        until(lambda: sqs.left() == 0, 10, "the last acknowledgement")
        assert sorted(start.index for start in fleet.starts()) == list(range(6))
        assert sqs.names() == {"celery", "celery-throttled"}


def test_visibility_timeout(new_fleet: NewFleet, sqs: SQS) -> None:
    """The queue's own counts: of 15 s a message is held for 6, then sent back; to SQS that is no duplicate of it."""
    for queue in ("jobs", "jobs.fifo"):
        sqs.make(queue, visibility=15)
    with fleet_on(new_fleet, sqs, rate="1/3s") as fleet:
        for index in range(4):
            fleet.send("wait", index, queue="jobs")
            fleet.send("retry", 4 + index, queue="jobs.fifo", MessageGroupId="a", MessageDeduplicationId=str(index))
        fleet.start("-Q", "jobs,jobs.fifo", number=2)
        fleet.wait_for(8, 20)
        until(lambda: sqs.left() == 0, 10, "the last acknowledgement")
        assert sorted(start.index for start in fleet.starts()) == list(range(8))
        assert sqs.names() == {"jobs", "jobs-throttled", "jobs.fifo"}


def test_order_of_a_message_group(new_fleet: NewFleet, sqs: SQS) -> None:
    """A worker that has one message at a time starts a group in order, also tasks without a limit."""
    sqs.make("jobs.fifo")
    with fleet_on(new_fleet, sqs, rate="1/2s") as fleet:
        for index in range(3):
            for name in ("retry", "plain"):
                fleet.send(name, index, queue="jobs.fifo", MessageGroupId="a")
        fleet.start("-Q", "jobs.fifo", "-c1", "--prefetch-multiplier=1")
        fleet.wait_for(6, 20)
        assert [start.index for start in fleet.starts()] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(("given", "shortest", "longest"), [(None, 30, 1800), (60, 60, 60)])
def test_visibility_timeout_that_cannot_be_read(
    given: int | None, shortest: int, longest: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the one of the settings; else what SQS, or kombu, gives a queue."""
    options = {**REGION, "visibility_timeout": given, "client-config": {"retries": {"total_max_attempts": 1}}}
    with Celery("app", broker="sqs://test:test@127.0.0.1:1//", set_as_current=False) as app:
        app.conf.broker_transport_options = options
        assert visibility_timeouts_of(app) == [shortest, longest]
    assert caplog.text.count("Grant sqs:GetQueueAttributes, or set visibility_timeout") == 1
