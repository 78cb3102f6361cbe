"""Rates and pauses that people put in the store: what is sent to change them, and how they are read."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from ..errors import ConfigurationError, shown
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.limit import Limit
from ..store.keys import short
from .calls import Call, Calls, call_of
from .durations import length_of
from .stored_shadow import StoredShadow, marked, read_shadow

__all__ = ["LimitConfig", "change_of", "limit_stored", "note_of", "read_config", "read_stored"]

#: What a stored limit does not say: whose it is, what one call takes, and how long those who hold a place renew it for,
#: is the code's.
_NOT_STORED = {"name", "key", "cost", "per_worker", "lease", "fair", "weights", "reserve", "shadow"}
#: Characters of a reason that are kept.
LONGEST = 1000


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """What is in force for a limit, and why: code and store side by side.

    Attributes:
        name: the limit's name.
        key: the bucket it was asked for; ``""``: the whole limit.
        code: the limit as this process's quotas have it; ``None`` if they do not.
        stored: the limit as it is stored, while it is; for the key, else for the whole limit.
        in_force: what decides: the stored limit, else the code's; ``None`` if neither is known here.
        since: when the stored limit was set, in seconds since 1970; 0.0 without one.
        until: when it ends, in seconds since 1970; ``None``: it has no end.
        by: who set it.
        reason: why, if it was said.
        version: the highest version that was ever set; 0: none had one.
        paused: seconds that the limit is still paused for.
        stored_shadow: what is stored about its shadow; ``None``: nothing, and the code's word holds.
    """

    name: str
    key: str
    code: AnyLimit | None
    stored: AnyLimit | None
    in_force: AnyLimit | None
    since: float
    until: float | None
    by: str
    version: int
    paused: float
    reason: str = ""
    stored_shadow: StoredShadow | None = None

    @property
    def shadow(self) -> bool:
        """Whether it is in shadow."""
        if self.stored_shadow is not None:
            return self.stored_shadow.on
        return self.code is not None and self.code.shadow


@cache
def _who() -> str:
    """Who changes something, if that is not said."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # nobody by that number here
        user = "?"
    return f"{user}@{socket.gethostname()}"


def note_of(by: str | None, reason: str, limit: Mapping[str, Any] | None = None) -> str:
    """Who changes something, and why, as it is stored; with the limit, if one is."""
    for what, said in (("by", by), ("reason", reason)):
        if said is not None and not isinstance(said, str):
            raise ConfigurationError(f"{what}={shown(said)} must be a text")
    note: dict[str, Any] = {} if limit is None else {"limit": limit}
    return json.dumps({**note, "by": by or _who(), **({"reason": reason[:LONGEST]} if reason else {})})


def limit_to_store(name: str, rate: str | AnyLimit, code: AnyLimit | None) -> AnyLimit:
    """The limit that is meant by ``rate``: a text changes the rate of the code's limit and keeps its options.

    Raises:
        ConfigurationError: it cannot be read, or a number of places would become a rate or the other way round.
    """
    if code is not None and code.name is None:
        code = replace(code, name=name)
    if isinstance(rate, str):
        limit: AnyLimit = replace(code, rate=rate) if isinstance(code, Limit) else Limit(rate, name=name)
    elif isinstance(rate, (Limit, Concurrency)):
        limit = replace(rate, name=name)
    else:
        raise ConfigurationError(f"limit {name!r}: {shown(rate)} is neither a rate, such as '100/s', nor a Limit")
    if code is not None and isinstance(code, Concurrency) != isinstance(limit, Concurrency):
        raise ConfigurationError(
            f"limit {name!r} is {code} in the code: places cannot become a rate, nor a rate places; "
            "give the other one another name"
        )
    return limit


