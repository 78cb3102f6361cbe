"""The words that the command line and the page share: limits, changes and parked tasks as rows of text."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import StoreMisconfigured
from ..limits.concurrency import Concurrency
from ..limits.stored_settings import REFUSED, Change, LimitConfig, Stored
from ..words import clock, end_of, few_digits, length, number_of, plain, unnamed
from .bucket_status import use_window
from .forecast import Forecast
from .limit_status import LimitStatus
from .read_parking_lots import ParkingLot

__all__ = [
    "HEADS",
    "HISTORY_HEADS",
    "PARKED_HEADS",
    "busiest",
    "facts_of",
    "history_row",
    "in_force_now",
    "parked_row",
    "rate_set_by",
    "row_of",
    "shadow_set_by",
    "store_lost",
    "used_within",
]

#: What is shown of each limit.
HEADS = (
    "LIMIT",
    "CODE",
    "OVERRIDE",
    "USED",
    "FREE NOW",
    "STARTING SOON",
    "PARKED",
    "OLDEST PARKED",
    "QUEUED",
    "DRAINS IN",
    "STATE",
)
#: What is shown of each change.
HISTORY_HEADS = ("WHEN", "CHANGED BY", "ACTION", "KEY", "BEFORE", "AFTER", "REASON")

#: What is shown of each parked task.
PARKED_HEADS = ("POSITION", "KEY", "SHARE", "ID", "TASK", "QUEUE", "PARKED SINCE", "STARTS IN")

_STATES = ("paused", "backlogged", "at its limit", "shadow", "active", "idle")


def busiest(each: LimitStatus) -> tuple[int, int, str]:
    """A sort key: limits that need attention come first."""
    return _STATES.index(each.state), -each.parked, each.name


def rate_set_by(config: LimitConfig) -> str:
    """The stored limit, also if not in force, its author, end and reason; the share after refused calls; or ``""``."""
    share = f"adaptive: {config.share:.0%} of the rate now" if config.share < 1 else ""
    if config.stored is None:
        return share
    until = f", {end_of('unset', config.until)}" if config.until else ""
    reason = f", {config.reason!r}" if config.reason else ""
    share = ("" if config.override is not None else ", not in force") + (share and f", {share}")
    return plain(f"{unnamed(config.stored)} by {config.by} {clock(config.since)}{until}{reason}{share}")


def shadow_set_by(config: LimitConfig) -> str:
    """The author of a stored shadow, its time and the reason; or that the code has it."""
    stored = config.stored_shadow
    if stored is None:
        return "as in the code"
    reason = f", {stored.reason!r}" if stored.reason else ""
    return plain(f"by {stored.by} {clock(stored.since)}{reason}")


def in_force_now(config: LimitConfig) -> str:
    """The rate in force of a limit and its author, its shadow and its pause."""
    rate = rate_set_by(config)
    if config.override is None:
        rate = f"{unnamed(config.code)} (code)" + (rate and f", {rate}")
    if config.shadow:
        rate += f", in shadow {shadow_set_by(config)}"
    if not config.paused:
        return rate
    return f"{rate}, {pause_said(config, time.time() + config.paused)}"


def pause_said(config: LimitConfig, until: float) -> str:
    """A pause, its author, its end, and the reason that an operator gave."""
    by = f" by {config.paused_by}" if config.paused_by else ""
    is_given = config.pause_reason and not config.paused_by.startswith(REFUSED)
    reason = f", {config.pause_reason!r}" if is_given else ""
    return plain(f"paused{by} {end_of('resumed', until)}{reason}")


def row_of(each: LimitStatus) -> tuple[str, ...]:
    """The status of a limit, as :data:`HEADS` says."""
    standing, config = each.standing, each.standing.config
    left = f"{each.remaining}/{standing.size}" if each.remaining is not None else "by key" if each.by_key else "?"
    state = each.state if each.paused_until is None else pause_said(config, each.paused_until)
    return (
        plain(each.name),
        unnamed(config.code) if config.code is not None else "-",
        rate_set_by(config) or "-",
        _used(each),
        left,
        "by key" if each.by_key else str(standing.waiting),
        str(each.parked),
        length(standing.now - each.oldest) if each.oldest is not None else "?" if each.parked else "-",
        "?" if each.queued is None else str(each.queued),
        "-" if each.forecast == Forecast(0.0) else length(each.drains_in),
        ", ".join([state, *own_keys(each), *_why(each)]),
    )


def own_keys(each: LimitStatus) -> list[str]:
    """As in ``1 key paused``, ``2 with a rate of their own``."""
    paused, rated = [[kind for kind, _ in each.key_settings].count(one) for one in "pr"]
    keys = [f"{number_of(paused, 'key')} paused"] if paused else []
    own = "a rate of its own" if rated == 1 else "a rate of their own"
    return keys + ([f"{rated if paused else number_of(rated, 'key')} with {own}"] if rated else [])


def _why(each: LimitStatus) -> list[str]:
    """Why the forecast is as it is; of a paused limit the state says so."""
    why = each.forecast.why
    return [plain(why)] if why and each.paused_until is None else []


def _used(each: LimitStatus) -> str:
    """As in ``93 of 100/s``; of a limit with keys, the sum over its buckets."""
    if not each.used:
        return "?" if each.used is None else "-"
    number = few_digits(each.used)
    limit = each.standing.config.in_force
    rate = getattr(limit, "rate", None)
    if rate is None:
        return f"{number} of {each.standing.size}" if limit is not None else f"{number}/s"
    if each.share is not None:
        return f"{number} of {rate}"
    return number + rate[rate.find("/") :] if "/" in rate else f"{number}, of {rate} each"


def facts_of(each: LimitStatus, backlogs: Sequence[ParkingLot] = ()) -> list[tuple[str, str]]:
    """All facts of one limit, with its longest backlogs: each with its title."""
    standing, config = each.standing, each.standing.config
    row = dict(zip(HEADS, row_of(each), strict=True))
    by_key = f", by {config.code.key!r}" if each.by_key and config.code is not None else ""
    full = f", full again in {length(standing.reset_after)}" if standing.reset_after and not each.by_key else ""
    lots = f" in {each.lots} lots" if each.lots > 1 else ""
    if config.code is not None and config.code.max_parked is not None:
        lots += f", at most {config.code.max_parked}{' for each key' if each.by_key else ''}"
    facts = [
        ("in the code", f"{row['CODE']}{plain(by_key)}"),
        ("override", row["OVERRIDE"]),
        ("used", _used_and_when(each)),
        ("free now", row["FREE NOW"] + full),
        ("starting soon", row["STARTING SOON"]),
        ("parked", f"{row['PARKED']}{lots}" + (f", the oldest for {row['OLDEST PARKED']}" if each.parked else "")),
        *[("backlog", _backlog(one, standing.now)) for one in backlogs],
        ("queued", row["QUEUED"] + _in_queues(each)),
        ("drains in", _drains_in(each)),
        *[("keys", said) for said in [", ".join(own_keys(each))] if said],
        *[("key", f"{plain(one.config.key)}: {in_force_now(one.config)}") for one in each.settled_keys],
    ]
    if each.shadow_report is not None:
        facts.append(("in shadow", f"{shadow_set_by(config)}: {each.shadow_report}"))
    if each.paused_until is not None:
        facts.append(("paused", pause_said(config, each.paused_until).removeprefix("paused ")))
    if each.upstream:
        facts.append(("upstream", f"{upstream_said(each.upstream)} in the last hour"))
    facts += [("not published", plain(str(failure))) for failure in each.failures]
    if each.tasks:
        facts.append(("for the tasks", plain(", ".join(each.tasks))))
    return facts


def _drains_in(each: LimitStatus) -> str:
    """As in ``5.0 s, give or take 1.5 s, with the queued messages: workers start 1/s of 20/s allowed``."""
    forecast = each.forecast
    if forecast == Forecast(0.0):
        return "-"
    counts = each.queued and forecast.seconds and not each.by_key and each.state != "shadow"
    queued = ", with the queued messages" if counts else ""
    return plain(f"{forecast.wait}{queued}" + (f": {forecast.why}" if forecast.why else ""))


def upstream_said(counts: Mapping[str, int]) -> str:
    """As in ``12 calls refused, 1 pause by headers``; see :data:`celery_ratelimit.observing.UPSTREAM`."""
    words = {
        "upstream_refused": ("call", "refused"),
        "upstream_header": ("pause", "by headers"),
        "breaker_opened": ("opening", "of the breaker"),
    }
    return ", ".join(f"{number_of(number, words[what][0])} {words[what][1]}" for what, number in counts.items())


def _backlog(lot: ParkingLot, now: float) -> str:
    """One of the longest backlogs."""
    of, turn = lot.key if lot.share is None else f"share {lot.share}", lot.next_turn
    start = f"in {length(turn.seconds)}" if turn.seconds is not None else plain(str(turn))
    return f"{plain(of)}: {lot.parked} parked, the oldest for {length(now - lot.oldest)}, next turn {start}"


def _in_queues(each: LimitStatus) -> str:
    queues = f" in queue{'s' if len(each.queues) > 1 else ''} {plain(', '.join(each.queues))}" if each.queues else ""
    return queues and f"{queues}, messages of all tasks"


def used_within(each: LimitStatus) -> str:
    """The time of which ``used`` is an average, as in ``10 s``; ``""``: it is no average, or not known."""
    limit = each.standing.config.in_force
    if each.used is None or isinstance(limit, Concurrency):
        return ""
    return length(use_window(limit)).replace(".0 s", " s")


def _used_and_when(each: LimitStatus) -> str:
    """As in ``2 of 2/s on average in the last 10 s (100%); 0.63/s on average in the last minute``."""
    within, minute, rate = used_within(each), each.used_in_minute, getattr(each.standing.config.in_force, "rate", "/s")
    if within and not each.used and minute == 0:
        return "nothing in the last minute"
    said = _used(each) if each.used or not within else "nothing"
    if within:
        said += f" on average in the last {within}" if each.used else f" in the last {within}"
    if each.used and each.share is not None:
        said += f" ({each.share:.0%})"
    period = rate[rate.find("/") :] if "/" in rate else f" of {rate}"
    return said + (f"; {few_digits(minute)}{period} on average in the last minute" if minute is not None else "")


def history_row(each: Change) -> tuple[str, ...]:
    """A change, as :data:`HISTORY_HEADS` says."""
    before = after = ""
    if each.verb != "reset":
        before, after = _in_store(each.before, each.at), _in_store(each.after, each.at)
    shown = (clock(each.at), each.by, each.verb, each.key, before, after, each.reason)
    return tuple(plain(part) or "-" for part in shown)


def _in_store(stored: Stored, now: float) -> str:
    rate = stored.shown or "code"
    until = f" {end_of('unset', stored.until, now)}" if stored.until else ""
    paused = f", paused {end_of('resumed', stored.paused_until, now)}" if stored.paused_until else ""
    return rate + until + paused


def parked_row(row: dict[str, Any]) -> tuple[str, ...]:
    """A parked task, as :func:`~celery_ratelimit.operations.parked_tasks.parked_page` returns it."""
    task, turn = row["task"], row["turn"]
    wait = length(max(0.0, turn - row["now"])) if turn is not None else "?"
    return (
        str(row["place"]),
        plain(row["key"]) or "-",
        plain(task.share) or "-",
        plain(task.id),
        plain(task.task),
        plain(task.queue),
        clock(task.since),
        wait,
    )


def store_lost(store: str, error: Exception) -> str:
    """The error for a store that does not answer or does not serve, and what to check.

    ``store``: its address, without a password.
    """
    if isinstance(error, StoreMisconfigured):
        return f"{store} does not serve: {error}"
    why = str(error.__cause__ or error).rstrip(".")
    return (
        f"{store} does not answer: {why}. Check that it runs, that this machine reaches it, and that ratelimit_url is "
        "right (default: the broker or the result backend)"
    )
