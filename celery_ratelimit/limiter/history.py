"""What people have changed of a limit: read as ``lua/include/history.lua`` keeps it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import ConfigurationError
from ..limits.any_limit import AnyLimit
from .stored import limit_stored, read_stored

__all__ = ["Change", "Stored", "read_history"]


class Stored(NamedTuple):
    """What was stored for a limit, or for one of its keys.

    Attributes:
        limit: the limit; ``None``: none was, so the code's held.
        until: when it was to end, in seconds since 1970; ``None``: never.
        paused_until: until when it was paused, in seconds since 1970; ``None``: it was not.
        shown: the limit, in words, a weight, or whether it was in shadow; ``""``: none.
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
        key: of the bucket, or of who has a weight; ``""``: the whole limit.
        at: when, in seconds since 1970, by the store's clock.
        verb: ``"set"``, ``"expire"`` (it was given an end), ``"unset"``, ``"pause"``, ``"resume"``, ``"reset"``,
            ``"weight"`` or ``"shadow"``.
        by: who it was.
        reason: why, if it was said.
        before: what was stored until then.
        after: what is stored since.
    """

    name: str
    key: str
    at: float
    verb: str
    by: str
    reason: str
    before: Stored
    after: Stored


def read_history(name: str, code: AnyLimit | None, reply: Sequence[Any]) -> list[Change]:
    """The reply of ``lua/history.lua``; the oldest first."""
    return [_read(name, code, _bytes(each)) for each in reversed(reply[1:])]


def _read(name: str, code: AnyLimit | None, entry: bytes) -> Change:
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
