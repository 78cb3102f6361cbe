"""Latency, capacity and known turns of a worker with a distant store."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from celery_ratelimit._celery import Pool
from celery_ratelimit._celery.channel_patches import MAX_PAUSE, pause_while
from celery_ratelimit._celery.pool import _Job
from celery_ratelimit.backlog.backlog_contents import OccupiedBucketCache
from celery_ratelimit.backlog.messages import Parked, PollResult
from celery_ratelimit.backlog.return_scheduler import ReturnScheduler
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.concurrency import Concurrency
from celery_ratelimit.limits.limit import Limit
from celery_ratelimit.store_calls.store_calls import StoreLatency, asked
from celery_ratelimit.worker.capacity import AHEAD, PoolCapacity
from celery_ratelimit.worker.parking_batch import ParkingBatch, PendingPark
from celery_ratelimit.worker.rules import Park
from tests.unit.worker.gate_bench import Bench

NOW = 100.0


def away(seconds: float) -> StoreLatency:
    distance = StoreLatency()
    for _ in range(300):
        distance.note(seconds)
    return distance


def test_latency_is_a_mean_that_ignores_outliers() -> None:
    distance = StoreLatency()
    distance.note(0.008)
    assert distance.round_trip == 0.001, "one slow answer says little"
    assert away(0.02).round_trip == pytest.approx(0.02)
    assert away(30.0).round_trip == pytest.approx(0.1), "an outage says nothing"


def test_one_quick_reply_within_sixteen_marks_the_store_as_near() -> None:
    """However long its other answers take, since it or the worker is busy."""
    latency = StoreLatency()
    assert not latency.is_worth_threads
    latency.note(0.002)
    assert latency.is_worth_threads
    for seconds in (0.0004, *[0.004] * 15):
        latency.note(seconds)
        assert not latency.is_worth_threads
    assert latency.round_trip > 0.003
    latency.note(0.004)
    assert latency.is_worth_threads, "the near one is long ago"
    latency.note(0.0006)
    assert latency.is_worth_threads, "a little sooner, once"
    latency.note(0.0004)
    assert not latency.is_worth_threads


def pool(*jobs: tuple[str, float]) -> Pool:
    """Of four processes, busy with tasks of these names, which were handed over so many seconds ago."""
    made = Pool(SimpleNamespace(num_processes=4, is_green=False))
    made._mean_runtimes.update(short=0.004, long=5.0)
    for number, (name, ago) in enumerate(jobs):
        made._jobs[number] = _Job(name, NOW - ago, None)
    made.idle = lambda pending: 4 - len(made._jobs)  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize(
    ("interval", "permits"),
    [(0.0, 8), (0.001, 4), (0.005, 6), (0.0125, 8), (1.0, 8)],  # a task takes 50 ms, and there are four processes
)
def test_max_permits_counts_processes_that_free_within_the_interval(interval: float, permits: int) -> None:
    some = pool()
    some._mean_runtimes["half"] = AHEAD / 2
    assert PoolCapacity(some).max_permits(NOW, "half", interval) == permits


def test_max_permits_of_brief_tasks_exceeds_the_processes() -> None:
    """With a limit that does not bind turns are at once: a store that is 2 ms away had been asked for four by four."""
    some = pool()
    assert PoolCapacity(some).max_permits(NOW, "short", 1e-6) == PoolCapacity(some).max_permits(NOW, "short") == 100


def test_max_permits_counts_busy_processes_that_end() -> None:
    """One of four is free; each task takes 20 ms, and every 10 ms another has its turn: two end in that time."""
    some = pool(*[("brief", 0.0)] * 3)
    some._mean_runtimes["brief"] = AHEAD / 5
    assert PoolCapacity(some).max_permits(NOW, "brief", 0.01) == 5


# -- A late worker pauses receiving ------------------------------------------------------------------------------------


class Channel:
    asked = 0

    def _brpop_start(self, timeout: float | None = None) -> None:
        self.asked += 1


def test_late_worker_pauses_receiving_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, late, channel = [NOW], [False], Channel()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pause_while(channel, lambda: late[0])
    channel._brpop_start()
    assert channel.asked == 1
    late[0] = True
    for _ in range(14):
        channel._brpop_start()
        now[0] += 0.01
    assert channel.asked == 1
    now[0] += MAX_PAUSE - 0.14
    channel._brpop_start()
    assert channel.asked == 2, "something comes in, however late it is"
    channel._brpop_start()
    assert channel.asked == 2, "and then it rests again"
    late[0] = False
    channel._brpop_start()
    assert channel.asked == 3


def test_channel_without_polling_is_not_patched() -> None:
    channel = SimpleNamespace()
    pause_while(channel, lambda: True)
    assert vars(channel) == {}


def test_busy_pool_does_not_make_the_worker_late(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, processes=1)
    bench.receive(bench.task("unlimited"))
    bench.tats["r1"] = bench.now - 5.0
    request = bench.receive(bench.task("retry", "r1"), "back", returned=True)
    assert request.ends == []
    assert not bench.is_late()
    bench.run(0.02)
    assert not bench.is_late(), "it is the pool that is busy"
    bench.finish()
    assert request.ends == ["started"]
    assert not bench.is_late()


def test_worker_is_late_when_a_brief_task_has_not_been_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has ended, or does in a moment: the worker hears of it when it has nothing else to do."""
    bench = Bench(monkeypatch, processes=1)
    bench.mean_runtime = lambda name: 0.002  # type: ignore[method-assign]
    bench.receive(bench.task("unlimited"))
    bench.tats["r1"] = bench.now - 5.0
    request = bench.receive(bench.task("retry", "r1"), "back", returned=True)
    assert (request.ends, bench.is_late()) == ([], False)
    bench.run(0.006)
    assert bench.is_late()
    bench.finish()
    assert (request.ends, bench.is_late()) == (["started"], False)


