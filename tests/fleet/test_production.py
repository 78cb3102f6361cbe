"""The production app of the example project, with a worker killed in the middle: every law on ordinary code at once."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import redis

from benchmarks import processes
from benchmarks.production import WORKERS, Note, count, notes
from benchmarks.records import Start
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, NewFleet, assert_never_over, errors, until

VICTIM, EVENTS = "b", 400

#: What ``example_project.production.send`` sends.
PAGES = {"acme": 90, "globex": 40, "initech": 40, "umbrella": 40}
ORDERS, REPORTS, DOCUMENTS = 40, 40, 20
CHAINS = [(f"/shop/reserve-{n}", f"/stripe/charge-{n}", f"/mail/receipt-{n}") for n in range(ORDERS)]
CHORDS = {
    f"/books/{tenant}-{pages}": {f"/stripe/{tenant}-{n}" for n in range(pages)} for tenant, pages in PAGES.items()
}
ALL = {
    *(path for chain in CHAINS for path in chain),
    *CHORDS,
    *(path for pages in CHORDS.values() for path in pages),
    *(f"/reports/{n}" for n in range(REPORTS)),
    *(f"/llm/{n}" for n in range(DOCUMENTS)),
    *(f"/events/{n}" for n in range(EVENTS)),
}
BEFORE = {after: before for chain in CHAINS for before, after in itertools.pairwise(chain)}


def of(several: Iterable[Note], service: str) -> list[Note]:
    return [note for note in several if note["path"].startswith(f"/{service}/")]


def tenant_of(path: str) -> str:
    service, what, number = path.replace("-", "/").split("/")[1:]
    assert service == "stripe"
    return list(PAGES)[int(number) % len(PAGES)] if what == "charge" else what


def assert_held(begun: Iterable[Note], rate: float, burst: int, cost: Any = lambda path: 1) -> None:
    """By the store's times of the permits, over every interval; a call that costs several permits counts as several."""
    permits = [Start(note["granted_at"], 0, 0) for note in begun for _ in range(cost(note["path"]))]
    assert_never_over(permits, rate, burst)


def most_at_once(began: Iterable[Note], done: Iterable[Note], killed_at: float) -> int:
    """The most bodies that ran at the same time; of the killed worker, until it was killed."""
    ends = {note["run"]: note["at"] for note in done}
    runs = [(note["at"], ends.get(note["run"], killed_at)) for note in began]
    return max(sum(start <= at < end for start, end in runs) for at, _ in runs)


def is_rendering(directory: Path) -> bool:
    """Whether the worker that is to be killed runs a report."""
    done = {note["run"] for note in notes(directory, "done")}
    begun = of(notes(directory, "began"), "reports")
    return any(note["worker"] == VICTIM and note["run"] not in done for note in begun)


def kill_between_messages(fleet: Fleet, index: int, store: redis.Redis) -> None:
    """SIGKILL to a worker in a moment in which kombu loses no message on Redis (docs/operations.md, Redelivery): while
    each of its connections that wait for a message is still waiting, and the store takes no writes.
    """

    def is_killed() -> bool:
        os.killpg(fleet.workers[index].pid, signal.SIGSTOP)
        store.client_pause(2_000, all=False)
        try:
            asks = [each for each in store.client_list() if each["name"] == VICTIM and each["cmd"] == "brpop"]
            if not asks or not all("b" in each["flags"] for each in asks):
                return False
            fleet.kill(index)
            return True
        finally:
            store.client_unpause()
            if fleet.workers[index].poll() is None:
                os.killpg(fleet.workers[index].pid, signal.SIGCONT)

    until(is_killed, 20, "a moment in which no message is on its way to the worker")


@pytest.mark.parametrize("kind", ["redis", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def test_production_app_holds_all_laws_when_a_worker_is_killed(
    new_fleet: NewFleet,
    server: EmbeddedServer,
    store: redis.Redis,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kind: str,
) -> None:
    """Nothing is lost. What may be done twice: a task that the killed worker had begun and not acknowledged, as
    ``acks_late`` says, at most one of each of its processes; and if it had ended, what its chain sends next.
    """
    is_redis, conf = kind == "redis", dict[str, Any]()
    url = server.url if is_redis else request.getfixturevalue("broker").url
    if is_redis:  # kombu hands out anew what is not acknowledged for so long
        conf["broker_transport_options"] = {"visibility_timeout": 6, "unacked_restore_throttle": 1}
    with new_fleet(app="benchmarks.apps.production", broker=url, **conf) as fleet:
        for fleet.env["TEST_WORKER"], options in WORKERS.items():
            fleet.start(*options)
        fleet.env["TEST_WORKER"] = "sender"
        command = [sys.executable, "-m", "benchmarks.apps.production", str(EVENTS)]
        sender = processes.spawn(command, tmp_path / "sender.log", fleet.env)
        try:
            until(lambda: count(tmp_path, "done") > 300, 30, "the fleet being at work")
            until(lambda: is_rendering(tmp_path), 20, "a report in the worker")
            victim = list(WORKERS).index(VICTIM)
            kill_between_messages(fleet, victim, store) if is_redis else fleet.kill(victim)
            killed_at = max(note["at"] for note in notes(tmp_path, "began") if note["worker"] == VICTIM)
            fleet.env["TEST_WORKER"] = "again"
            fleet.launch(*WORKERS[VICTIM])
            until(lambda: count(tmp_path, "done") >= len(ALL), 60, "every task being done")
            until(lambda: {note["path"] for note in notes(tmp_path, "done")} == ALL, 60, "every task being done")
            until(lambda: not fleet.parking_lots().lots(), 20, "every lot being empty")
        finally:
            processes.stop([sender], grace=0)
        began, done = notes(tmp_path, "began"), notes(tmp_path, "done")

        times = Counter(note["path"] for note in done)
        again = {path for path, number in times.items() if number > 1}
        first_again = {path for path in again if BEFORE.get(path) not in again}
        assert max(times.values()) <= 2
        assert first_again <= {note["path"] for note in began if note["worker"] == VICTIM}
        assert len(first_again) <= int(WORKERS[VICTIM][1]), "its processes"

        paid = [note for note in began if note["path"].startswith(("/stripe/", "/mail/", "/llm/", "/reports/"))]
        assert all(0 < note["granted_at"] <= note["at"] + 0.002 for note in paid)
        assert_held(of(paid, "stripe"), 20, 5)
        assert_held(of(paid, "mail"), 10, 1)
        assert_held(of(paid, "llm"), 100, 200, lambda path: 20 + 9 * int(path.removeprefix("/llm/")))
        for tenant in PAGES:
            assert_held([note for note in of(paid, "stripe") if tenant_of(note["path"]) == tenant], 8, 1)
        assert most_at_once(of(paid, "reports"), of(done, "reports"), killed_at) <= 2

        # Each chain in order, each chord complete before its end.
        first = {note["path"]: note["at"] for note in reversed(began)}
        ended = {note["path"]: note["at"] for note in reversed(done)}
        for chain in CHAINS:
            assert all(ended[before] <= first[after] for before, after in itertools.pairwise(chain))
        for body, pages in CHORDS.items():
            assert max(ended[page] for page in pages) <= first[body]

        # An unlimited task passes limited ones: the first is sent when these are in its queue.
        ahead = [path for paths in (*CHORDS.values(), [f"/llm/{n}" for n in range(DOCUMENTS)]) for path in paths]
        assert sum(first[path] > first["/events/0"] for path in ahead) > len(ahead) / 4
        for index in range(len(fleet.workers)):
            assert not errors(fleet.log(index))
