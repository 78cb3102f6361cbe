"""The stored settings of a limit: rate, pause, shadow, weights. The calls of their scripts, and the replies."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError, shown
from ..limits.adaptive import Adaptive
from ..limits.any_limit import AnyLimit
from ..limits.breaker import Breaker
from ..limits.concurrency import NO_SHADOW, Concurrency
from ..limits.priority_reserve import MILLION
from ..limits.share_weights import USUAL, check_weight
from ..limits.stored_settings import Change, LimitConfig, Stored, WeightConfig, limit_stored, limit_to_store
from ..store.keys import (
    bucket_key,
    bucket_keys,
    changes_key,
    config_keys,
    escape,
    history_key,
    key_settings_key,
    shadow_key,
    shadow_keys,
    short,
    touched_key,
    weights_key,
)
from ..store.resp import text as text_of
from ..store.script import Script
from .argument_checks import length_of
from .operation import KeysExist, Operation, RunScript, run_all
from .read_settings import read_config, read_stored
from .script_calls import call_of

if TYPE_CHECKING:
    from .limit_request import LimitRequest
    from .script_operations import LimiterScripts
    from .shadow import KnownShadows

__all__ = ["SettingOperations", "check_shadow_to_store", "note_of", "weight_to_store"]

#: Characters of an author, and of a reason: tables show them.
LONGEST = 200
#: Options that are not stored with a limit: name, key, cost, lease time and the like are the code's.
_NOT_STORED = {
    *("name", "key", "missing_key", "cost", "per_worker", "lease", "fair", "weights", "priority_reserve", "shadow"),
    *("max_parked", "adaptive", "breaker", "resume_over", "rates", "rates_ttl"),
}


class SettingOperations:
    """One operation for each script, for one prefix. ``note``: see :func:`note_of`."""

    def __init__(self, scripts: LimiterScripts, prefix: str, shadows: KnownShadows) -> None:
        self._scripts, self._shadows = scripts, shadows
        self.prefix = prefix

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
        bucket = [bucket_key(self.prefix, name, short(key or ""), kind) for kind in ("state", "refused")]
        return int((yield from _reply(self._scripts.pause, (*self._changes(name, key), *bucket), values)))

    def reduce_rate(
        self, name: str, key: str | None, adaptive: Adaptive, granted: int | None, note: str
    ) -> Operation[float]:
        """The upstream has refused a call of an adaptive limit. Returns the share of the rate that is in force now.

        0: the limit has a stored algorithm that does not adapt.

        Args:
            granted: when the permit of the call was good, in microseconds of the store's clock; ``None``: not known.
        """
        values = (granted or 0, *adaptive.wire(), note, short(key or ""))
        keys = (*self._changes(name, key), config_keys(self.prefix, name, "")[0])
        return int((yield from _reply(self._scripts.reduce_rate, keys, values))) / MILLION

    def report_outcomes(
        self, demand: LimitRequest, breaker: Breaker, succeeded: int, failed: bool, granted: int, note: str
    ) -> Operation[tuple[int, float]]:
        """Tasks under a limit with a breaker have ended.

        Returns 1 if the breaker is open, 2 if it has opened now, 3 if it has closed now, else 0; and for how many
        seconds the breaker was open that has closed now.

        Args:
            demand: the limit request of the last task.
            succeeded: tasks since the last report, before the one that failed.
            failed: whether the last task has failed.
            granted: when its permit was good, in microseconds of the store's clock; 0: not known.
        """
        period, size = round(breaker.half_open_every * 1e6), demand.limit.size
        rate = {"rate": f"{demand.cost} per {breaker.half_open_every:g} s", "burst": size}
        slow = json.dumps({"limit": rate, **json.loads(note)})
        most, of_last = breaker.open_after, breaker.of_last or breaker.open_after
        values = (succeeded, int(failed), granted, most, of_last, demand.cost, period, size, slow, demand.key)
        outcomes = bucket_key(self.prefix, demand.name, demand.key, "outcomes")
        bucket = bucket_keys(self.prefix, demand.name, demand.key, demand.limit.method)
        before = bucket_key(self.prefix, demand.name, demand.key, "before")
        whole = config_keys(self.prefix, demand.name, "")[0]
        keys = (*self._changes(demand.name, demand.key), outcomes, *bucket, before, whole)
        now, lasted = yield from _reply(self._scripts.report_outcomes, keys, values)
        return int(now), int(lasted) / 1e6

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
        reply = yield from _reply(self._scripts.change_history, [history_key(self.prefix, name)])
        return [_read_change(name, code, each) for each in reversed(reply[1:])]

    def _changes(self, name: str, key: str | None) -> tuple[str, ...]:
        """The keys of a change: settings, counter of changes, touched buckets, history, keys with settings."""
        config = config_keys(self.prefix, name, short(key or ""))[1]
        of_limit = [each(self.prefix, name) for each in (changes_key, touched_key, history_key, key_settings_key)]
        return config, *of_limit


def _reply(script: Script, keys: Sequence[str], values: Sequence[str | int] = ()) -> Operation[Any]:
    (reply,) = yield from run_all([RunScript(script, call_of(keys, values))])
    return reply


def _read_change(name: str, code: AnyLimit | None, entry: bytes | str) -> Change:
    head, _, rest = (entry.encode(errors="surrogatepass") if isinstance(entry, str) else entry).partition(b"\n")
    at, verb, *sizes = head.split()
    parts = []
    for size in map(int, sizes):
        parts.append(text_of(rest[:size]))
        rest = rest[size:]
    key, note, before, after = (*parts, text_of(rest))
    noted, now = json.loads(note), int(at)
    stored = [_stored(verb.decode(), name, code, text, now) for text in (before, after)]
    by, reason = str(noted.get("by", "")), str(noted.get("reason", ""))
    return Change(name, str(noted.get("key", key)), now / 1e6, verb.decode(), by, reason, *stored)


def _stored(verb: str, name: str, code: AnyLimit | None, text: str, now: int) -> Stored:
    if verb == "weight":
        return Stored(None, None, None, text and f"weight {float(text):g}")
    if verb == "shadow":
        return Stored(None, None, None, {"1": "in shadow", "0": "in force"}.get(text, ""))
    said = read_stored(text, now)
    limit, shown = None, ""
    if said["stored"] is not None:
        try:
            limit = limit_stored(name, said["stored"], code)
            shown = str(limit).removeprefix(f"{name}: ")
        except ConfigurationError:  # an option that this version does not have
            shown = json.dumps(said["stored"])
    paused = (now + said["paused"]) / 1e6 if said["paused"] else None
    return Stored(limit, said["until"] / 1e6 if said["until"] else None, paused, shown)


@cache
def _who() -> str:
    """The default author of a change: user and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no user has that id here
        user = "?"
    return f"{user}@{socket.gethostname()}"


