"""The forecast of parked tasks: by the limit or by the workers, or unknown with a reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit.operations.bucket_status import BucketStatus
from celery_ratelimit.operations.forecast import Forecast, Throughput, forecast, no_worker, window


def bucket(wait: float = 0.0, interval: float = 0.05, waiting: int = 0, **more: Any) -> BucketStatus:
    kind = SimpleNamespace(algorithm=more.get("algorithm", "token_bucket"))
    config: Any = SimpleNamespace(paused=more.get("paused", 0.0), in_force=kind)
    return BucketStatus(config, 1000.0, more.get("remaining", 0), more.get("size", 1), 0.0, wait, waiting, interval)


NONE = Throughput()


@pytest.mark.parametrize(
    ("permits", "standing", "throughput", "seconds", "limited_by"),
    [
        (100, bucket(), NONE, 5.0, ""),
        (100, bucket(wait=30.0), NONE, 35.0, ""),
        (100, bucket(), Throughput(10.0, 200, 20.0), 5.0, ""),
        (100, bucket(), Throughput(10.0, 156, 20.0), 5.0, ""),  # no clear difference
        (100, bucket(), Throughput(10.0, 155, 20.0), 6.4516, "workers start 16/s of 20/s allowed"),
        (100, bucket(), Throughput(10.0, 10, 20.0), 100.0, "workers start 1/s of 20/s allowed"),
        (100, bucket(waiting=40), Throughput(10.0, 10, 20.0), 140.0, "workers start 1/s of 20/s allowed"),
        (100, bucket(), Throughput(10.0, 10, 20.0, age=12.0), 328.0, "workers start 1/s of 20/s allowed"),
        (10, bucket(interval=0.2), Throughput(10.0, 10, 50.0, lots=10), 100.0, "workers start 1/s of 50/s allowed"),
        (10, bucket(), Throughput(10.0, 10, 50.0, lots=10, backlog=30.0), 30.0, "workers start 1/s of 50/s allowed"),
        (5, bucket(interval=0.0), Throughput(10.0, 50), 1.0, ""),
        (100, bucket(wait=30.0, paused=30.0), Throughput(10.0, 0, 20.0), 35.0, ""),  # none starts while it is paused
        (100, bucket(wait=30.0, paused=30.0), Throughput(10.0, 10, 20.0), 100.0, "workers start 1/s of 20/s allowed"),
        (0, bucket(interval=3600.0), Throughput(60.0, 0, 1 / 3600), 0.0, ""),
        (0, bucket(interval=0.6), Throughput(50.0, 0, 100 / 60, gap=60.0), 0.0, ""),  # a window that is used up
    ],
)
def test_the_slower_of_limit_and_workers_decides(
    permits: float, standing: BucketStatus, throughput: Throughput, seconds: float, limited_by: str
) -> None:
    found = forecast(permits, standing, throughput)
    assert (found.seconds, found.limited_by) == (pytest.approx(seconds, rel=1e-5), limited_by)
    assert found.reason == ""


@pytest.mark.parametrize(
    ("standing", "throughput", "held_up", "reason"),
    [
        (bucket(), NONE, "no worker consumes queue 'q'", "no worker consumes queue 'q'"),
        (bucket(wait=1e9), NONE, "", "paused until resumed"),
        (bucket(interval=0.0), NONE, "", "how fast tasks start is known 7 s later, by ratelimit_counts"),
        (bucket(), Throughput(60.0, 0, 20.0), "", "no task has started for 1 min"),
    ],
)
def test_unknown_forecast_gives_a_reason(
    standing: BucketStatus, throughput: Throughput, held_up: str, reason: str
) -> None:
    found = forecast(3, standing, throughput, held_up)
    assert found == Forecast(None, 0.0, reason)
    assert str(found) == f"not known: {reason}"


@pytest.mark.parametrize(
    ("standing", "seconds", "band"),
    [
        (bucket(), 5.0, 1.5),
        (bucket(remaining=61, size=61), 2.0, 1.2),
        (bucket(remaining=61, size=61, waiting=20), 3.0, 1.3),
        (bucket(remaining=10, size=60, waiting=20), 5.0, 1.5),
        (bucket(remaining=11, size=61, paused=1.0, wait=1.0), 4.5, 1.45),  # 31 when the pause ends
        (bucket(remaining=10, size=61, paused=99.0, wait=99.0), 101.0, 11.1),
        (bucket(remaining=60, size=60, algorithm="leaky_bucket"), 5.0, 1.5),  # room to wait, and no permits
        (bucket(remaining=0, size=60, wait=2.0, algorithm="fixed_window"), 7.0, 1.7 + 3.0),
        (bucket(remaining=60, size=60, algorithm="sliding_log"), 2.05, 1.205 + 3.0),
    ],
)
def test_forecast_of_bursts_and_windows(standing: BucketStatus, seconds: float, band: float) -> None:
    found = forecast(100, standing, NONE)
    assert (found.seconds, found.band) == (pytest.approx(seconds), pytest.approx(band))


def test_band_grows_with_fewer_measured_permits() -> None:
    for seconds, permits in ((50.0, 100), (10.0, 20)):
        found = forecast(100, bucket(interval=0.0), Throughput(seconds, permits))
        assert found.seconds == 50
        assert found.band == pytest.approx(50 * (0.1 + 2 / permits**0.5 + 1 / seconds) + 1)
    paused = forecast(5, bucket(wait=30.0, interval=0.0), Throughput(50.0, 100))
    assert (paused.seconds, paused.band) == (30, pytest.approx(30 * (0.1 + 2 / 10 + 1 / 50) + 1))


def test_forecast_as_text() -> None:
    assert str(Forecast(90.0, 10.0)) == "in 1 min 30 s, give or take 10.0 s"
    assert str(Forecast(90.0, 10.0, limited_by="workers")) == "in 1 min 30 s, give or take 10.0 s: workers"
    for found, wait, why in (
        (Forecast(90.0, 10.0, limited_by="a: b"), "1 min 30 s, give or take 10.0 s", "a: b"),
        (Forecast(90.0, 10.0), "1 min 30 s, give or take 10.0 s", ""),
        (Forecast(None, reason="key 'a: b': paused"), "not known", "key 'a: b': paused"),
    ):
        assert (found.wait, found.why) == (wait, why)


def test_throughput_window_follows_the_age_of_the_backlog() -> None:
    assert [window(age) for age in (float("-inf"), 0.0, 6.9, 7.0, 12.5, 1000.0)] == [0.0, 0.0, 0.0, 5.0, 10.0, 60.0]


@pytest.mark.parametrize(
    ("queues", "stopped", "said"),
    [
        ([], {}, ""),
        (["a"], {"a": -5.0}, ""),
        (["a", "b"], {"a": 3.0, "b": -1.0}, ""),
        (["a", "b"], {"a": 30.0, "b": 12.0}, "no worker consumes queue 'b' (the last one stopped 12.0 s ago)"),
        (["a"], {"b": -1.0}, "no worker consumes queue 'a'"),
    ],
)
def test_a_queue_without_a_worker(queues: list[str], stopped: dict[str, float], said: str) -> None:
    assert no_worker(queues, stopped) == said
