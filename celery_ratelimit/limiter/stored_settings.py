"""The stored settings of a limit as values: rate, pause, shadow, weights."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ..errors import ConfigurationError, shown
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import NO_SHADOW, Concurrency
from ..limits.limit import Limit
from ..limits.weights import USUAL, check_weight

__all__ = [
    "LimitConfig",
    "StoredShadow",
    "WeightConfig",
    "check_shadow_to_store",
    "limit_stored",
    "limit_to_store",
    "note_of",
    "read_config",
    "read_shadow",
    "read_stored",
    "read_weights",
    "weight_to_store",
]

#: Characters of a reason that are kept.
LONGEST = 1000


@dataclass(frozen=True, slots=True)
class StoredShadow:
    """A stored setting that puts a limit into shadow or into force, and overrides the code.

    Attributes:
        on: whether the limit is in shadow.
        since: when it was stored, in seconds since 1970.
        by: author.
        reason: reason, if given.
    """

    on: bool
    since: float
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class WeightConfig:
    """The weight of a key under a fair limit: in force, in the code and in the store.

    Attributes:
        weight: the weight in force.
        code: the weight in the code.
        stored: the weight in the store; ``None``: none.
        since: when it was stored, in seconds since 1970; 0.0: none is.
        by: author of the stored weight.
    """

    weight: float
    code: float
    stored: float | None
    since: float
    by: str


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """The settings of a limit: in force, in the code and in the store.

    Attributes:
        name: the limit's name.
        key: the bucket's key; ``""``: the whole limit.
        code: the limit in this process's quotas; ``None``: not there.
        stored: the stored limit: for the key, else for the whole limit; ``None``: none.
        in_force: the limit that decides: the stored one, else the code's; ``None``: neither is known here.
        since: when the stored limit was set, in seconds since 1970; 0.0: none is.
        until: when the stored limit ends, in seconds since 1970; ``None``: no end.
        by: author of the stored limit.
        reason: reason, if given.
        version: the highest version that was ever set; 0: none had one.
        paused: seconds until the pause ends.
        stored_shadow: the stored shadow setting; ``None``: none, and the code's setting holds.
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
        """Whether the limit is in shadow."""
        if self.stored_shadow is not None:
            return self.stored_shadow.on
        return self.code is not None and self.code.shadow


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
        if said is not None and not isinstance(said, str):
            raise ConfigurationError(f"{what}={shown(said)} must be a text")
    note: dict[str, Any] = {} if limit is None else {"limit": limit}
    return json.dumps({**note, "by": by or _who(), **({"reason": reason[:LONGEST]} if reason else {})})


def limit_to_store(name: str, rate: str | AnyLimit, code: AnyLimit | None) -> AnyLimit:
    """The limit to store for ``rate``: a text changes the rate of the code's limit and keeps its options.

    Raises:
        ConfigurationError: unreadable, or a :class:`Concurrency` would become a rate or the other way round.
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


def read_config(name: str, key: str, code: AnyLimit | None, reply: Sequence[Any]) -> LimitConfig:
    """Read the reply of ``lua/config.lua``."""
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
    """Read a config key, see ``lua/include/config_text.lua``; ``now``: in microseconds since 1970."""
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
            places = Concurrency(**said, **ours, name=name)
            object.__setattr__(places, "cost", 1 if code is None else code.cost)  # as below
            return places
        limit = Limit(**said, **ours, name=name)
    except TypeError as error:  # an option that this version does not have
        raise ConfigurationError(
            f"limit {name!r} is stored as {dict(said)}, which this version of celery_ratelimit cannot read: {error}"
        ) from None
    # Not checked against the cost: a stored limit below a call's cost is in force all the same.
    if isinstance(code, Limit):
        object.__setattr__(limit, "cost", code.cost)
        if limit.method == "token_bucket" and not limit.debt:
            object.__setattr__(limit, "priority_reserve", code.priority_reserve)
    return limit


def check_shadow_to_store(name: str, code: AnyLimit | None, on: Any) -> None:
    """Raise ConfigurationError if this shadow cannot be stored."""
    if on is not None and not isinstance(on, bool):
        raise ConfigurationError(
            f"limit {name!r}: on={shown(on)} must be True (in shadow), False (in force) or None (as the code says)"
        )
    if on and isinstance(code, Concurrency):
        raise ConfigurationError(f"limit {name!r} is {code}, and {NO_SHADOW}")


def read_shadow(said: Any) -> StoredShadow | None:
    """Read what ``lua/set_shadow.lua`` has stored; ``None``: nothing is stored."""
    text = said.decode() if isinstance(said, bytes) else said or ""
    if not text:
        return None
    head, _, note = text.partition("\n")
    flag, since = head.split()
    who = json.loads(note)
    return StoredShadow(flag == "1", int(since) / 1e6, str(who.get("by", "")), str(who.get("reason", "")))


def marked(config: str) -> StoredShadow | None:
    """Read the shadow in a config's text, which has no author: see ``lua/include/config_text.lua``."""
    return StoredShadow(True, 0.0, "", "") if config[:1] == "0" and config[1:2].isdigit() else None


def weight_to_store(
    name: str, code: AnyLimit | None, key: Any, weight: float | None, *, force: bool = False
) -> float | None:
    """The weight to store; raises ConfigurationError if it is invalid."""
    if not isinstance(key, str):
        raise ConfigurationError(f"limit {name!r}: key={shown(key)} must be a text: what fair= makes of the arguments")
    if code is not None and code.fair is None and not force:
        raise ConfigurationError(
            f"limit {name!r} is not fair, so nobody has a weight in it: say with fair= who shares it, as in "
            "fair='{tenant_id}' (force=True stores it all the same)"
        )
    return None if weight is None else check_weight(f"limit {name!r}", key, weight)


def read_weights(code: AnyLimit | None, reply: Sequence[Any]) -> dict[str, WeightConfig]:
    """Read the reply of ``lua/weights.lua``."""
    in_code = {} if code is None else code.weights
    found = {key: WeightConfig(weight, weight, None, 0.0, "") for key, weight in in_code.items()}
    texts = [each.decode() if isinstance(each, bytes) else each for each in reply[1]]
    for share, text in zip(texts[::2], texts[1::2], strict=True):
        if share != "\0":
            weight, since, note = text.split(" ", 2)
            said = json.loads(note)
            usual = in_code.get(said["key"], USUAL)
            found[said["key"]] = WeightConfig(float(weight), usual, float(weight), int(since) / 1e6, said["by"])
    return dict(sorted(found.items()))
