"""Each outcome of throttling has a log line, an event and a signal; monitors see how a task ended."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from celery_ratelimit import Limiter, Throttled
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.conftest import PATIENT
from tests.fleet_of import Fleet, errors, until
from tests.integration.worker.test_message_features import monitored

NAME = "tests.apps.fleet"


def line_of(fleet: Fleet, result: AsyncResult) -> list[str]:
    """What the log says of a task's throttling."""
    return re.findall(rf"{result.id}\] (throttled .*)", fleet.log())


def test_each_outcome_has_a_line_an_event_and_a_signal_and_monitors_see_its_end(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with Fleet(server, tmp_path, rate="1/h") as fleet, monitored(fleet) as (state, seen):
        fleet.start("-E")
        until(lambda: "w0@test" in state.workers, 20, "an event of the worker")
        first: dict[str, Any] = {
            "retry": (0,),
            "wait": (0,),
            "drop": (0,),
            "fail": (0,),
            "overflowing": (0,),
            "impatient_tenant": (0, "ann"),
        }
        for task, args in first.items():
            assert fleet.send(task, *args).get(timeout=60) == 0
        link = {"link_error": fleet.sender.signature(f"{NAME}.other", (7,), immutable=True)}
        results = {task: fleet.send(task, *args, **(link if task == "fail" else {})) for task, args in first.items()}
        for task in ("fail", "impatient_tenant"):
            with pytest.raises(Throttled) as caught:
                results[task].get(timeout=60)
            assert 3000 < caught.value.retry_after <= 3600
            assert results[task].state == "FAILURE"
        assert "a permit is free in 3" in str(caught.value)
        assert str(caught.value).endswith(", beyond max_wait=2 s")
        with pytest.raises(TaskRevokedError, match=r"by limit 'tests\.apps\.fleet\.drop': a permit is free in 3"):
            results["drop"].get(timeout=60)
        expected = {
            "retry": ("parked", r" \(1/h\): parked, its turn is in 3\d+\.\d+ s"),
            "wait": ("returned", r" \(1/h\): sent back, its turn is in 3\d+\.\d+ s"),
            "drop": ("dropped", r" \(1/h\): dropped, a permit is free in 3\d+\.\d+ s"),
            "fail": ("failed", r" \(1/h\): failed, a permit is free in 3\d+\.\d+ s"),
            "overflowing": (
                "diverted",
                r" \(1/h\): sent on to queue 'later', as its turn would be in 3\d+\.\d+ s, beyond max_wait=1 s",
            ),
            "impatient_tenant": (
                "failed",
                r" \(1/h, key 'tenant:ann'\): failed, as its turn would be in 3\d+\.\d+ s, beyond max_wait=2 s",
            ),
        }
        until(lambda: len(fleet.signals()) == len(expected), 20, "the signals")
        for task, (outcome, said) in expected.items():
            (line,) = line_of(fleet, results[task])
            # A busy worker comes to it a moment later, and says so.
            at_once = re.sub(r" after [\d.]+ s of waiting", "", line)
            assert re.fullmatch(rf"throttled by limit '{NAME}\.{task}'{said}", at_once), line
            (signal,) = [signal for signal in fleet.signals() if results[task].id in signal]
            key = "tenant:ann" if task == "impatient_tenant" else ""
            assert signal.split(" ")[3:] == [f"{NAME}.{task}", outcome, key]
            until(lambda id=results[task].id: "task-throttled" in dict(seen[id]), 10, f"the event of {task}")
            shown = vars(state.tasks[results[task].id])
            assert (shown["outcome"], shown["rate"], shown["key"]) == (outcome, "1/h", key)
            assert shown["reason"].startswith("throttled by limit")
        until(lambda: 7 in [start.index for start in fleet.starts()], 10, "link_error")
        results["retry"].revoke()
        for task in ("drop", "retry"):
            until(lambda id=results[task].id: state.tasks[id].state == "REVOKED", 20, f"the end of {task}")
            until(lambda id=results[task].id: id not in str(store.hvals("unacked")), 5, f"acknowledgement of {task}")
        kinds = {kind for events in seen.values() for kind, _ in events}
        assert not kinds & {"task-retried", "task-rejected"}
        assert not errors(fleet.log())
        for bad in ("Traceback", "Retry in", "WARNING"):
            assert bad not in fleet.log().split("ready.")[1], bad


def test_forecast_of_a_parked_task_includes_the_costs_ahead_of_it(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    """20 tasks of 500 permits behind one, at 100/s: each waits 5 s more than the one before, and the last 95 s."""
    dear = {"rate": "100/s", "burst": 500, "cost": 500, "name": "dear"}
    with Fleet(server, tmp_path, install=True, ratelimit_tasks={"*.plain": dear}) as fleet:

        @fleet.sender.task(name=f"{NAME}.plain")  # the sender knows the limit, too
        def plain(index: int) -> None: ...

        results = [fleet.send("plain", index) for index in range(21)]
        fleet.start("-c", "1")
        before = time.monotonic()
        until(lambda: [lot.parked for lot in fleet.parking_lots().lots()] == [20], 20, "parking")
        (lot,) = fleet.parking_lots().lots()
        assert 95 - (time.monotonic() - before) <= lot.drains_in <= 95, "less the time since the first one was parked"
        until(lambda: fleet.log().count(": parked, its turn is in") == 20, 10, "lines")
        turns = [float(turn) for turn in re.findall(r": parked, its turn is in (\S+) s", fleet.log())]
        assert len(results) == 21
        assert [round(turn - turns[0]) // 5 for turn in turns] == pytest.approx(range(20), abs=1)


def test_outage_is_a_few_log_lines_and_every_task_runs_once(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    """Lines about single tasks are Celery's own."""
    with embedded_server() as limits, Fleet(server, tmp_path, ratelimit_url=limits.url, rate="50/s") as fleet:
        fleet.start("-l", "INFO")
        assert fleet.send("retry", 0).get(timeout=60) == 0
        limits.kill()
        for index in range(1, 101):
            fleet.send(("retry", "wait")[index % 2], index)
        until(lambda: fleet.sent_back() >= 20, 20, "tasks that come back")
        limits.start()
        assert sorted(start.index for start in fleet.wait_for(101, 60)) == list(range(101))
        during = fleet.log().partition("ready.")[2].partition("The limiter's store is back")[0].splitlines()
        assert len([line for line in during if not re.search(r"received$|succeeded in", line)]) < 10, during
        assert fleet.log().count("the limiter's store did not serve a request") == 1
        assert fleet.log().count("The limiter's store is back after") == 1
        assert "throttled while" not in fleet.log()
        assert len([signal for signal in fleet.signals() if " None " in signal]) >= 5, "observers are told"


def test_limit_that_does_not_fit_a_task_fails_it_with_one_log_line(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    """Which tasks come by a queue is not known when a worker starts. What a user's own key raises has its traceback."""
    with Fleet(server, tmp_path, ratelimit_queues={"emails": {"rate": "1/s", "key": "{tenant}"}}) as fleet:
        fleet.start("-Q", "emails")
        result = fleet.send("plain", 1, queue="emails")
        with pytest.raises(Exception, match=r"key='\{tenant\}' of limit 'emails' names the argument 'tenant'"):
            result.get(timeout=60)
        assert fleet.log().count("cannot be rate limited") == 1
        assert "Traceback" not in fleet.log()


def test_log_line_names_the_rate_in_force_and_its_author(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    """Also of what is parked behind others, for which no decision was asked."""
    name = f"{NAME}.retry"
    limiter = Limiter.from_url(server.url + PATIENT)
    with Fleet(server, tmp_path, rate="1/h") as fleet:
        fleet.start()
        results = [fleet.send("retry", index) for index in range(3)]
        until(lambda: all(line_of(fleet, each) for each in results[1:]), 20, "two lines")
        assert all(f"'{name}' (1/h): " in line_of(fleet, each)[0] for each in results[1:])
        limiter.set_rate(name, "2/h", by="anna", force=True)

        def said() -> str:
            result = fleet.send("retry", 9)
            until(lambda: line_of(fleet, result), 20, "a line")
            return str(line_of(fleet, result)[0])

        until(lambda: f"'{name}' (1/h in code, 2/h set by anna): parked, " in said(), 20, "the author")
        limiter.unset_rate(name, force=True)
        until(lambda: f"'{name}' (1/h): parked, " in said(), 20, "the code's rate")
