"""Checks of a set-up: each yields what is wrong, in a sentence that says what to do about it.

Also whether the fleet has enough processes for its rates, and the store enough connections for the fleet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from statistics import fmean
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from celery import Celery

from .._celery import BrokerDidNotAnswer, is_on_sqs, query_workers, visibility_timeouts_of
from ..app.app_store import limiter_of
from ..app.settings import settings_of
from ..app.survey import Owned, owners_of
from ..backlog.backlog import backlog_of
from ..backlog.store_memory import memory_warning
from ..counts.stats import Stats
from ..errors import STORE_TROUBLES, ConfigurationError, StoreUnavailable
from ..limits.concurrency import Concurrency
from ..limits.rate_limit import Limit
from ..store.url_text import without_password
from ..store_calls.tuning import THREADS
from ..words import number_of
from .bucket_status import standings_of
from .overview import overview
from .task_lookup import PATIENCE
from .wording import store_lost

__all__ = ["InformationalFinding", "check_settings", "check_store", "check_workers"]

#: Seconds by which a worker's clock may differ from the store's, beside the time of the question.
CLOCK_SKEW = 2.0

#: Replies to `celery inspect ratelimits`, by worker.
Replies = Mapping[str, Mapping[str, Any]]

#: The store's connections of a worker beside one for each process: its gate, its leases, its notifications, and the
#: threads for a distant store; and Celery's own, where the store is the broker, too. Counted on Celery 5.7.
_OF_GATE, _OF_BROKER = 3 + THREADS, 10
#: Workers that are named.
NAMED = 5
#: The share of the store's connections that may be in use.
_MAX_SHARE = 0.9


class InformationalFinding(str):
    """A finding that is worth knowing, and nothing is wrong."""


def check_settings(app: Celery) -> Iterator[str]:
    """What is wrong with the settings; asks no store, and no broker but SQS."""
    redelivery, used = min(visibility_timeouts_of(app)), owners_of(app)
    if is_on_sqs(app) and (known := (app.conf.broker_transport_options or {}).get("predefined_queues")):
        names = {settings_of(app).return_queue_for(queue).replace(".", "-") for queue in known if ".fifo" not in queue}
        if missing := ", ".join(map(repr, sorted(names.difference(known)))):
            yield (
                "throttled tasks return to their own queues, behind the other messages: on SQS the predefined_queues "
                f"lack {missing}. Create it with the visibility timeout of its queue, and name it there"
            )
    for name in settings_of(app).quotas:
        if name not in used:
            yield (
                f"no task and no queue has the quota {name!r}: name it in limits=, ratelimit_tasks or "
                "ratelimit_queues, unless other processes alone use it"
            )
    for task in sorted({task for owned in used.values() for task in owned.tasks}):
        found = app.tasks[task]
        longest = found.time_limit or app.conf.task_time_limit
        if found.acks_late and longest and longest >= redelivery:
            yield (
                f"task {task!r} has acks_late and may run for {longest:g} s, and the broker delivers again what is not "
                f"acknowledged after {redelivery:g} s: it would run twice. Raise visibility_timeout "
                "(broker_transport_options; consumer_timeout on RabbitMQ) above its time limit"
            )


def check_store(app: Celery) -> Iterator[str]:
    """What is wrong with the store and with the rates stored there; or that the store does not answer."""
    limiter, used = limiter_of(app), owners_of(app)
    try:
        yield from limiter.check_store()
        if full := memory_warning(*backlog_of(app).memory()):
            yield full
        if any(isinstance(each.limit, Limit) for each in used.values()) and backlog_of(app).can_park:
            yield from _check_persistence(app)
        yield from _check_publish_failures(app)
        for standing in standings_of(app, {name: each.limit for name, each in used.items()}):
            config = standing.config
            cost = used[config.name].limit.cost
            if config.override is not None and isinstance(cost, int) and cost > config.override.most:
                yield (
                    f"limit {config.name!r} is stored as {config.override} by {config.by}, and each of its calls costs "
                    f"{cost}: none can ever be granted. Store a burst of at least {cost}, or unset it"
                )
    except StoreUnavailable as error:
        yield store_lost(f"the store at {without_password(settings_of(app).url)}", error)
    except ConfigurationError as error:  # a worker would not start either
        yield str(error)


def _check_publish_failures(app: Celery) -> Iterator[str]:
    backlog = backlog_of(app)
    for name, failures in backlog.register.publish_failures().items() if backlog.can_park else ():
        for failure in failures:
            yield (
                f"limit {name!r}: {failure}. Such tasks stay in the store and are tried again within five minutes: "
                "declare the queue, or mend what the broker says"
            )


def _check_persistence(app: Celery) -> Iterator[str]:
    limiter = limiter_of(app)
    if limiter._asker.is_cluster:
        return
    try:
        aof = limiter.client.info("persistence").get("aof_enabled")
        save = limiter.client.config_get("save").get("save", "")
    except Exception:  # a right that the store's user lacks
        return
    if not aof and not save:
        yield (
            "the store keeps nothing on disk (appendonly no, save ''): when it is restarted, all parked tasks are "
            "lost, and the broker's messages, if it is the same server. Set appendonly yes there"
        )


def check_workers(app: Celery) -> Iterator[str]:
    """What is wrong with workers that answer within a second, and limits without a worker.

    An :class:`InformationalFinding` is not wrong.
    """
    if is_on_sqs(app):
        yield InformationalFinding("on SQS workers have no remote control, so none was asked")
        return
    ours, backlog, used = version("celery-ratelimit"), backlog_of(app), owners_of(app)
    first = {name: each.limit for name, each in [*used.items()][:1]}
    try:
        before, is_lost = standings_of(app, first), False
    except STORE_TROUBLES:  # as check_store says
        before, is_lost = [], True
    try:
        alive, replies = query_workers(app, "ping", PATIENCE), query_workers(app, "ratelimits", PATIENCE)
        began = perf_counter()
        after = standings_of(app, first) if before else []
        took = 1000 * (perf_counter() - began)
    except BrokerDidNotAnswer as error:
        yield f"the broker does not answer, so no worker was asked: {error}"
        return
    if not alive:
        yield f"no worker has answered within {PATIENCE:g} s: start one, or see that remote control is not switched off"
        return
    with_package = {
        worker: reply for worker, reply in replies.items() if isinstance(reply, dict) and "version" in reply
    }
    for worker in sorted(alive):
        reply = with_package.get(worker)
        if reply is None:
            yield (
                f"worker {worker} does not know of `ratelimits`: it has an older version of this package, or none. "
                "Restart it with this one"
            )
            continue
        for queue in reply.get("refused", ()):
            yield (
                f"worker {worker} may not declare the return queue of {queue!r}: its throttled tasks return behind its "
                "other messages. Grant configure for it, as the worker's log says, or declare it"
            )
        if reply["version"] != ours:
            yield f"worker {worker} has version {reply['version']} of this package, and this process {ours}"
        if after and not before[0].now - CLOCK_SKEW <= reply["now"] <= after[0].now + CLOCK_SKEW:
            yield (
                f"the clock of worker {worker} is off by about {reply['now'] - after[0].now:.0f} s from the store's: "
                "limits do not mind, but countdowns and expires do. Let NTP set it"
            )
    if is_lost:
        return
    seen = backlog.register.seen() if backlog.can_park else None
    for name, owned in used.items():
        if seen is not None and seen.limits and not seen.attends(name):
            what = ", ".join([*owned.tasks, *owned.queues][:3])
            yield (
                f"no live worker has the limit {name!r} (of {what}): what is parked for it goes back to its queue. "
                "Start workers of this version of the code"
            )
    yield from _check_processes(app, with_package)
    yield from _check_connections(app, with_package)
    names = f"{', '.join(sorted(alive)[:NAMED])}{', …' if len(alive) > NAMED else ''}"
    yield InformationalFinding(
        f"{number_of(len(alive), 'worker')} answered ({names}); the store at {without_password(settings_of(app).url)} "
        f"answered in {took:.1f} ms"
    )


def _check_processes(app: Celery, replies: Replies) -> Iterator[str]:
    """Little's law: a rate needs as many processes as tasks start while one of them runs.

    A warning where tasks wait, else a note.
    """
    pools = {worker: reply for worker, reply in replies.items() if "takes" in reply}
    owned = {name: each for name, each in owners_of(app).items() if _has_one_bucket(each)}
    if not pools or not owned:
        return
    stats = limiter_of(app).stats(owned, force=True)
    for status in overview(app, *owned):
        takes = _takes(owned[status.name], pools, stats[status.name])
        if takes is None or not status.standing.interval:
            continue
        there = sum(pool["processes"] for pool in pools.values() if not set(pool["queues"]).isdisjoint(status.queues))
        starts = 1 / (status.standing.interval * _cost(owned[status.name], stats[status.name]))
        wanted = math.ceil(starts * takes - 1e-9)
        if there and wanted > there:
            kind = str if status.parked or status.queued or status.standing.waiting else InformationalFinding
            yield kind(
                f"limit {status.name!r}: {starts:.3g}/s of tasks that take {_seconds(takes)} want {wanted} processes, "
                f"and the workers that answered have {there} for their queues ({', '.join(status.queues)}): no more "
                f"than {there / takes:.3g}/s can start. Start more of them if all of the rate is to be used"
            )


def _check_connections(app: Celery, replies: Replies) -> Iterator[str]:
    """Whether the store accepts as many connections as the workers may open."""
    limiter = limiter_of(app)
    pools = [reply for reply in replies.values() if "processes" in reply]
    if limiter._asker.is_cluster or not pools:
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
