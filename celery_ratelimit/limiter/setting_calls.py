"""Calls and replies of the scripts for a limit's stored settings: rate, pause, shadow, weights, history."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ConfigurationError, shown
from ..limits.any_limit import AnyLimit
from ..store.keys import (
    bucket_key,
    changes_key,
    config_keys,
    escape,
    history_key,
    shadow_key,
    shadow_keys,
    short,
    touched_key,
    weights_key,
)
from ..store.script import Script
from .limit_request import LimitRequest, length_of
from .operation import KeysExist, Operation, RunScript, run_all
from .script_calls import call_of
from .shadow import Shadows
from .stored_settings import (
    LimitConfig,
    WeightConfig,
    limit_stored,
    limit_to_store,
    note_of,
    read_config,
    read_stored,
    read_weights,
)

if TYPE_CHECKING:
    from .script_operations import Scripts

__all__ = ["BucketStatus", "Change", "SettingCalls", "Stored", "read_bucket_status"]

#: Options that are not stored with a limit: name, key, cost, lease time and the like are the code's.
_NOT_STORED = {
    *("name", "key", "missing_key", "cost", "per_worker", "lease", "fair", "weights", "priority_reserve", "shadow"),
}


class SettingCalls:
    """One operation for each script, for one prefix. ``note``: see :func:`note_of`.

    Args:
        scripts: all scripts.
        prefix: the start of every key in the store.
        shadows: the limits in shadow.
    """

    def __init__(self, scripts: Scripts, prefix: str, shadows: Shadows) -> None:
        self._scripts, self.prefix, self._shadows = scripts, prefix, shadows

    def is_known(self, name: str, key: str | None) -> Operation[bool]:
        """Whether the store knows a limit: its settings or its bucket exist. No key is searched for: a limit with keys
        is known by its settings, or by the bucket of ``key``.
        """
        keys = [*self._changes(name, key)[:3], *config_keys(self.prefix, name, ""), weights_key(self.prefix, name)]
        keys += shadow_keys(self.prefix, name)  # a limit in shadow has no bucket
        for bucket in ("", short(key or "")):
            keys += [bucket_key(self.prefix, name, bucket, kind) for kind in ("state", "leases", "slots")]
        known: bool = yield KeysExist(list(dict.fromkeys(keys)))
        return known

    def set_rate(
        self,
        name: str,
        code: AnyLimit | None,
        rate: str | AnyLimit,
        *,
        key: str | None,
        only_if_none: bool = False,
        version: int | None = None,
        for_: float | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> Operation[bool]:
        """Store a rate. Returns whether it is in force now."""
        limit = limit_to_store(name, rate, code)
        is_number = isinstance(version, int) and not isinstance(version, bool)
        if version is not None and not (is_number and 0 < version < 2**53):
            raise ConfigurationError(f"limit {name!r}: version={shown(version)} must be a whole number of at least 1")
        lasts = 0 if for_ is None else length_of(for_, "for_")
        method, count, period, size, _, extra = limit.wire(1)
        options = {each.name: getattr(limit, each.name) for each in fields(limit) if each.name not in _NOT_STORED}
        defaults = {each.name: each.default for each in fields(limit)}
        note = note_of(by, reason, {name: value for name, value in options.items() if value != defaults[name]})
        extra = 0 if limit.priority_reserve is not None else extra  # the reserve is the code's
        values = (int(only_if_none), version or 0, lasts, method, count, period, size, extra, note, short(key or ""))
        return bool((yield from _reply(self._scripts.set_rate, self._changes(name, key), values)) == 1)

    def expire_rate(self, name: str, key: str | None, us: int, note: str) -> Operation[bool]:
        """Let the stored rate end in ``us`` microseconds; 0: now. Returns whether there was one."""
        values = (us, short(key or ""), note)
        return bool((yield from _reply(self._scripts.expire_rate, self._changes(name, key), values)) == 1)

    def pause(self, name: str, key: str | None, us: int, note: str) -> Operation[int]:
        """Pause a limit for ``us`` microseconds; returns its remaining pause. 0: end a pause; 1: it had one."""
        values = (us, short(key or ""), note)
        return int((yield from _reply(self._scripts.pause, self._changes(name, key), values)))

    def config(self, name: str, key: str | None, code: AnyLimit | None) -> Operation[LimitConfig]:
        """A limit's stored settings, beside ``code``, the limit as the code here has it."""
        keys = [*config_keys(self.prefix, name, short(key or "")), shadow_key(self.prefix, name)]
        return read_config(name, key or "", code, (yield from _reply(self._scripts.config, keys)))

    def set_weight(self, name: str, share: str, weight: float | None, by: str | None, reason: str) -> Operation[bool]:
        """Store a key's weight under a fair limit; ``None``: the code's weight. Returns whether it changed."""
        note = json.dumps({"key": share, **json.loads(note_of(by, reason))})
        values = (escape(short(share)), "" if weight is None else repr(weight), note)
        keys = (*self._changes(name, None), weights_key(self.prefix, name))
        return bool((yield from _reply(self._scripts.set_weight, keys, values)) == 1)

    def weights(self, name: str, code: AnyLimit | None) -> Operation[dict[str, WeightConfig]]:
        """The weights of a fair limit by key, stored and in the code."""
        return read_weights(code, (yield from _reply(self._scripts.weights, [weights_key(self.prefix, name)])))

    def set_shadow(self, name: str, on: bool | None, note: str) -> Operation[bool]:
        """Put a limit into shadow, or into force; ``None``: as the code says. Returns whether it changed."""
        keys = (*self._changes(name, None), *shadow_keys(self.prefix, name)[1:])
        done = yield from _reply(self._scripts.set_shadow, keys, ("" if on is None else int(on), note))
        self._shadows.learn({name: on})
        return bool(done == 1)

    def history(self, name: str, code: AnyLimit | None) -> Operation[list[Change]]:
        """The changes of a limit, oldest first."""
        reply = yield from _reply(self._scripts.history, [history_key(self.prefix, name)])
        return [_read_change(name, code, _bytes(each)) for each in reversed(reply[1:])]

    def _changes(self, name: str, key: str | None) -> tuple[str, str, str, str]:
        """The keys of a change: the settings, the counter of changes, the touched buckets, and the history."""
        config = config_keys(self.prefix, name, short(key or ""))[1]
        return config, changes_key(self.prefix, name), touched_key(self.prefix, name), history_key(self.prefix, name)


