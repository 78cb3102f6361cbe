"""Figures of the whole fleet for Prometheus, read from the store at each scrape: ``celery-ratelimit[prometheus]``.

>>> from prometheus_client import REGISTRY
>>> from celery_ratelimit.prometheus import collector
>>> REGISTRY.register(collector(app))

Whichever process is scraped, the figures are those of the fleet: scrape one of them. Keys are never labels.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from celery import Celery

from .app.limiters import limiter_of
from .app.plan import AppLimits
from .app.settings import settings_of
from .counts.figures import Stats
from .errors import STORE_TROUBLES, ConfigurationError
from .limiter.limiter import Limiter
from .limits.any_limit import AnyLimit
from .limits.concurrency import Concurrency
from .operations.parking_lots import ParkingLots

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric
except ImportError as error:
    raise ConfigurationError(
        f"what Prometheus needs is missing ({error}): pip install 'celery-ratelimit[prometheus]'"
    ) from error

__all__ = ["Collector", "collector", "serve"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds for which what was read is good: several Prometheuses, or a page that is opened often, ask once.
GOOD_FOR = 1.0
_PREFIX = "celery_ratelimit"


def collector(app: Celery) -> Collector:
    """What to register in a registry of ``prometheus_client``."""
    return Collector(app)


def serve(app: Celery, port: int, address: str = "127.0.0.1") -> Callable[[], None]:
    """Serve ``/metrics`` from this process, on a thread; returns what ends it.

    In a worker: from ``celery.signals.worker_ready``. One worker of a fleet is enough.
    """
    registry = CollectorRegistry()
    registry.register(collector(app))
    server, thread = start_http_server(port, address, registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


class Collector:
    """Reads the store when it is asked, and no more often than once a second.

    Args:
        app: whose limits they are.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._read: list[Metric] = []
        self._read_at = float("-inf")

    def describe(self) -> Iterable[Metric]:
        """Nothing is asked when it is registered: the store need not be there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """A scrape. While the store does not answer, ``celery_ratelimit_up`` is 0, and there is nothing else."""
        if time.monotonic() - self._read_at >= GOOD_FOR:
            up = GaugeMetricFamily(f"{_PREFIX}_up", "Whether the limiter's store answers.")
            try:
                self._read = list(self._metrics())
                up.add_metric([], 1)
            except STORE_TROUBLES as error:
                logger.debug("nothing to be scraped: %r", error)
                self._read = []
                up.add_metric([], 0)
            self._read.insert(0, up)
            self._read_at = time.monotonic()
        yield from self._read

    def _metrics(self) -> Iterator[Metric]:
        limiter = limiter_of(self._app)
        limits = {**settings_of(self._app).quotas, **AppLimits(self._app)}
        names = sorted(limits)
        yield from _counted(limiter.stats_of(names, totals=True))
        yield from _in_force(limiter, {name: limits[name] for name in names})
        yield from _parked(ParkingLots(self._app), names)


def _counted(stats: Sequence[Stats]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        f"{_PREFIX}_requests", "Decisions, by what came of them.", labels=["limit", "result"]
    )
    permits = CounterMetricFamily(f"{_PREFIX}_permits", "Permits that were taken.", labels=["limit"])
    errors = CounterMetricFamily(f"{_PREFIX}_store_errors", "Decisions that met no store.", labels=["limit"])
    waits = HistogramMetricFamily(
        f"{_PREFIX}_wait_seconds", "From when a task or call was throttled until it started.", labels=["limit"]
    )
    for each in stats:
        for result, number in each.results.items():
            requests.add_metric([each.name, result], number)
        permits.add_metric([each.name], each.permits)
        errors.add_metric([each.name], each.results["store_error"])
        so_far, buckets = 0, []
        for bound, number in each.waits:
            so_far += number
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(so_far)))
        waits.add_metric([each.name], buckets, each.waited)
    yield from (requests, permits, errors, waits)


def _in_force(limiter: Limiter, limits: Mapping[str, AnyLimit]) -> Iterator[Metric]:
    def gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["limit", *more])

    rate = gauge("rate", "Permits a second; of places: how many there are.", "source")
    remaining = gauge("remaining", "Permits that could be taken now; not of limits that are kept by key.")
    leases = gauge("leases", "Places that are held; not of limits that are kept by key.")
    paused = gauge("paused", "Whether the limit is paused.")
    shadow = gauge("shadow", "Whether the limit is in shadow, and throttles nobody.")
    in_shadow = {}
    for name, limit in limits.items():
        config = limiter.config(name)
        in_shadow[name] = config.shadow
        rate.add_metric([name, "code"], _rate_of(limit))
        if config.stored is not None:
            rate.add_metric([name, "stored"], _rate_of(config.stored))
        paused.add_metric([name], float(config.paused > 0))
        shadow.add_metric([name], float(config.shadow))
        if limit.key is None and not limit.per_worker:
            (state,) = limiter.peek(name, cost=1).states
            remaining.add_metric([name], state.remaining)
            if isinstance(limit, Concurrency):
                leases.add_metric([name], state.limit - state.remaining)
    yield from (rate, remaining, leases, paused, shadow)
    yield from _would(limiter, [name for name in limits if in_shadow[name]])


def _would(limiter: Limiter, names: Sequence[str]) -> Iterator[Metric]:
    delayed = CounterMetricFamily(
        f"{_PREFIX}_shadow_delayed",
        "Of those that a limit in shadow let through, whom it would have delayed.",
        labels=["limit"],
    )
    longest = GaugeMetricFamily(
        f"{_PREFIX}_shadow_longest_seconds", "The longest that one of them would have waited.", labels=["limit"]
    )
    for name in names:
        would = limiter.would(name)
        delayed.add_metric([name], would.delayed)
        longest.add_metric([name], would.longest)
    yield from (delayed, longest)


def _rate_of(limit: AnyLimit) -> float:
    return float(limit.size) if isinstance(limit, Concurrency) else round(1 / limit.interval, 9)


def _parked(lots: ParkingLots, names: Iterable[str]) -> Iterator[Metric]:
    tasks = GaugeMetricFamily(f"{_PREFIX}_parked_tasks", "Tasks that are parked.", labels=["limit"])
    oldest = GaugeMetricFamily(
        f"{_PREFIX}_oldest_parked_seconds", "Since when the first of them is throttled.", labels=["limit"]
    )
    drain = GaugeMetricFamily(f"{_PREFIX}_drain_seconds", "Until the last of them has had its turn.", labels=["limit"])
    unattended = GaugeMetricFamily(
        f"{_PREFIX}_unattended_tasks", "Parked tasks of a limit that no worker has.", labels=["limit"]
    )
    numbers = dict.fromkeys(names, 0)
    since, until, orphans = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    now = time.time()
    for lot in lots.lots():
        numbers[lot.name] = numbers.get(lot.name, 0) + lot.parked
        since[lot.name] = max(since.get(lot.name, 0.0), now - lot.oldest if lot.oldest else 0.0)
        until[lot.name] = max(until.get(lot.name, 0.0), lot.drains_in or 0.0)
        orphans[lot.name] = orphans.get(lot.name, 0) + (0 if lot.attended else lot.parked)
    for family, values in ((tasks, numbers), (oldest, since), (drain, until), (unattended, orphans)):
        each: Mapping[str, Any] = values
        for name, value in each.items():
            family.add_metric([name], value)
        yield family
