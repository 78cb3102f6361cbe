"""Whether the fleet has enough processes for its rates, and the store enough connections for the fleet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

from celery import Celery

from ..app.settings import settings_of
from ..app.state import limiter_of
from ..app.survey import Owned, owners_of
from ..counts.figures import Stats
from ..limits.concurrency import Concurrency
from .limit_status import overview

__all__ = ["Hint", "check_connections", "check_processes"]

#: Replies to `celery inspect ratelimits`, by worker.
Replies = Mapping[str, Mapping[str, Any]]

#: The store's connections of a worker beside one for each process: its gate, its leases, its notifications, and four
#: threads for a distant store; and Celery's own, where the store is the broker, too. Counted on Celery 5.7.
_OF_GATE, _OF_BROKER = 7, 10
#: The share of the store's connections that may be in use.
_MAX_SHARE = 0.9


class Hint(str):
    """Worth knowing, and nothing wrong."""


def check_processes(app: Celery, replies: Replies) -> Iterator[str]:
    """Little's law: a rate needs as many processes as tasks start while one of them runs.

    A warning where tasks wait, else a note.
    """
    pools = {worker: reply for worker, reply in replies.items() if "takes" in reply}
    owned = {name: each for name, each in owners_of(app).items() if _has_one_bucket(each)}
    if not pools or not owned:
        return
    stats = {each.name: each for each in limiter_of(app).stats_of(owned)}
    for status in overview(app, *owned):
        takes = _takes(owned[status.name], pools, stats[status.name])
        if takes is None or not status.standing.interval:
            continue
        there = sum(pool["processes"] for pool in pools.values() if not set(pool["queues"]).isdisjoint(status.queues))
        starts = 1 / (status.standing.interval * _cost(owned[status.name], stats[status.name]))
        wanted = math.ceil(starts * takes - 1e-9)
        if there and wanted > there:
            kind = str if status.parked or status.queued or status.standing.waiting else Hint
            yield kind(
                f"limit {status.name!r}: {starts:.3g}/s of tasks that take {_seconds(takes)} want {wanted} processes, "
                f"and the workers that answered have {there} for their queues ({', '.join(status.queues)}): no more "
                f"than {there / takes:.3g}/s can start. Start more of them if all of the rate is to be used"
            )


def check_connections(app: Celery, replies: Replies) -> Iterator[str]:
    """Whether the store accepts as many connections as the workers may open."""
    limiter = limiter_of(app)
    pools = [reply for reply in replies.values() if "processes" in reply]
    if limiter.asker.is_cluster or not pools:
        return
    try:
        clients = limiter.client.info("clients")
        most = int(clients.get("maxclients") or limiter.client.config_get("maxclients")["maxclients"])
        there = int(clients["connected_clients"])
    except Exception:  # a right that the store's user lacks
        return
    processes, here = sum(pool["processes"] for pool in pools), _server_of(settings_of(app).url)
    wanted = processes + _OF_GATE * len(pools)
    if _server_of(app.conf.broker_url) == here:
        wanted += _OF_BROKER * len(pools)
    if _server_of(app.conf.result_backend) == here:
        wanted += processes
    if max(there, wanted) > _MAX_SHARE * most:
        yield (
            f"the store takes {most} clients (maxclients) and has {there}; {len(pools)} worker(s) with {processes} "
            f"processes may come to {wanted}. Further connections are refused, as if the store were lost: "
            "raise maxclients there, and the limit of open files with it"
        )


def _has_one_bucket(owned: Owned) -> bool:
    limit = owned.limit
    return bool(owned.tasks) and limit.key is None and not limit.per_worker and not isinstance(limit, Concurrency)


def _takes(owned: Owned, pools: Replies, stats: Stats) -> float | None:
    """Mean seconds of a task, weighted by the permits of each kind of task; ``None``: not known."""
    uses = {user.name: user.permits for user in stats.users if user.kind == "task"}
    means: dict[str, float] = {}
    for task in owned.tasks:
        known = [pool["takes"][task] for pool in pools.values() if task in pool["takes"]]
        if known:
            means[task] = fmean(known)
    if not means:
        return None
    weights = {task: uses.get(task, 0.0) for task in means}
    if not any(weights.values()):
        return fmean(means.values())
    return sum(means[task] * weights[task] for task in means) / sum(weights.values())


def _cost(owned: Owned, stats: Stats) -> float:
    """Permits of a call: as in the code, or on average."""
    cost = owned.limit.cost
    return cost if isinstance(cost, int) else stats.permits / stats.started if stats.started else 1


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"


def _server_of(url: Any) -> tuple[str | None, int | None, str] | None:
    """The server that a URL means; ``None``: not known."""
    try:
        parts = urlsplit(str(url))
        if parts.scheme in ("redis", "rediss", "valkey", "valkeys"):
            return parts.hostname or "localhost", parts.port or 6379, ""
        return (None, None, parts.path) if parts.scheme in ("unix", "redis+socket") else None
    except ValueError:
        return None