# -- New requests behind tasks that have just returned -----------------------------------------------------------------

API = LimitRequest(Limit("100/s", name="api"), "api")
BUCKET = ("api", "")


def test_new_request_stands_behind_the_last_returned_task_until_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [NOW]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    occupied = OccupiedBucketCache({"api": API.limit})
    assert occupied.lot_of([API]) is None
    occupied.note_turn(BUCKET, NOW + 0.5)
    assert occupied.is_closed(BUCKET)
    assert occupied.lot_of([API]) is API
    occupied.forget(BUCKET)  # the backlog is empty
    assert occupied.lot_of([API]) is API
    now[0] += 0.41
    assert occupied.lot_of([API]) is None, "its own turn comes soon: it asks"
    occupied.note_turn(BUCKET, now[0] + 0.5)
    occupied.forget_turns({"other"})
    assert occupied.is_closed(BUCKET)
    occupied.forget_turns({"api"})  # it is another limit now
    assert occupied.lot_of([API]) is None


def test_turns_of_the_oldest_buckets_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_ratelimit.backlog.tuning.MAX_KNOWN_BUCKETS", 3)
    occupied, soon = OccupiedBucketCache({"api": API.limit}), time.monotonic() + 60.0
    for number in range(5):
        occupied.note_turn(("api", str(number)), soon)
    assert [occupied.is_closed(("api", str(number))) for number in range(5)] == [False, False, True, True, True]


def test_changed_rate_forgets_known_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, processes=1)
    forgotten: list[Any] = []
    bench.forget_turns = forgotten.append  # type: ignore[method-assign]
    bench.gate._changed({"r1"})
    assert forgotten == [{"r1"}]


class Lots:
    """What a scheduler asks of the backlog: any number of buckets is one part."""

    register = SimpleNamespace(workers=1)

    def memory(self) -> tuple[int, int]:
        return 0, 0

    def parts(self, buckets: Any) -> Any:
        return [list(buckets)]


class Limits(dict[str, Any]):
    names = ("api", "places")


@pytest.fixture
def attendant(monkeypatch: pytest.MonkeyPatch) -> ReturnScheduler:
    for part in ("UnattendedTaskWatcher", "Deduplicator", "Rescheduler", "Publisher", "QueueHeartbeat"):
        monkeypatch.setattr(f"celery_ratelimit.backlog.return_scheduler.{part}", MagicMock())
    lots: Any = Lots()
    lots.bell = MagicMock()
    limits: Any = Limits({"api": API.limit, "places": Concurrency(2, name="places")})
    return ReturnScheduler(MagicMock(), lots, limits, MagicMock(), MagicMock(), 60.0, MagicMock())


def let_out(attendant: ReturnScheduler, *names: str) -> None:
    """These lots are due, and each lets three tasks out."""
    lots: Any = attendant.parking
    lots.due = lambda _: [(name, "") for name in names]
    leaving = tuple(Parked("id", 1, 0, wait, "{}") for wait in (0.2, 0.9, 0.5))
    lots.take_due = lambda demands, **_: [PollResult((each.name, ""), 1.0, False, leaving) for each in demands]
    assert asked(attendant._take_due(float("inf")))


def test_empty_backlog_parks_requests_that_precede_returned_tasks(attendant: ReturnScheduler) -> None:
    parts: list[tuple[set[str], bool]] = []
    batch = ParkingBatch(MagicMock(), attendant, MagicMock(), MagicMock(), MagicMock(), MagicMock())
    api = Park(API, 1.0, only_behind=True)
    other = Park(LimitRequest(API.limit, "other"), 1.0, only_behind=True)

    def next_part(*actions: Park) -> None:
        pending = SimpleNamespace(gone=False)
        batch._waiting = [PendingPark(MagicMock(), pending, action, MagicMock()) for action in actions]  # type: ignore[arg-type]
        part, only_behind = batch._next_part()
        parts.append(({park.bucket[0] for park in part}, only_behind))

    next_part(api, other)
    let_out(attendant, "api")
    next_part(api, other)
    next_part(other)
    assert parts == [({"api", "other"}, True), ({"api"}, False), ({"other"}, True)]


def test_returned_task_of_a_concurrency_limit_closes_no_bucket(attendant: ReturnScheduler) -> None:
    let_out(attendant, "places")
    assert not attendant.occupied.is_closed(("places", ""))


def test_poll_reports_what_was_noted_earlier(attendant: ReturnScheduler) -> None:
    lots: Any = attendant.parking
    told: list[bool] = []

    def tells(*, at_once: bool) -> Any:
        yield lambda: told.append(at_once)

    lots.tells, lots.due = tells, lambda _: None
    attendant._heartbeat.report = lambda *, is_idle: iter(())  # type: ignore[method-assign, assignment]
    attendant._worker.newly_revoked = list  # type: ignore[method-assign, assignment]
    assert asked(attendant._poll(float("inf")))
    assert told == [False], "what has waited for a while"
