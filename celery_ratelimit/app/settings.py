"""The ``ratelimit_*`` settings of a Celery app: read from its configuration, and checked once."""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery import Celery

from .._celery import is_on_sqs
from ..errors import ConfigurationError
from ..limits.any_limit import MISSING_KEY, AnyLimit, check_quota
from ..limits.parse_limit import limit_of, named
from ..store.keys import DEFAULT_PREFIX
from ..store.url_text import without_password
from .app_attributes import kept
from .store_address import store_address

__all__ = [
    "Settings",
    "forks_apart",
    "has_limits",
    "limits_of",
    "named",
    "settings_of",
]

ON_STORE_ERROR = ("defer", "allow", "local", "raise")

#: The defaults of all settings.
DEFAULTS: dict[str, Any] = {
    "ratelimit_url": None,
    "ratelimit_store_options": {},
    "ratelimit_quotas": {},
    "ratelimit_tasks": {},
    "ratelimit_queues": {},
    "ratelimit_on_store_error": "defer",
    "ratelimit_missing_key": "error",
    "ratelimit_prefix": None,
    "ratelimit_return_queue": "{queue}.throttled",
    "ratelimit_fleet": None,
    "ratelimit_orphans_after": 60,
    "ratelimit_observers": (),
    "ratelimit_counts": True,
    "ratelimit_upstream_errors": {},
    "ratelimit_max_upstream_throttles": 20,
}

_HARMLESS = set(string.ascii_letters + string.digits + ".-_")


@dataclass(frozen=True)
class Settings:
    """The checked settings of one app.

    Attributes:
        url, options: the limiter's store, and the options of its client.
        quotas: limits by name.
        tasks: limits by task name or pattern, as written; each matching task has its own bucket of an unnamed limit.
        queues: limits by queue.
        on_store_error: handling of a task while the store does not answer.
        missing_key: the ``missing_key`` of limits that have none.
        prefix: the start of every key in the store; begins with ``global_keyprefix`` where that is set.
        return_queue: the queue of returned tasks, a template over ``queue``.
        fleet: names the broker, so that parked tasks return to it; ``""``: named after its URL.
        orphans_after: seconds after which tasks that no worker attends to go back to their own queues.
        observers: the observers of tasks' outcomes, as written; see ``observers.py``.
        counts: whether decisions are counted in the store.
        upstream_errors: errors that are refusals by an upstream, as written; see ``upstream_errors.py``.
        max_upstream_throttles: how often a task is put back because its upstream refused its call.
    """

    url: str = field(repr=False)
    quotas: Mapping[str, AnyLimit]
    tasks: tuple[tuple[str, tuple[AnyLimit, ...]], ...]
    queues: Mapping[str, tuple[AnyLimit, ...]]
    on_store_error: str
    prefix: str
    return_queue: str
    fleet: str
    options: Mapping[str, Any] = field(repr=False)
    missing_key: str
    orphans_after: float
    observers: tuple[Any, ...]
    counts: bool
    upstream_errors: Mapping[Any, Any]
    max_upstream_throttles: int

    @property
    def in_memory(self) -> bool:
        """Whether the store counts within one process only."""
        return self.url.startswith("memory:")

    def return_queue_for(self, queue: str) -> str:
        """The name of a queue's return queue. A return queue is its own, since it may be consumed like any queue."""
        before, after = self.return_queue.split("{queue}")
        long_enough = len(queue) > len(before) + len(after)
        is_one = long_enough and queue.startswith(before) and queue.endswith(after)
        return queue if is_one else before + queue + after


def settings_of(app: Celery) -> Settings:
    """The settings of ``app``, read and checked at the first call.

    Raises:
        ConfigurationError: an unknown setting, or an invalid value; names both and says what is valid.
    """
    settings: Settings = kept(app, "settings", lambda: _read(app))
    return settings


def limits_of(spec: Any, quotas: Mapping[str, AnyLimit], where: str) -> tuple[AnyLimit, ...]:
    """Read limits as users write them: a rate, a quota's name, a limit, a mapping of its arguments, or a list.

    Args:
        spec: the limits as written.
        quotas: quotas by name.
        where: names the setting or option in errors.
    """
    several = spec if isinstance(spec, (list, tuple)) else [spec]
    if not several:
        raise ConfigurationError(f"{where}: {spec!r} names no limit: leave it out, or say which limit it has")
    return tuple(limit_of(each, quotas, where) for each in several)


