"""What an operator asks of a fleet that works: where its tasks are, and limits by Celery's remote control."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from celery import Celery
from click.testing import CliRunner, Result

from celery_ratelimit import Limit, Limiter, ParkingLots
from celery_ratelimit.cli import ratelimit
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.fleet_of import NewFleet, until

NAME = "tests.apps.fleet.retry"


def run(app: Celery, *arguments: str) -> Result:
    return CliRunner().invoke(ratelimit, list(arguments), obj=SimpleNamespace(app=app))


def output_of(app: Celery, *arguments: str) -> Any:
    found = run(app, *arguments, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.output)


def test_task_lookup_says_where_tasks_are_and_watch_shows_throttled_ones(new_fleet: NewFleet) -> None:
    with new_fleet(rate="1/m") as fleet:
        app, lots = fleet.sender, ParkingLots(fleet.sender)
        first = fleet.send("retry", 0)
        fleet.start("-E")
        assert first.get(timeout=60) == 0
        until(lambda: lots.explain(first.id).where == "ended", 20, "the worker noticing its end")
        assert str(lots.explain(first.id)) == f"Task {first.id} has ended: SUCCESS."
        results = fleet.send_each("retry", range(1, 21))
        until(lambda: sum(lot.parked for lot in lots.lots()) == len(results), 20, "a backlog that is parked")
        found = [lots.explain(result.id) for result in results]
        assert {each.where for each in found} <= {"parked", "held", "leaving"}
        parked = [each for each in found if each.where == "parked"]
        assert [each.place for each in parked] == list(range(len(parked))), "in the order in which they were sent"
        assert {(each.limit, each.task, each.queue) for each in parked} == {(NAME, NAME, "celery")}
        (status,) = output_of(app, "status", NAME)
        assert (status["state"], status["attended"], status["code"]) == ("backlogged", True, None)
        assert status["parked"] == len(parked)
        listed = output_of(app, "parked", NAME, "--number", "5")
        assert [each["task"]["id"] for each in listed["tasks"]] == [each.id for each in parked[:5]]
        held = fleet.send("place", 100, 30.0)
        until(lambda: lots.explain(held.id).where == "running", 20, "a task that runs")
        assert lots.explain(held.id).worker == "w0@test"
        later = fleet.send("retry", 200, countdown=600)
        until(lambda: lots.explain(later.id).where == "scheduled", 20, "a task on a countdown")
        assert "waits for its countdown to end" in str(lots.explain(later.id))

        with ThreadPoolExecutor(1) as threads:
            watching = threads.submit(run, app, "watch", NAME, "--most", "3", "--json")
            sent = set()
            while not watching.done():  # it sees what happens once it has subscribed
                sent.add(fleet.send("retry", 201).id)
                time.sleep(0.1)
            seen = watching.result()
        assert seen.exit_code == 0, seen.output
        events = [json.loads(line) for line in seen.stdout.splitlines()]
        assert f"Waiting for throttled tasks of {NAME}, " in seen.stderr
        assert len(events) == 3
        assert {each["limit"] for each in events} == {NAME}
        assert {each["uuid"] for each in events} <= sent


def test_remote_control_changes_limits(new_fleet: NewFleet, server: EmbeddedServer) -> None:
    limiter = Limiter.from_url(server.url + PATIENT, quotas={NAME: Limit("100/s", name=NAME)})
    with new_fleet() as fleet:
        fleet.start(number=2)
        control, inspect = fleet.sender.control, fleet.sender.control.inspect(timeout=5, limit=2)
        until(lambda: len(inspect.ping() or {}) == 2, 20, "an answer of both workers")

        def command(verb: str, /, **arguments: Any) -> list[Any]:
            replies = control.broadcast(verb, arguments=arguments, reply=True, timeout=20, limit=2)
            return [each for reply in replies for each in reply.values()]

        assert [set(each) for each in command("ratelimits")] == [
            {"version", "now", "limits", "processes", "queues", "takes"}
        ] * 2
        assert [each["limits"][NAME] for each in command("ratelimits")] == ["100/s"] * 2
        paused = command("ratelimit_pause", name=NAME, seconds=600)
        assert [each["ok"].partition(" for ")[0] for each in paused] == [f"{NAME} is paused"] * 2
        assert limiter.config(NAME).paused > 500
        assert {"ok": f"{NAME} goes on"} in command("ratelimit_resume", name=NAME)
        assert all("ok" in each for each in command("ratelimit_set", name=NAME, rate="5/s"))
        wrong = command("ratelimit_pause", name=NAME + "y", seconds=5)
        assert all("Did you mean" in each["error"] and "force" not in each["error"] for each in wrong), wrong
        history = limiter.history(NAME)
        assert history[0].verb == "pause"
        assert {each.verb for each in history} == {"pause", "resume", "set"}
        assert history[0].by.startswith("celery control, in w")
        found = run(fleet.sender, "check", "--fleet", "--json")
        assert "older version" not in found.output
