"""Checks of a set-up: each yields what is wrong, in a sentence that says what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from math import inf

from celery import Celery

from .._celery import BrokerDidNotAnswer, query_workers, visibility_timeout_of
from ..app.settings import settings_of
from ..app.state import limiter_of
from ..app.survey import owners_of
from ..backlog.backlog import backlog_of
from ..backlog.tuning import UNATTENDED
from ..errors import STORE_TROUBLES, ConfigurationError, StoreUnavailable
from ..limits.limit import Limit
from ..store.url_text import without_password
from .capacity_checks import Hint, check_connections, check_processes
from .limit_status import standings_of
from .task_lookup import PATIENCE

__all__ = ["Hint", "check_settings", "check_store", "check_workers"]

#: Seconds by which a worker's clock may differ from the store's, beside the time of the question.
CLOCK_SKEW = 2.0


def check_settings(app: Celery) -> Iterator[str]:
    """What is wrong with the settings; asks neither store nor broker."""
    redelivery, used = visibility_timeout_of(app), owners_of(app)
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
        if any(isinstance(each.limit, Limit) for each in used.values()) and backlog_of(app).can_park:
            yield from _check_persistence(app)
        yield from _check_publish_failures(app)
        for standing in standings_of(app, {name: each.limit for name, each in used.items()}):
            config = standing.config
            cost = used[config.name].limit.cost
            if config.stored is not None and isinstance(cost, int) and cost > config.stored.most:
                yield (
                    f"limit {config.name!r} is stored as {config.stored} by {config.by}, and each of its calls costs "
                    f"{cost}: none can ever be granted. Store a burst of at least {cost}, or unset it"
                )
    except StoreUnavailable as error:
        where = without_password(settings_of(app).url)
        yield f"the store at {where} does not answer: {error.__cause__ or error}"
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
    if limiter.asker.is_cluster:
        return
    try:
        aof = limiter.client.info("persistence").get("aof_enabled")
        save = limiter.client.config_get("save").get("save", "")
    except Exception:  # a right that the store's user lacks
        return
    if not aof and not save:
        yield (
            "the store keeps nothing on disk (appendonly no, save ''): when it is restarted, all parked tasks are "
            "lost. Set appendonly yes there, or throttle='wait' for tasks that must not be lost"
        )


def check_workers(app: Celery) -> Iterator[str]:
    """What is wrong with the workers that answer within a second, and limits without a worker; also a :class:`Note`."""
    ours, backlog, used = version("celery-ratelimit"), backlog_of(app), owners_of(app)
    first = {name: each.limit for name, each in [*used.items()][:1]}
    try:
        before, is_lost = standings_of(app, first), False
    except STORE_TROUBLES:  # as check_store says
        before, is_lost = [], True
    try:
        alive, replies = query_workers(app, "ping", PATIENCE), query_workers(app, "ratelimits", PATIENCE)
        after = standings_of(app, first) if before else []
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
        if reply["version"] != ours:
            yield f"worker {worker} has version {reply['version']} of this package, and this process {ours}"
        if after and not before[0].now - CLOCK_SKEW <= reply["now"] <= after[0].now + CLOCK_SKEW:
            yield (
                f"the clock of worker {worker} is off by about {reply['now'] - after[0].now:.0f} s from the store's: "
                "limits do not mind, but countdowns and expires do. Let NTP set it"
            )
    if is_lost:
        return
    last_seen = backlog.register.seen((), ()).limits if backlog.can_park else {}
    for name, owned in used.items():
        if last_seen and last_seen.get(name, inf) >= UNATTENDED:
            what = ", ".join([*owned.tasks, *owned.queues][:3])
            yield (
                f"no live worker has the limit {name!r} (of {what}): what is parked for it goes back to its queue. "
                "Start workers of this version of the code"
            )
    yield from check_processes(app, with_package)
    yield from check_connections(app, with_package)