def _reply(script: Script, keys: Sequence[str], values: Sequence[str | int] = ()) -> Operation[Any]:
    (reply,) = yield from run_all([RunScript(script, call_of(keys, values))])
    return reply


class Stored(NamedTuple):
    """The settings stored for a limit, or for one of its keys.

    Attributes:
        limit: the stored limit; ``None``: none, so the code's held.
        until: its end, in seconds since 1970; ``None``: none.
        paused_until: end of the pause, in seconds since 1970; ``None``: not paused.
        shown: the limit as text, a weight, or whether the limit was in shadow; ``""``: none.
    """

    limit: AnyLimit | None
    until: float | None
    paused_until: float | None
    shown: str


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a limit.

    Attributes:
        name: of the limit.
        key: of the bucket or the weight; ``""``: the whole limit.
        at: time of the change, in seconds since 1970, by the store's clock.
        verb: ``"set"``, ``"expire"`` (the rate got an end), ``"unset"``, ``"pause"``, ``"resume"``, ``"reset"``,
            ``"weight"`` or ``"shadow"``.
        by: author.
        reason: reason, if given.
        before: settings before the change.
        after: settings after the change.
    """

    name: str
    key: str
    at: float
    verb: str
    by: str
    reason: str
    before: Stored
    after: Stored


def _read_change(name: str, code: AnyLimit | None, entry: bytes) -> Change:
    head, _, rest = entry.partition(b"\n")
    at, verb, *sizes = head.split()
    key, note, before, after = _cut(rest, [int(size) for size in sizes])
    who = json.loads(note)
    stored = {b"weight": _weight, b"shadow": _shadow}.get(verb, _stored)
    return Change(
        name,
        str(who.get("key", key)),
        int(at) / 1e6,
        verb.decode(),
        str(who.get("by", "")),
        str(who.get("reason", "")),
        stored(name, code, before, int(at)),
        stored(name, code, after, int(at)),
    )


def _cut(text: bytes, sizes: Sequence[int]) -> list[str]:
    parts = []
    for size in sizes:
        parts.append(text[:size])
        text = text[size:]
    return [part.decode(errors="surrogatepass") for part in (*parts, text)]


def _stored(name: str, code: AnyLimit | None, text: str, now: int) -> Stored:
    said = read_stored(text, now)
    limit, shown = None, ""
    if said["stored"] is not None:
        try:
            limit = limit_stored(name, said["stored"], code)
            shown = str(limit).partition(": ")[2] if str(limit).startswith(f"{name}: ") else str(limit)
        except ConfigurationError:  # an option that this version does not have
            shown = json.dumps(said["stored"])
    paused = (now + said["paused"]) / 1e6 if said["paused"] else None
    return Stored(limit, said["until"] / 1e6 if said["until"] else None, paused, shown)


def _weight(name: str, code: AnyLimit | None, text: str, now: int) -> Stored:
    return Stored(None, None, None, text and f"weight {float(text):g}")


def _shadow(name: str, code: AnyLimit | None, text: str, now: int) -> Stored:
    return Stored(None, None, None, {"1": "in shadow", "0": "in force"}.get(text, ""))


def _bytes(value: bytes | str) -> bytes:
    return value.encode(errors="surrogatepass") if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """The status of one bucket of a limit.

    Attributes:
        config: the limit in force, and its stored settings.
        now: the store's clock, in seconds since 1970.
        remaining: permits left.
        size: permits of the full bucket.
        reset_after: seconds until the bucket is full, if no permit is taken.
        retry_after: seconds until a new request gets a permit, behind waiting requests; includes a pause.
        waiting: number of requests that have a slot.
        interval: mean seconds from one permit to the next; 0.0: not known, as for leases.
    """

    config: LimitConfig
    now: float
    remaining: int
    size: int
    reset_after: float
    retry_after: float
    waiting: int
    interval: float


def read_bucket_status(demand: LimitRequest, code: Any, reply: Sequence[Any]) -> BucketStatus:
    """One limit's part of the reply; ``code``: the limit as the code here has it, ``None``: not at all."""
    now, remaining, full, wait, waiting, size, count, period, *stored = reply
    config = read_config(demand.name, demand.key, code, [int(now), *stored])
    in_force = config.in_force
    interval = in_force.interval if in_force is not None else 0.0
    return BucketStatus(
        config,
        int(now) / 1e6,
        int(remaining),
        int(size),
        int(full) / 1e6,
        int(wait) / 1e6,
        int(waiting),
        int(period) / int(count) / 1e6 if interval and int(count) else interval,
    )
