"""Whether there is enough of it: processes for the rates that limits allow, connections to the store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from celery import Celery

from ..app.settings import settings_of
from ..app.state import limiter_of
from ..app.survey import Owned, owners_of
from ..counts.figures import Stats
from ..limits.concurrency import Concurrency
from .limit_status import LimitStatus, overview

__all__ = ["Note", "of_connections", "of_processes"]

#: What `celery inspect ratelimits` says, by worker; of an older version without the pool.
Said = Mapping[str, Mapping[str, Any]]

#: The store's connections of a worker beside one for each process: its gate, its leases, its ear, and four that ask a
#: store that is some way off; and what Celery has of its own there, if that is the broker, too. Counted on Celery 5.7.
_OF_GATE, _OF_BROKER = 7, 10
#: The share of the store's connections that may be in use.
_ENOUGH = 0.9


class Note(str):
    """What is worth knowing, and nothing wrong."""


def of_processes(app: Celery, said: Said) -> Iterator[str]:
    """Little's law: tasks that take long want as many processes as start while one of them runs.

    A warning where tasks wait for them, and a note else.
    """
    pools = {worker: told for worker, told in said.items() if "takes" in told}
    if not pools:
        return
    owned = {name: each for name, each in owners_of(app).items() if _is_one(each)}
    if not owned:
        return
    stats = {each.name: each for each in limiter_of(app).stats_of(owned)}
    for status in overview(app, *owned):
        takes = _takes(owned[status.name], pools, stats[status.name])
        if takes is None or not status.standing.interval:
            continue
        there = sum(told["processes"] for told in pools.values() if not set(told["queues"]).isdisjoint(status.queues))
        starts = 1 / (status.standing.interval * _cost(owned[status.name], stats[status.name]))
        wanted = math.ceil(starts * takes - 1e-9)
        if there and wanted > there:
            kind = str if _waits(status) else Note
            yield kind(
                f"limit {status.name!r}: {starts:.3g}/s of tasks that take {_seconds(takes)} want {wanted} processes, "
                f"and the workers that answered have {there} for their queues ({', '.join(status.queues)}): no more "
                f"than {there / takes:.3g}/s can start. Start more of them if all of the rate is to be used"
            )


def of_connections(app: Celery, said: Said) -> Iterator[str]:
    """Whether the store takes as many clients as the workers may be."""
    limiter = limiter_of(app)
    pools = [told for told in said.values() if "processes" in told]
    if limiter.asker.is_cluster or not pools:
        return
    try:
        clients = limiter.client.info("clients")
        most = int(clients.get("maxclients") or limiter.client.config_get("maxclients")["maxclients"])
        there = int(clients["connected_clients"])
    except Exception:  # its user may not ask
        return
    processes, here = sum(told["processes"] for told in pools), _server_of(settings_of(app).url)
    wanted = processes + _OF_GATE * len(pools)
    if _server_of(app.conf.broker_url) == here:
        wanted += _OF_BROKER * len(pools)
    if _server_of(app.conf.result_backend) == here:
        wanted += processes
    if max(there, wanted) > _ENOUGH * most:
        yield (
            f"the store takes {most} clients (maxclients) and has {there}; {len(pools)} worker(s) with {processes} "
            f"processes may come to {wanted}. Who comes last is refused, and that looks like a store that is lost: "
            "raise maxclients there, and the limit of open files with it"
        )


def _is_one(owned: Owned) -> bool:
    limit = owned.limit
    return bool(owned.tasks) and limit.key is None and not limit.per_worker and not isinstance(limit, Concurrency)


def _takes(owned: Owned, pools: Said, stats: Stats) -> float | None:
    """Seconds that a task takes on average, each kind by how often it uses the limit; ``None``: nobody knows."""
    uses = {user.name: user.permits for user in stats.users if user.kind == "task"}
    of_kinds: list[tuple[float, float]] = []
    for task in owned.tasks:
        known = [told["takes"][task] for told in pools.values() if task in told["takes"]]
        if known:
            of_kinds.append((sum(known) / len(known), uses.get(task, 0.0)))
    weight = sum(permits for _, permits in of_kinds)
    if not of_kinds:
        return None
    if not weight:
        return sum(seconds for seconds, _ in of_kinds) / len(of_kinds)
    return sum(seconds * permits for seconds, permits in of_kinds) / weight


def _cost(owned: Owned, stats: Stats) -> float:
    """What a call takes: as in the code, or what it has taken on average."""
    cost = owned.limit.cost
    return cost if isinstance(cost, int) else stats.permits / stats.started if stats.started else 1


def _waits(status: LimitStatus) -> bool:
    return bool(status.parked or status.queued or status.standing.waiting)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"


def _server_of(url: Any) -> tuple[str | None, int | None, str] | None:
    """Which server a URL means, as far as that is to be told; ``None``: it is not."""
    try:
        parts = urlsplit(str(url))
        if parts.scheme in ("redis", "rediss", "valkey", "valkeys"):
            return parts.hostname or "localhost", parts.port or 6379, ""
        return (None, None, parts.path) if parts.scheme in ("unix", "redis+socket") else None
    except ValueError:
        return None