def _read(app: Celery) -> Settings:
    value = {name: app.conf.get(name, default) for name, default in DEFAULTS.items()}  # loads what is lazy
    _refuse_unknown(app)
    quotas = {name: _quota(name, spec) for name, spec in _mapping(value, "ratelimit_quotas")}
    tasks = tuple(
        (pattern, limits_of(spec, quotas, f"ratelimit_tasks[{pattern!r}]"))
        for pattern, spec in _mapping(value, "ratelimit_tasks")
    )
    queues = {
        queue: named(limits_of(spec, quotas, f"ratelimit_queues[{queue!r}]"), queue)
        for queue, spec in _mapping(value, "ratelimit_queues")
    }
    on_store_error = value["ratelimit_on_store_error"]
    if on_store_error not in ON_STORE_ERROR:
        raise ConfigurationError(
            f"ratelimit_on_store_error={on_store_error!r} is not one of {', '.join(map(repr, ON_STORE_ERROR))}"
        )
    missing_key = value["ratelimit_missing_key"]
    if missing_key not in MISSING_KEY:
        raise ConfigurationError(
            f"ratelimit_missing_key={missing_key!r} is not one of {', '.join(map(repr, MISSING_KEY))}"
        )
    prefix = _prefix(app) if value["ratelimit_prefix"] is None else value["ratelimit_prefix"]
    if not isinstance(prefix, str) or not prefix or set(prefix) & set("{} "):
        raise ConfigurationError(f"ratelimit_prefix={prefix!r} must be a text without spaces and braces")
    return_queue = value["ratelimit_return_queue"]
    if return_queue == DEFAULTS["ratelimit_return_queue"] and is_on_sqs(app):
        return_queue = return_queue.replace(".", "-")  # as kombu names it there, but not wherever it looks for it
    parts = return_queue.split("{queue}") if isinstance(return_queue, str) else []
    if len(parts) != 2 or set("{}") & set("".join(parts)):
        raise ConfigurationError(
            f"ratelimit_return_queue={return_queue!r} must be a text with {{queue}} in it, "
            f"as in {DEFAULTS['ratelimit_return_queue']!r}"
        )
    fleet = value["ratelimit_fleet"]
    if fleet is not None and (not isinstance(fleet, str) or not fleet or not set(fleet) <= _HARMLESS):
        raise ConfigurationError(f"ratelimit_fleet={fleet!r} must be a name of letters, digits, '.', '-' and '_'")
    orphans_after = value["ratelimit_orphans_after"]
    if isinstance(orphans_after, bool) or not isinstance(orphans_after, (int, float)) or not 0 <= orphans_after < 1e9:
        raise ConfigurationError(f"ratelimit_orphans_after={orphans_after!r} must be a number of seconds, 0 to 1e9")
    observers = value["ratelimit_observers"]
    if not isinstance(observers, (list, tuple)):
        raise ConfigurationError(
            f"ratelimit_observers={observers!r} must be a list of names ('proj.metrics.observer'), or of functions"
        )
    counts = value["ratelimit_counts"]
    if not isinstance(counts, bool):
        raise ConfigurationError(f"ratelimit_counts={counts!r} must be True or False")
    most = value["ratelimit_max_upstream_throttles"]
    if isinstance(most, bool) or not isinstance(most, int) or most < 0:
        raise ConfigurationError(f"ratelimit_max_upstream_throttles={most!r} must be a whole number, 0 or more")
    url, options = store_address(app, value["ratelimit_url"], value["ratelimit_store_options"])
    return Settings(
        counts=counts,
        upstream_errors=value["ratelimit_upstream_errors"],
        max_upstream_throttles=most,
        observers=tuple(observers),
        fleet=fleet or "",
        orphans_after=float(orphans_after),
        url=url,
        options=options,
        quotas=quotas,
        tasks=tasks,
        queues=queues,
        on_store_error=on_store_error,
        missing_key=missing_key,
        prefix=prefix,
        return_queue=return_queue,
    )


def _quota(name: str, spec: Any) -> AnyLimit:
    where = f"ratelimit_quotas[{name!r}]"
    return check_quota(name, named([limit_of(spec, {}, where)], name)[0], where)


def _prefix(app: Celery) -> str:
    """The key prefix. Apps that share a Redis, each with a ``global_keyprefix``, have separate limits."""
    options = app.conf.broker_transport_options or {}
    apart = re.sub(r"[{}\s%]", lambda found: f"%{ord(found[0]):02X}", str(options.get("global_keyprefix") or ""))
    return apart + DEFAULT_PREFIX


def _mapping(value: Mapping[str, Any], name: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value[name], Mapping):
        raise ConfigurationError(f"{name}={value[name]!r} must be a mapping of names to limits")
    return list(value[name].items())


def _refuse_unknown(app: Celery) -> None:
    for written, name in _written(app):
        if name not in DEFAULTS:
            close = difflib.get_close_matches(name, DEFAULTS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(DEFAULTS)}"
            raise ConfigurationError(f"there is no setting {written!r}: {hint}")


def _written(app: Celery) -> Iterator[tuple[str, str]]:
    """The ``ratelimit_*`` settings of an app: each name as written, and the setting's own name."""
    app.conf.get("ratelimit_url")  # loads what is lazy
    namespace = app.conf.prefix
    for mapping in app.conf.maps:
        for written in map(str, mapping):
            name = written
            if namespace and name.startswith(namespace):
                name = name[len(namespace) :]
            elif namespace and name.isupper():
                continue  # another package's, outside of the namespace: django-ratelimit has a RATELIMIT_ENABLE
            if name.lower().startswith("ratelimit_"):
                yield written, name.lower()


def has_limits(app: Celery) -> bool:
    """Whether an app has limits: in a setting, or in a task's options. Nothing is checked."""
    # A name in capitals without a namespace may be another package's, unless it is one of our names.
    if any(name in DEFAULTS or not written.isupper() for written, name in _written(app)):
        return True
    return any(getattr(task, "limits", None) is not None for task in list(app.tasks.values()))


def forks_apart(url: str) -> ConfigurationError:
    """The error for a store in memory under a pool whose processes would each count alone."""
    return ConfigurationError(
        f"ratelimit_url={without_password(url)!r} counts within one process, but the prefork pool runs tasks in "
        "others: start the worker with --pool=solo or --pool=threads, or set ratelimit_url to a Redis or Valkey ('redis://localhost:6379/0')"
    )
