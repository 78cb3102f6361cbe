"""What people do by hand, on the command line and on the page: a limit out of what they wrote, parked tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from celery import Celery

from .._celery.broker import broker_problem
from ..errors import ConfigurationError, RateLimitError
from ..limiter.limiter import Limiter
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.limit import Limit
from ..words import unnamed
from .limit_status import standings_of
from .parking_lots import ParkingLots

__all__ = ["limit_meant", "parked_page", "taken_out"]


def limit_meant(limiter: Limiter, name: str, rate: str, burst: int | None) -> str | AnyLimit:
    """What is meant: places for a number, a rate with the options of the code's limit else."""
    code, is_number = limiter.config(name, force=True).code, rate.isascii() and rate.isdigit()
    if isinstance(code, Concurrency) and not (is_number and int(rate)):
        raise ConfigurationError(
            f"{name} is {unnamed(code)} in the code: write how many places, a whole number of at least 1"
        )
    if isinstance(code, Limit) and is_number:
        raise ConfigurationError(f"{name} is a rate in the code ({unnamed(code)}): write {rate}/s, or {rate}/m")
    if is_number:
        return Concurrency(int(rate))
    if burst is None:
        return rate
    return replace(code, rate=rate, burst=burst) if isinstance(code, Limit) else Limit(rate, burst=burst)


def taken_out(
    app: Celery, verb: str, name: str, ids: Sequence[str], key: str | None = None, *, force: bool = False
) -> int:
    """How many parked tasks were released or purged (``verb``): those of these ids, all without one; of all keys
    without one.

    Raises:
        RateLimitError: the broker does not answer.
    """
    lots = ParkingLots(app)
    do = getattr(lots, verb)
    keys = [key] if key is not None else [lot.key for lot in lots.lots(name, force=force)]
    try:
        return sum(do(name, each, list(ids) or None, force=True) for each in keys)
    except RateLimitError:
        raise
    except Exception as error:
        trouble = broker_problem(app, error)
        if not trouble:
            raise
        raise RateLimitError(trouble) from error


def parked_page(
    app: Celery, lots: ParkingLots, name: str, key: str | None, first: int, number: int, *, force: bool = False
) -> tuple[int, list[dict[str, Any]]]:
    """How many tasks are parked for a limit, or for one of its keys; and some, with when each is about to start.

    Args:
        app: the app.
        lots: its lots.
        name: of the limit.
        key: of the bucket; ``None``: of all.
        first: how many to leave out.
        number: how many at most.
        force: for a name that nobody knows, too.
    """
    rows: list[dict[str, Any]] = []
    skip, total = first, 0
    for lot in lots.lots(name, force=force):
        if key is not None and lot.key != key:
            continue
        total += lot.parked
        if skip >= lot.parked or len(rows) == number:
            skip = max(0, skip - lot.parked)
            continue
        (standing,) = standings_of(app, lots.limits, [(name, lot.key)])
        each = lot.cost / lot.parked * standing.interval if standing.interval else None
        soonest = standing.now + max(standing.retry_after, standing.config.paused)
        for place, task in enumerate(
            lots.tasks(name, lot.key, first=skip, number=number - len(rows), force=True), skip
        ):
            turn = soonest + place * each if each is not None else None
            rows.append({"place": place + 1, "key": lot.key, "turn": turn, "task": task, "now": standing.now})
        skip = 0
    return total, rows