def note_of(by: str | None, reason: str, limit: Mapping[str, Any] | None = None) -> str:
    """The author and the reason of a change, as stored; with the limit, if one is stored."""
    for what, said in (("by", by), ("reason", reason)):
        if said is not None and (not isinstance(said, str) or len(said) > LONGEST):
            raise ConfigurationError(f"{what}={shown(said)} must be a text of at most {LONGEST} characters")
        if said is not None and any("\ud800" <= each <= "\udfff" for each in said):  # Lua reads no half of a pair
            raise ConfigurationError(f"{what}={shown(said)} has a surrogate, which is no character: leave it out")
    note: dict[str, Any] = {} if limit is None else {"limit": limit}
    return json.dumps({**note, "by": by or _who(), **({"reason": reason} if reason else {})})


def check_shadow_to_store(name: str, code: AnyLimit | None, on: Any) -> None:
    """Raise ConfigurationError if this shadow cannot be stored."""
    if on is not None and not isinstance(on, bool):
        raise ConfigurationError(
            f"limit {name!r}: on={shown(on)} must be True (in shadow), False (in force) or None (as the code says)"
        )
    if on and isinstance(code, Concurrency):
        raise ConfigurationError(f"limit {name!r} is {code}, and {NO_SHADOW}")


def weight_to_store(
    name: str, code: AnyLimit | None, key: Any, weight: float | None, *, force: bool = False
) -> float | None:
    """The weight to store; raises ConfigurationError if it is invalid."""
    if not isinstance(key, str):
        raise ConfigurationError(f"limit {name!r}: key={shown(key)} must be a text: what fair= makes of the arguments")
    if code is not None and code.fair is None and not force:
        raise ConfigurationError(
            f"limit {name!r} is not fair, so no key has a weight in it: name what shares it with fair=, as in "
            "fair='{tenant_id}' (force=True stores it all the same)"
        )
    return None if weight is None else check_weight(f"limit {name!r}", key, weight)


def read_weights(code: AnyLimit | None, reply: Sequence[Any]) -> dict[str, WeightConfig]:
    """Read the reply of ``lua/weights.lua``."""
    in_code = {} if code is None else code.weights
    found = {key: WeightConfig(weight, weight, None, 0.0, "") for key, weight in in_code.items()}
    texts = [text_of(each) for each in reply[1]]
    for share, text in zip(texts[::2], texts[1::2], strict=True):
        if share != "\0":
            weight, since, note = text.split(" ", 2)
            said = json.loads(note)
            usual = in_code.get(said["key"], USUAL)
            found[said["key"]] = WeightConfig(float(weight), usual, float(weight), int(since) / 1e6, said["by"])
    return dict(sorted(found.items()))
