"""``celery ratelimit check``: notes and warnings about the settings and the fleet."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from celery import Celery
from kombu import Queue

from celery_ratelimit import Limit, RateLimitedTask
from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.operations.setup_checks import InformationalFinding
from celery_ratelimit.operations.task_checks import check_tasks
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.fleet_of import until
from tests.shop import Run, make_app


@pytest.mark.parametrize("lost", [False, True])
def test_check_of_a_fleet_lists_all_warnings(run: Run, app: Celery, lost: bool) -> None:
    app.conf.ratelimit_quotas = {**app.conf.ratelimit_quotas, "unused": "1/s"}
    app.tasks["shop.charge"].acks_late, app.tasks["shop.charge"].time_limit = True, 7200
    app.conf.ratelimit_tasks = {"shop.charge": [Limit("1/s", burst=50, name="dear", cost=20)]}
    if lost:
        app.conf.ratelimit_url = "redis://:secret@127.0.0.1:1/0"
    else:
        limiter_of(app).set_rate("dear", Limit("1/s", burst=10))
    found = run("check", "--fleet", "--json")
    assert found.exit_code == 1
    said = json.loads(found.stdout)
    assert said["limits"]
    for part in (
        "no task and no queue has the quota 'unused'",
        "task 'shop.charge' has acks_late and may run for 7200 s",
        "no worker has answered",
        "the store at redis://**@127.0.0.1:1/0 does not answer" if lost else "costs 20: none can ever be granted",
    ):
        assert any(part in warning for warning in said["warnings"]), found.output


@pytest.mark.parametrize("tasks", [{}, {"no.such.task.*": "stripe"}])
def test_check_without_a_warning_says_so(run: Run, app: Celery, tasks: dict[str, str]) -> None:
    app.conf.ratelimit_tasks = tasks
    assert ("Nothing looks wrong so far: " in run("check").output) == (not tasks)


def on_rabbitmq(queue: Queue, **options: Any) -> list[str]:
    """What is found in the settings of an app with one limited task in a queue at RabbitMQ, which is not asked."""
    app = Celery("shop", broker="amqp://nowhere", set_as_current=False)
    app.conf.update(task_queues=[queue], task_default_queue=queue.name, ratelimit_url="redis://nowhere")

    @app.task(name="shop.charge", base=RateLimitedTask, shared=False, **{"limits": "1/s", **options})
    def charge(order: int, tenant: str | None = None, **more: Any) -> None: ...

    return list(check_tasks(app))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue_arguments": {"x-max-length": 9}}, "'jobs' has x-max-length: parked tasks do not count"),
        ({"max_length_bytes": 9}, "limited queue 'jobs' has x-max-length-bytes: parked tasks do not count"),
        ({"message_ttl": 9}, "'jobs' has x-message-ttl: a task that waits longer is dead-lettered or dropped"),
    ],
)
def test_bounds_of_a_rabbitmq_queue_are_notes(options: dict[str, Any], says: str) -> None:
    (note,) = on_rabbitmq(Queue("jobs", **options))
    assert isinstance(note, InformationalFinding)
    assert says in note
    assert not on_rabbitmq(Queue("jobs", **options), throttle="drop")
    assert not on_rabbitmq(Queue("jobs", queue_arguments={"x-max-priority": 9}))


@pytest.mark.parametrize(("argument", "needs"), [("tenant", True), ("region", True), ("order", False)])
def test_optional_argument_as_a_key_is_a_note(argument: str, needs: bool) -> None:
    found = on_rabbitmq(Queue("jobs"), limits=Limit("1/s", key=f"{{{argument}}}"))
    assert [isinstance(each, InformationalFinding) for each in found] == [True] * needs
    assert all(f"a call of task 'shop.charge' without '{argument}' fails" in each for each in found)
    for choice in ("error", "exempt", "shared"):
        assert not on_rabbitmq(Queue("jobs"), limits=Limit("1/s", key=f"{{{argument}}}", missing_key=choice))


def test_task_without_the_key_of_its_queues_limit_is_a_warning(app: Celery) -> None:
    app.conf.ratelimit_queues = {"celery": {"rate": "1/s", "key": "{tenant}"}}
    found = [each for each in check_tasks(app) if "task 'shop." in each]
    assert len(found) == 2, "the third task has a tenant"
    for name, warning in zip(("shop.charge", "shop.train"), found, strict=True):
        says = f"in queue 'celery' the task fails: task {name!r}: key='{{tenant}}' of limit 'celery' names the argument"
        assert warning.startswith(says)
        assert not isinstance(warning, InformationalFinding)


def test_lost_or_hung_result_backend_is_a_warning(run: Run, server: EmbeddedServer, store: redis.Redis) -> None:
    def with_backend(url: str) -> Celery:
        app = make_app(server.url)
        app.conf.result_backend = url
        return app

    lost = run("check", "--fleet", of=with_backend("redis://:secret@127.0.0.1:1/0")).output
    assert lost.count("the result backend at redis://**@127.0.0.1:1/0 does not answer") == 1
    assert "secret" not in lost
    with embedded_server() as hung:
        until(lambda: not list(check_tasks(with_backend(hung.url))), 20, "an answer within a second")
        hung.freeze()
        (said,) = check_tasks(with_backend(hung.url))
        assert "does not answer (nothing within 1 s), and no task ends before it does" in said
