"""Law 5: callbacks, canvases, options and retries of a throttled message work as in Celery."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import redis
from billiard.exceptions import WorkerLostError
from celery import chain, chord, group, signature
from celery.canvas import StampingVisitor
from celery.exceptions import TaskRevokedError

from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.fleet_of import Fleet, assert_never_over, until

APP = "tests.apps.messages"
NAME = "shared"


class Talkative(Fleet):
    """Workers of ``tests.apps.messages``, and what their tasks have said."""

    def __init__(self, server: EmbeddedServer, directory: Path, **conf: Any) -> None:
        super().__init__(server, directory, app=APP, **conf)

    def task(self, name: str, *args: Any, **options: Any) -> Any:
        return signature(f"{APP}.{name}", args=args, app=self.sender, **options)

    def take_permit(self) -> None:
        """Run a task that takes the only permit: tasks within an interval of it are throttled."""
        assert self.task("add", 0, 0).apply_async().get(timeout=90) == 0

    def said(self, what: str) -> list[dict[str, Any]]:
        path = self.directory / "said"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["what"] == what]

    def parked(self) -> int:
        return sum(lot.parked for lot in self.parking_lots().lots(NAME))

    def wait_until_empty(self, store: redis.Redis) -> None:
        """Wait until no message is left: every callback has been called."""

        def is_empty() -> bool:
            return not store.exists("celery", "celery.throttled", "unacked") and not store.keys("*payloads@*")

        until(is_empty, 20, "every message being acknowledged")


def test_callbacks_are_called_once_with_their_results(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    # Else Celery warns that it will be the default.
    with Talkative(server, tmp_path, rate="10/s", task_allow_error_cb_on_chord_header=True) as fleet:
        fleet.start()
        fleet.take_permit()
        heard, error = fleet.task("heard"), fleet.task("heard_error")
        results = [
            fleet.task("add", n, 1).apply_async(link=[fleet.task("heard", f"link {n}")], link_error=[error])
            for n in (1, 2)
        ]
        failing = [fleet.task("broken", n).apply_async(link=[heard], link_error=[error]) for n in (1, 2)]
        of_group = group(fleet.task("add", n, 10) for n in (3, 4))
        of_group.link(fleet.task("heard", "group"))
        results += [of_group.apply_async()]

        unasked = group(fleet.task("add", n, 100).set(ignore_result=True) for n in (5, 6))
        unasked.apply_async()
        # A part whose result is ignored counts for its chord.
        parts = [fleet.task("add", 7, 0).set(ignore_result=True), fleet.task("add", 8, 0)]
        chord_result = chord(parts)(fleet.task("total") | fleet.task("add", 0))
        # The body's result is ignored, but for its link.
        body = fleet.task("total").set(ignore_result=True)
        body.link(fleet.task("heard", "body"))
        chord([fleet.task("add", 9, 0), fleet.task("add", 10, 0)])(body)
        breaking = chord([fleet.task("add", 11, 0), fleet.task("broken", 3)], fleet.task("total"))
        broken_chord = breaking.on_error(error).apply_async()

        assert [result.get(timeout=90) for result in results] == [2, 3, [13, 14]]
        assert chord_result.get(timeout=90) == 15
        for result in (*failing, broken_chord):
            with pytest.raises(Exception, match="broken"):
                result.get(timeout=90)
        until(lambda: len(fleet.said("add")) == 13 and len(fleet.said("heard")) == 4, 20)
        fleet.wait_until_empty(store)

        # Celery links what a group is linked to to its first part, without its result.
        heard_by_link = {line["args"][-1]: line["args"][:-1] for line in fleet.said("heard")}
        assert heard_by_link == {"link 1": [2], "link 2": [3], "group": [], "body": [19]}
        assert len(fleet.said("heard")) == len(heard_by_link)
        errors = Counter((line["id"], line["error"], line["text"]) for line in fleet.said("heard_error"))
        assert errors.pop((failing[0].id, "ValueError", "broken 1")) == 1
        assert errors.pop((failing[1].id, "ValueError", "broken 2")) == 1
        part, whole = sorted(errors.items(), key=lambda error: error[0][1], reverse=True)
        assert (part[0][1:], part[1]) == (("ValueError", "broken 3"), 1)
        assert (whole[0][:2], whole[1]) == ((broken_chord.id, "ChordError"), 1)
        assert sorted(line["index"] for line in fleet.said("broken")) == [1, 2, 3]
        assert sorted(line["args"] for line in fleet.said("total")) == [[7, 8], [9, 10]]
        assert Counter(tuple(line["args"]) for line in fleet.said("add")).most_common(1)[0][1] == 1
        assert "throttled by" in fleet.log()
        assert_never_over(fleet.permits(), 10)


class OfCustomer(StampingVisitor):
    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:
        return {"customer": "acme", "stamped_headers": ["customer"]}


def test_replaced_and_stamped_tasks(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Talkative(server, tmp_path, rate="10/s") as fleet:
        fleet.start()
        fleet.take_permit()
        replaced = fleet.task("replacing", 10).apply_async(link=[fleet.task("heard", "link")])
        in_chain = chain(fleet.task("replacing", 20), fleet.task("add", 1), app=fleet.sender).apply_async()
        in_chord = chord([fleet.task("replacing", 30), fleet.task("add", 1, 1)])(fleet.task("total"))
        stamped = [fleet.task("describe", n) for n in (1, 2)]
        stamped[0].link(fleet.task("heard_stamped", "stamped"))
        canvas = group(stamped)
        canvas.stamp(visitor=OfCustomer())
        canvas.apply_async()

        assert (replaced.get(timeout=90), in_chain.get(timeout=90), in_chord.get(timeout=90)) == (11, 22, 33)
        until(lambda: len(fleet.said("describe")) == 2 and len(fleet.said("heard")) == 2, 20)
        fleet.wait_until_empty(store)
        assert [line["id"] for line in fleet.said("replacing")].count(replaced.id) == 1
        assert [line["id"] for line in fleet.said("nested")].count(replaced.id) == 1
        assert [line["nesting"] for line in fleet.said("nested")] == [1, 1, 1]
        for line in fleet.said("describe"):
            assert line["stamps"] == {"customer": "acme"}
            assert line["stamped_headers"] == ["customer"]
        heard = {line["args"][-1]: line for line in fleet.said("heard")}
        assert heard["link"]["args"] == [11, "link"]
        assert (heard["stamped"]["args"], heard["stamped"]["stamps"]) == ([None, "stamped"], {"customer": "acme"})
        assert fleet.log().count(" throttled by") >= 8
        assert_never_over(fleet.permits(), 10)


def test_options_of_messages_keep_their_meaning(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    """Bodies that are pickled, and compressed, lie in the store as bytes. Time limits and ``expires`` mean the same."""
    accept = ["json", "pickle"]
    with Talkative(server, tmp_path, rate="2/s", accept_content=accept, result_accept_content=accept) as fleet:
        fleet.env["C_FORCE_ROOT"] = "1"
        fleet.start("-c", "4")
        fleet.take_permit()
        thing = {"bytes": b"\x00\xff\x80", "set": {1, 2}, "decimal": Decimal("1.10"), "when": datetime(2026, 1, 2)}
        pickled = {"serializer": "pickle", "expires": datetime.now(timezone.utc) + timedelta(hours=1)}
        results = [
            fleet.task("describe", 1, thing).apply_async(**pickled),
            fleet.task("describe", 2, thing).apply_async(**pickled, compression="zlib"),
            fleet.task("describe", 3, thing).apply_async(**pickled, compression="bzip2", ignore_result=True),
        ]
        in_json = fleet.task("describe", 4, "é" * 1000).apply_async(compression="zlib")
        # It waits for more than two seconds, then it may take one.
        stopped = fleet.task("sleepy", 5, 60).apply_async(soft_time_limit=1, time_limit=90)
        slept = fleet.task("sleepy", 6, 0.5).apply_async(soft_time_limit=30, time_limit=90)
        expiring = fleet.task("add", 7, 7).apply_async(expires=datetime.now(timezone.utc) + timedelta(seconds=1))
        expired = fleet.task("add", 8, 8).apply_async(expires=datetime.now(timezone.utc) - timedelta(seconds=1))

        for result in (expiring, expired):
            with pytest.raises(TaskRevokedError):
                result.get(timeout=90)
            assert result.state == "REVOKED"
        assert in_json.get(timeout=90) == "é" * 1000
        assert slept.get(timeout=90) == "slept"
        word, _, seconds, _ = stopped.get(timeout=90).rsplit(" ", 3)
        assert (word, 0.9 <= float(seconds) < 60) == ("stopped", True)
        fleet.wait_until_empty(store)

        said = {line["index"]: line for line in fleet.said("describe")}
        assert sorted(line["index"] for line in fleet.said("describe")) == [1, 2, 3, 4]
        for index in (1, 2, 3):
            assert eval(said[index]["args"], {"Decimal": Decimal, "datetime": sys.modules["datetime"]}) == (thing,)
        assert (results[2].state, store.exists(f"celery-task-meta-{results[2].id}")) == ("PENDING", 0)
        assert [line["args"] for line in fleet.said("add")] == [[0, 0]]
        for result in (*results, in_json, stopped, slept, expiring):
            assert f"{result.id}] throttled by" in fleet.log()
        assert_never_over(fleet.permits(), 2)


def test_every_attempt_takes_a_permit(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    """Every attempt asks anew: of a task that Celery tries again, and of one whose process was killed."""
    with Talkative(server, tmp_path, rate="10/s") as fleet:
        fleet.start()
        fleet.take_permit()
        unlucky = [fleet.task("unlucky", n).apply_async() for n in (1, 2, 3)]
        late = fleet.task("mortal_late", 4).apply_async()
        early = fleet.task("mortal_early", 5).apply_async()
        for result in unlucky:
            with pytest.raises(ValueError, match="attempt 3"):
                result.get(timeout=90)
        assert late.get(timeout=90) == 4
        with pytest.raises(WorkerLostError):
            early.get(timeout=90)
        fleet.wait_until_empty(store)
        attempts = defaultdict(list)
        for line in fleet.said("unlucky"):
            attempts[line["index"]].append(line["retries"])
        assert attempts == {index: [0, 1, 2, 3] for index in (1, 2, 3)}
        expected = {0: 1, 1: 4, 2: 4, 3: 4, 4: 2, 5: 1}
        assert Counter(start.index for start in fleet.starts()) == expected
        assert Counter(permit.index for permit in fleet.permits()) == expected
        assert len({permit.at for permit in fleet.permits()}) == sum(expected.values()), "each its own"
        assert f"{late.id}] throttled by" in fleet.log()
        assert_never_over(fleet.permits(), 10)


def test_task_class_and_its_request_in_a_solo_pool(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    """The pool runs tasks in the worker's process, where the gate is, too."""
    with Talkative(server, tmp_path, rate="5/s") as fleet:
        fleet.start("-P", "solo")
        fleet.task("describe", 0).apply_async().get(timeout=90)
        described = [fleet.task("describe", n).apply_async() for n in (1, 2)]
        of_class = [fleet.task("whole_class", n).apply_async() for n in (1, 2)]
        assert [result.get(timeout=90) for result in of_class] == [1, 2]
        last = fleet.task("describe", 3).apply_async()
        last.get(timeout=90)
        fleet.wait_until_empty(store)
        steps = ["before_start", "__call__", "run", "on_success", "after_return"]
        for index in (1, 2):
            assert [line["step"] for line in fleet.said("class") if line["index"] == index] == steps
        first, *others = fleet.said("describe")
        assert [line["index"] for line in others] == [1, 2, 3]
        for line in others:
            for name in ("task", "max_retries", "request", "depth", "retries", "stamps", "priority", "expires"):
                assert line[name] == first[name], name
        for result in (*described, *of_class):
            assert f"{result.id}] throttled by" in fleet.log()
        assert_never_over(fleet.permits(), 5)


