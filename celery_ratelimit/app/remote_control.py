"""``celery inspect ratelimits``, ``celery control ratelimit_set/_pause/_resume``: limits by Celery's remote control.

Every worker that receives a command carries it out; the first one changes the limit, the others find it changed. The
call to the store blocks the worker's loop for at most half a second.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from celery.worker.control import control_command, inspect_command

from ..errors import RateLimitError
from ..name_suggestions import FORCE_HINT, IMPORT_HINT

__all__ = ["ratelimit_pause", "ratelimit_resume", "ratelimit_set", "ratelimit_task", "ratelimits"]

#: Seconds within which an equal change counts as the same command, received by another worker.
TOGETHER = 5.0


@inspect_command()
def ratelimits(state: Any, **kwargs: Any) -> dict[str, Any]:
    """A worker's limits in code, its version of this package, its clock, and the state of its pool."""
    from .._celery.worker_display import pool_status
    from .app_limits import limits_of_app
    from .limit_conflicts import without_names

    limits = without_names(limits_of_app(state.app))
    # `check --fleet` compares the worker's clock with the store's.
    return {"version": version("celery-ratelimit"), "now": time.time(), "limits": limits, **pool_status(state)}


@inspect_command(args=[("id", str)], signature="ID")
def ratelimit_task(state: Any, id: str, **kwargs: Any) -> dict[str, str] | None:
    """A task's state in a worker: running, held, or on a countdown."""
    from .._celery.worker_display import locate_task  # not for each `celery` command that only asks workers

    return locate_task(state, id)


@control_command(args=[("name", str), ("rate", str)], signature="NAME RATE")
def ratelimit_set(state: Any, name: str, rate: str, **kwargs: Any) -> dict[str, str]:
    """Store a rate that replaces the code's, for the whole fleet."""

    def do(limiter: Any) -> str:
        config = limiter.config(name)
        if (
            config.override is not None
            and getattr(config.override, "rate", "") == rate
            and time.time() < config.since + TOGETHER
        ):
            return f"{name} is {rate} already"
        limiter.set_rate(name, rate, by=_by(state))
        return f"{name}: {rate}"

    return _answer(state, do)


@control_command(args=[("name", str), ("seconds", float)], signature="NAME SECONDS")
def ratelimit_pause(state: Any, name: str, seconds: float, **kwargs: Any) -> dict[str, str]:
    """Grant nothing for ``seconds``, in the whole fleet."""

    def do(limiter: Any) -> str:
        paused = limiter.config(name).paused
        if paused < float(seconds) - TOGETHER or not paused:
            paused = limiter.pause(name, float(seconds), by=_by(state))
        return f"{name} is paused for {paused:.1f} s"

    return _answer(state, do)


@control_command(args=[("name", str)], signature="NAME")
def ratelimit_resume(state: Any, name: str, **kwargs: Any) -> dict[str, str]:
    """End a pause."""
    return _answer(
        state, lambda limiter: f"{name} goes on" if limiter.resume(name, by=_by(state)) else f"{name} is not paused"
    )


def _by(state: Any) -> str:
    return f"celery control, in {state.hostname}"


def _answer(state: Any, do: Any) -> dict[str, str]:
    from .app_store import limiter_of

    try:
        return {"ok": do(limiter_of(state.app))}
    except RateLimitError as error:
        return {"error": str(error).replace(FORCE_HINT, "").replace(IMPORT_HINT, "")}