def change_of(
    calls: Calls,
    limit_name: str,
    code: AnyLimit | None,
    rate: str | AnyLimit,
    *,
    key: str | None,
    only_if_none: bool = False,
    version: int | None = None,
    for_: float | None = None,
    by: str | None = None,
    reason: str = "",
) -> Call:
    """What ``lua/set_rate.lua`` is called with."""
    limit = limit_to_store(limit_name, rate, code)
    keys = calls.change_keys(limit_name, key)
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or not 0 < version < 2**53):
        raise ConfigurationError(f"limit {limit.name!r}: version={shown(version)} must be a whole number of at least 1")
    lasts = 0 if for_ is None else length_of(for_, "for_")
    method, count, period, size, _, extra = limit.wire(1)
    said = {
        each.name: getattr(limit, each.name)
        for each in fields(limit)
        if each.name not in _NOT_STORED and getattr(limit, each.name) != each.default
    }
    note = note_of(by, reason, said)
    extra = 0 if limit.reserve is not None else extra  # what is set aside is the code's
    arguments = (int(only_if_none), version or 0, lasts, method, count, period, size, extra, note, short(key or ""))
    return call_of(keys, arguments)


def read_config(name: str, key: str, code: AnyLimit | None, reply: Sequence[Any]) -> LimitConfig:
    """The reply of ``lua/config.lua``."""
    now, *texts = [each.decode() if isinstance(each, bytes) else each for each in reply]
    found = [read_stored(text, int(now)) for text in texts[:2]]
    of_all, of_key = found[0], found[-1]
    which = of_key if of_key["stored"] is not None else of_all
    stored = None if which["stored"] is None else limit_stored(name, which["stored"], code)
    return LimitConfig(
        name=name,
        key=key,
        code=code,
        stored=stored,
        in_force=stored or code,
        since=which["since"] / 1e6,
        until=which["until"] / 1e6 if which["until"] else None,
        by=which["by"],
        reason=which["reason"],
        version=max(of_all["version"], of_key["version"]) if which is of_all else which["version"],
        paused=max(of_all["paused"], of_key["paused"]) / 1e6,
        stored_shadow=read_shadow(texts[2]) if len(texts) > 2 else marked(texts[0]),
    )


def read_stored(text: str, now: int) -> dict[str, Any]:
    """What a config key holds, see ``lua/include/config_text.lua``: in force at ``now``, in microseconds since 1970."""
    nothing = {"stored": None, "since": 0, "until": 0, "by": "", "reason": "", "version": 0, "paused": 0}
    if not text:
        return nothing
    numbers, _, note = text.partition("\n")
    version, until, paused, method, *_, since, _ = numbers.split()
    said = {**nothing, "version": int(version), "paused": max(0, int(paused) - now)}
    if method == "-" or 0 < int(until) <= now:
        return said
    kept = json.loads(note)
    return {
        **said,
        "stored": kept["limit"],
        "since": int(since),
        "until": int(until),
        "by": kept["by"],
        "reason": kept.get("reason", ""),
    }


def limit_stored(name: str, said: Mapping[str, Any], code: AnyLimit | None) -> AnyLimit:
    ours: dict[str, Any] = {}
    if code is not None:
        ours = {each: getattr(code, each) for each in ("key", "per_worker", "fair", "weights")}
    if isinstance(code, Limit):
        ours["shadow"] = code.shadow
    if isinstance(code, Concurrency):
        ours["lease"] = code.lease
    try:
        if "rate" not in said:
            return Concurrency(**said, **ours, name=name)
        limit = Limit(**said, **ours, name=name)
    except TypeError as error:  # an option that this version does not have
        raise ConfigurationError(
            f"limit {name!r} is stored as {dict(said)}, which this version of celery_ratelimit cannot read: {error}"
        ) from None
    # Not checked together: what is stored may be too small for what a call costs, and is in force all the same.
    if isinstance(code, Limit):
        object.__setattr__(limit, "cost", code.cost)
        if limit.method == "token_bucket" and not limit.debt:
            object.__setattr__(limit, "reserve", code.reserve)
    return limit