@contextmanager
def monitored(fleet: Fleet) -> Iterator[tuple[Any, dict[str, list[tuple[str, str]]]]]:
    """As Flower does it: every event in a ``State``; and, by task, each event's type with the state after it."""
    seen: dict[str, list[tuple[str, str]]] = defaultdict(list)
    state, over = fleet.sender.events.State(), threading.Event()

    def watch() -> None:
        def on_event(event: dict[str, Any]) -> None:
            state.event(event)
            if event["type"].startswith("task-"):
                seen[event["uuid"]].append((event["type"], state.tasks[event["uuid"]].state))

        with fleet.sender.connection() as connection:
            receiver = fleet.sender.events.Receiver(connection, handlers={"*": on_event})
            with receiver.consumer_context(wakeup=False) as (connection, _, _):
                while not over.is_set():
                    try:
                        connection.drain_events(timeout=0.1)
                    except TimeoutError:
                        pass

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield state, seen
    finally:
        over.set()
        thread.join()


def test_monitors_and_the_result_backend_show_a_throttled_task(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with Talkative(server, tmp_path, rate="1/h", task_track_started=True) as fleet, monitored(fleet) as (state, seen):
        fleet.start("-E")
        until(lambda: "w0@test" in state.workers, 20, "an event of the worker")
        fleet.take_permit()
        results = [fleet.task("add", n, 0).apply_async() for n in range(1, 6)]
        until(lambda: fleet.parked() == 5, 20)
        until(lambda: all(seen[result.id][-1:] == [("task-throttled", "THROTTLED")] for result in results), 10)
        assert [result.state for result in results] == ["PENDING"] * 5
        assert not store.exists(*[f"celery-task-meta-{result.id}" for result in results])
        Limiter.from_url(server.url + PATIENT).set_rate(NAME, "20/s", force=True)
        assert [result.get(timeout=90) for result in results] == [1, 2, 3, 4, 5]
        until(lambda: all(state.tasks[result.id].state == "SUCCESS" for result in results), 10)
        fleet.wait_until_empty(store)
        for result in results:
            kinds = [kind for kind, _ in seen[result.id]]
            assert kinds == [f"task-{kind}" for kind in ("received", "throttled", "received", "started", "succeeded")]
            states = list(dict.fromkeys(shown for _, shown in seen[result.id]))
            # STARTED ranks below any state that Celery does not know (states.PRECEDENCE), so State does not show it.
            assert states == ["RECEIVED", "THROTTLED", "SUCCESS"]
