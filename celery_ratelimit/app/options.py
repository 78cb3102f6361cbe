"""The throttling options of a task; and checks for misspelt ones."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery import Task

from .._celery import models_of
from ..errors import ConfigurationError, shown
from ..limits.any_limit import AnyLimit, check_template
from ..limits.templates import Key, arguments_of, called, check_names, fields_of, filled, signature_of

__all__ = [
    "OPTIONS",
    "OVERFLOWS",
    "THROTTLES",
    "Policy",
    "alike_of",
    "has_options",
    "misspelt_options",
    "policy_of",
    "refuse_forgotten",
]

#: The options of tasks.
OPTIONS = (
    *("limits", "throttle", "inline_wait", "max_wait", "overflow", "coalesce", "coalesce_key"),
    *("upstream_errors", "max_upstream_throttles"),
)
THROTTLES = ("retry", "wait", "drop", "fail")
OVERFLOWS = ("fail", "drop")
COALESCES = ("newest", "oldest")

#: Attributes of Celery's tasks. (Reading some of them logs a deprecation.)
_CELERYS = frozenset(dir(Task))


@dataclass(frozen=True, slots=True)
class Policy:
    """How a throttled task is handled: the options of :class:`~celery_ratelimit.RateLimitedTask`.

    Attributes:
        throttle: ``"retry"``, ``"wait"``, ``"drop"`` or ``"fail"``.
        inline_wait: seconds that a task may be held in the worker.
        max_wait: seconds; a task whose slot is further away is given up; ``None``: it waits for ever.
        overflow: handling of a task that is given up: ``"fail"``, ``"drop"``, or the queue that it goes to.
        coalesce: the task that stays of several equal waiting ones: ``"newest"``, ``"oldest"``; ``None``: all.
        coalesce_key: compares them: a template or a callable; ``None``: all arguments.
    """

    throttle: str
    inline_wait: float
    max_wait: float | None
    overflow: str
    coalesce: str | None = None
    coalesce_key: str | Callable[..., Any] | None = None

    @property
    def waits(self) -> bool:
        """Whether a throttled task waits for a slot."""
        return self.throttle in ("retry", "wait")

    @property
    def claim(self) -> float:
        """Most seconds until a throttled task's slot; without ``max_wait`` infinite, since a pause may have no end."""
        if not self.waits:
            return 0.0
        return math.inf if self.max_wait is None else self.max_wait


def _is_misspelt(overflow: str, app: Any) -> bool:
    """Whether ``overflow`` is probably no queue's name: "wait", or similar to "fail", and unknown to the app."""
    if overflow in OVERFLOWS or overflow in app.amqp.queues:
        return False
    return overflow in THROTTLES or bool(difflib.get_close_matches(overflow.lower(), OVERFLOWS, cutoff=0.7))


def policy_of(task: Any, limits: Iterable[AnyLimit], where: str) -> Policy:
    """The policy of a task.

    Raises:
        ConfigurationError: an invalid option; names the task and the value.
    """
    throttle = getattr(task, "throttle", "retry")
    if throttle not in THROTTLES:
        raise ConfigurationError(f"{where}: throttle={throttle!r} is not one of {', '.join(map(repr, THROTTLES))}")
    inline_wait = getattr(task, "inline_wait", None)
    if inline_wait is None:
        # Less than it takes to send a task away. How long a lease will be held is not known.
        inline_wait = 0.020 if any(limit.interval for limit in limits) else 0.0
    overflow = getattr(task, "overflow", "fail")
    if not isinstance(overflow, str) or not overflow or _is_misspelt(overflow, task.app):
        raise ConfigurationError(f"{where}: overflow={overflow!r} is neither 'fail' nor 'drop' nor the name of a queue")
    known = overflow in OVERFLOWS or overflow in task.app.amqp.queues
    if not known and not task.app.conf.task_create_missing_queues:
        raise ConfigurationError(
            f"{where}: overflow={overflow!r} is not in task_queues, and nothing is sent to queues that are not there "
            "(task_create_missing_queues=False)"
        )
    max_wait = getattr(task, "max_wait", None)
    for name, seconds in (("inline_wait", inline_wait), ("max_wait", max_wait)):
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e9
        ):
            raise ConfigurationError(f"{where}: {name}={seconds!r} must be a number of seconds, 0 to 1e9")
    coalesce, key = _coalescing(task, throttle, where)
    return Policy(throttle, float(inline_wait), None if max_wait is None else float(max_wait), overflow, coalesce, key)


