"""What is wrong with a set-up, and what to do about it: asked of the settings, the store, and the workers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from celery import Celery

from .._celery import BrokerDidNotAnswer, query_workers, visibility_timeout_of
from ..app.settings import settings_of
from ..app.state import limiter_of
from ..app.survey import owners_of
from ..backlog.backlog import backlog_of
from ..backlog.fleet_registry import UNATTENDED
from ..errors import STORE_TROUBLES, ConfigurationError, StoreUnavailable
from ..limits.limit import Limit
from ..store.url_text import without_password
from .capacity_checks import Note, of_connections, of_processes
from .limit_status import standings_of

__all__ = ["Note", "of_settings", "of_store", "of_workers"]

#: Seconds that workers have to answer; seconds by which a clock may be off, beside those.
PATIENCE, OFF = 1.0, 2.0


def of_settings(app: Celery) -> Iterator[str]:
    """What the settings say, without asking anybody."""
    redelivery = visibility_timeout_of(app)
    used = owners_of(app)
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


def of_store(app: Celery) -> Iterator[str]:
    """What the store says of itself, and of what is stored there; or that it does not answer."""
    try:
        yield from _of_store(app)
    except StoreUnavailable as error:
        where = without_password(settings_of(app).url)
        yield f"the store at {where} does not answer: {error.__cause__ or error}"
    except ConfigurationError as error:  # a worker would not start either
        yield str(error)


def _of_store(app: Celery) -> Iterator[str]:
    limiter = limiter_of(app)
    yield from limiter.check_store()
    yield from _of_persistence(app)
    yield from _of_failures(app)
    used = owners_of(app)
    for owned, standing in zip(
        used.values(), standings_of(app, {name: each.limit for name, each in used.items()}), strict=True
    ):
        config, cost = standing.config, owned.limit.cost
        if config.stored is not None and isinstance(cost, int) and cost > config.stored.most:
            yield (
                f"limit {config.name!r} is stored as {config.stored} by {config.by}, and each of its calls costs "
                f"{cost}: none can ever be granted. Store a burst of at least {cost}, or unset it"
            )


def _of_failures(app: Celery) -> Iterator[str]:
    for name, failures in backlog_of(app).register.publish_failures().items() if backlog_of(app).can_park else ():
        for failure in failures:
            yield (
                f"limit {name!r}: {failure}. Such tasks stay in the store and are tried again within five minutes: "
                "declare the queue, or mend what the broker says"
            )


def _of_persistence(app: Celery) -> Iterator[str]:
    limiter = limiter_of(app)
    parks = any(isinstance(each.limit, Limit) for each in owners_of(app).values()) and backlog_of(app).can_park
    if not parks or limiter.asker.is_cluster:
        return
    try:
        aof = limiter.client.info("persistence").get("aof_enabled")
        save = limiter.client.config_get("save").get("save", "")
    except Exception:  # its user may not ask
        return
    if not aof and not save:
        yield (
            "the store keeps nothing on disk (appendonly no, save ''): when it is restarted, all parked tasks are "
            "lost. Set appendonly yes there, or throttle='wait' for tasks that must not be lost"
        )


def of_workers(app: Celery) -> Iterator[str]:
    """What the workers say that answer within a second, and what none has said; a :class:`Note` is no warning."""
    ours, parking = version("celery-ratelimit"), backlog_of(app)
    used = owners_of(app)
    first = {name: each.limit for name, each in [*used.items()][:1]}
    try:
        now = standings_of(app, first)
        is_lost = False
    except STORE_TROUBLES:  # which is said already
        now, is_lost = [], True
    try:
        alive, said = query_workers(app, "ping", PATIENCE), query_workers(app, "ratelimits", PATIENCE)
        clock = standings_of(app, first) if now else []
    except BrokerDidNotAnswer as error:
        yield f"the broker does not answer, so no worker was asked: {error}"
        return
    if not alive:
        yield f"no worker has answered within {PATIENCE:g} s: start one, or see that remote control is not switched off"
        return
    for worker in sorted(alive):
        told = said.get(worker)
        if not isinstance(told, dict) or "version" not in told:
            yield (
                f"worker {worker} does not know of `ratelimits`: it has an older version of this package, or none. "
                "Restart it with this one"
            )
            continue
        if told["version"] != ours:
            yield f"worker {worker} has version {told['version']} of this package, and this process {ours}"
        if clock and not now[0].now - OFF <= told["now"] <= clock[0].now + OFF:
            yield (
                f"the clock of worker {worker} is off by about {told['now'] - clock[0].now:.0f} s from the store's: "
                "limits do not mind, but countdowns and expires do. Let NTP set it"
            )
    if is_lost:
        return
    seen = parking.register.seen((), ()).limits if parking.can_park else {}
    for name, owned in used.items():
        if seen and seen.get(name, float("inf")) >= UNATTENDED:
            what = ", ".join([*owned.tasks, *owned.queues][:3])
            yield (
                f"no live worker has the limit {name!r} (of {what}): what is parked for it goes back to its queue. "
                "Start workers of this version of the code"
            )
    of_ours = {worker: told for worker, told in said.items() if isinstance(told, dict) and "version" in told}
    yield from of_processes(app, of_ours)
    yield from of_connections(app, of_ours)
