"""Metrics of the whole fleet for Prometheus, read from the store at each scrape: ``celery-ratelimit[prometheus]``.

>>> from prometheus_client import REGISTRY
>>> from celery_ratelimit.prometheus import collector
>>> REGISTRY.register(collector(app))

Each process serves the metrics of the fleet: scrape one of them. Keys are never labels.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from celery import Celery

from .app.app_limits import AppLimits
from .app.limiters import limiter_of
from .app.settings import settings_of
from .counts.stats import Stats
from .errors import STORE_TROUBLES, ConfigurationError
from .forks import begin_anew_after_fork
from .limiter.operation import at_once
from .limiter.report_counts import ask_counts
from .limits.any_limit import AnyLimit
from .limits.concurrency import Concurrency
from .observing import UPSTREAM
from .operations.limit_status import LimitStatus
from .operations.overview import asking_overview

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric
except ImportError as _error:
    raise ConfigurationError(
        f"what Prometheus needs is missing ({_error}): pip install 'celery-ratelimit[prometheus]'"
    ) from _error

__all__ = ["Collector", "collector", "serve"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Seconds for which a reading is served again, to several Prometheus servers or a page that is opened often.
GOOD_FOR = 1.0
_PREFIX = "celery_ratelimit"


def collector(app: Celery) -> Collector:
    """The collector of an app, for a registry of ``prometheus_client``."""
    return Collector(app)


def serve(app: Celery, port: int, address: str = "127.0.0.1") -> Callable[[], None]:
    """Serve ``/metrics`` from this process, on a thread; returns a function that ends it.

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
    """Reads the store at a scrape, at most once a second.

    Args:
        app: the Celery app with the limits.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.begin_anew()
        begin_anew_after_fork(self)

    def begin_anew(self) -> None:
        """Start empty after a fork: nothing is read yet, and the lock is free."""
        self._lock = threading.Lock()
        self._read: list[Metric] = []
        self._read_at = float("-inf")

    def describe(self) -> Iterable[Metric]:
        """Return nothing at registration: the store need not be up yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics for a scrape. While the store does not answer, ``celery_ratelimit_up`` is 0, alone.

        One scrape reads the store; concurrent ones wait for it.
        """
        with self._lock:
            if time.monotonic() - self._read_at >= GOOD_FOR:
                self._read = self._read_store()
                self._read_at = time.monotonic()
            read = self._read
        yield from read

    def _read_store(self) -> list[Metric]:
        up = GaugeMetricFamily(f"{_PREFIX}_up", "Whether the limiter's store answers.")
        try:
            metrics = list(self._metrics())
            up.add_metric([], 1)
        except STORE_TROUBLES as error:
            logger.debug("nothing to be scraped: %r", error)
            metrics = []
            up.add_metric([], 0)
        return [up, *metrics]

    def _metrics(self) -> Iterator[Metric]:
        limits = {**settings_of(self._app).quotas, **AppLimits(self._app)}
        asker = limiter_of(self._app)._asker
        stats = ask_counts(asker.core, sorted(limits), totals=True)
        counts, found = asker.drive(at_once(stats, asking_overview(self._app, ask_broker=False)))
        yield from _counted(counts)
        yield from _in_force([each for each in found if each.name in limits])
        yield from _parked(found)


def _counted(stats: Iterable[Stats]) -> Iterator[Metric]:
    requests = CounterMetricFamily(f"{_PREFIX}_requests", "Decisions, by result.", labels=["limit", "result"])
    permits = CounterMetricFamily(f"{_PREFIX}_permits", "Permits taken.", labels=["limit"])
    errors = CounterMetricFamily(
        f"{_PREFIX}_store_errors", "Decisions for which the store did not answer.", labels=["limit"]
    )
    text = "Calls that upstreams refused, pauses by headers, and breakers that opened."
    upstream = CounterMetricFamily(f"{_PREFIX}_upstream", text, labels=["limit", "what"])
    waits = HistogramMetricFamily(
        f"{_PREFIX}_wait_seconds", "Time from when a task or call was throttled until it started.", labels=["limit"]
    )
    for each in stats:
        for result, number in each.results.items():
            if result in UPSTREAM:
                upstream.add_metric([each.name, result], number)
                continue
            requests.add_metric([each.name, result], number)
        permits.add_metric([each.name], each.permits)
        errors.add_metric([each.name], each.results["store_error"])
        so_far, buckets = 0, []
        for bound, number in each.waits:
            so_far += number
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(so_far)))
        waits.add_metric([each.name], buckets, each.waited)
    yield from (requests, permits, errors, upstream, waits)


def _gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["limit", *more])


def _in_force(found: Sequence[LimitStatus]) -> Iterator[Metric]:
    rate = _gauge("rate", "Permits per second; of a Concurrency: how many there are.", "source")
    remaining = _gauge("remaining", "Permits that can be taken now; not for limits with keys.")
    leases = _gauge("leases", "Leases held; not for limits with keys.")
    paused = _gauge("paused", "Whether the limit is paused.")
    shadow = _gauge("shadow", "Whether the limit is in shadow, and throttles nothing.")
    delayed = CounterMetricFamily(
        f"{_PREFIX}_shadow_delayed", "Requests that a limit in shadow would have delayed.", labels=["limit"]
    )
    longest = _gauge("shadow_longest_seconds", "Longest delay, in seconds, of such a request.")
    for each in found:
        name, config = each.name, each.standing.config
        for source, limit in (("code", config.code), ("stored", config.override)):
            if limit is not None:
                rate.add_metric([name, source], _rate_of(limit))
        paused.add_metric([name], float(config.paused > 0))
        shadow.add_metric([name], float(config.shadow))
        if each.remaining is not None and config.code is not None and not config.code.per_worker:
            remaining.add_metric([name], each.remaining)
            if isinstance(config.code, Concurrency):
                leases.add_metric([name], each.standing.size - each.remaining)
        if each.shadow_report is not None:
            delayed.add_metric([name], each.shadow_report.delayed)
            longest.add_metric([name], each.shadow_report.longest)
    yield from (rate, remaining, leases, paused, shadow, delayed, longest)


def _rate_of(limit: AnyLimit) -> float:
    return float(limit.size) if isinstance(limit, Concurrency) else round(1 / limit.interval, 9)


def _parked(found: Sequence[LimitStatus]) -> Iterator[Metric]:
    tasks = _gauge("parked_tasks", "Parked tasks.")
    oldest = _gauge("oldest_parked_seconds", "Time since the oldest parked task was first throttled.")
    drain = _gauge("drain_seconds", "Time until the last parked task has its turn, if known.")
    unattended = _gauge("unattended_tasks", "Parked tasks of a limit that no worker reports.")
    for each in found:
        age = each.standing.now - each.oldest if each.oldest is not None else 0.0
        tasks.add_metric([each.name], each.parked)
        oldest.add_metric([each.name], max(0.0, age))
        if not each.parked or each.drains_in is not None:
            drain.add_metric([each.name], each.drains_in or 0.0 if each.parked else 0.0)
        unattended.add_metric([each.name], 0 if each.attended else each.parked)
    yield from (tasks, oldest, drain, unattended)