def _coalescing(task: Any, throttle: str, where: str) -> tuple[str | None, Any]:
    """The options ``coalesce`` and ``coalesce_key``, checked."""
    coalesce, key = getattr(task, "coalesce", None), getattr(task, "coalesce_key", None)
    if inspect.ismethod(key) and key.__self__ is task:
        key = key.__func__  # Celery makes a function among the options an attribute of the task's class
    if coalesce is None:
        if key is not None:
            raise ConfigurationError(f"{where}: coalesce_key={key!r} needs coalesce= beside it")
        return None, None
    if coalesce not in COALESCES:
        raise ConfigurationError(f"{where}: coalesce={coalesce!r} is not one of {', '.join(map(repr, COALESCES))}")
    if throttle != "retry":
        why = "leaves the backlog in the broker" if throttle == "wait" else "lets no task wait"
        raise ConfigurationError(
            f"{where}: coalesce={coalesce!r} is about tasks that wait in the store, and throttle={throttle!r} {why}: "
            "take throttle='retry', or leave coalesce= out"
        )
    check_template(where, "coalesce_key", key)
    if isinstance(key, str):
        named = dict.fromkeys(fields_of(key), f"coalesce_key={key!r}")
        check_names(named, signature_of(task.run), where, models=models_of(task) is not None)
    return coalesce, key


def has_options(task: Any) -> bool:
    """Whether a task's class has the options of :class:`~celery_ratelimit.RateLimitedTask`."""
    return all(hasattr(task, option) for option in OPTIONS)


def misspelt_options(task: Any) -> dict[str, str]:
    """Attributes of a task that are named nearly as one of the options: each with that option."""
    given: dict[str, Any] = {}
    for cls in type(task).__mro__:
        given.update(vars(cls))
    found = {}
    for name, value in given.items():
        if name not in OPTIONS and name not in _CELERYS and not name.startswith("_") and not callable(value):
            for close in difflib.get_close_matches(name, OPTIONS, n=1, cutoff=0.8):
                found[name] = close
    return found


def refuse_forgotten(task: Any, where: str) -> None:
    """Reject an unlimited task whose ``limits`` option is misspelt.

    Raises:
        ConfigurationError: an option that is named nearly ``limits``; names it and the task.
    """
    for name, option in misspelt_options(task).items() if has_options(task) else ():
        if option == "limits":
            raise ConfigurationError(
                f"{where}: there is no option {name}= ({name}={getattr(task, name)!r}), and nothing limits the task: "
                f"did you mean {option}=?"
            )


def alike_of(
    name: str,
    key: Key | None,
    signature: inspect.Signature | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """The deduplication key of a call: 32 hex digits, the same for calls that count as duplicates.

    Args:
        name: of the task.
        key: a template over its arguments, or a callable that gets them; ``None``: all arguments count.
        signature: of the task.
        args, kwargs: of the call.
    """
    if callable(key):
        alike: Any = called(key, args, kwargs)
    else:
        arguments = arguments_of(signature, args, kwargs)
        if signature is None and key is None:
            arguments = {"*": list(args), **arguments}
        try:
            alike = sorted(arguments.items()) if key is None else filled(key, arguments)
        except Exception as error:  # a missing argument or part, or one that cannot be formatted
            raise ConfigurationError(
                f"task {name!r}: coalesce_key={shown(key)} cannot be filled from the arguments "
                f"{', '.join(map(str, arguments)) or '(none)'}: {shown(error)}"
            ) from error
    return hashlib.sha256(f"{name}\0{alike!r}".encode(errors="surrogatepass")).hexdigest()[:32]
