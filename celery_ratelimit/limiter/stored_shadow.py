"""Whether people have put a limit into shadow, or out of it: what is sent to change that, and how it is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError, shown
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import NO_SHADOW, Concurrency

__all__ = ["StoredShadow", "check_shadow_to_store", "marked", "read_shadow"]


@dataclass(frozen=True, slots=True)
class StoredShadow:
    """Somebody has put a limit into shadow, or in force, whatever the code says.

    Attributes:
        on: whether it is in shadow.
        since: when that was stored, in seconds since 1970.
        by: who it was.
        reason: why, if it was said.
    """

    on: bool
    since: float
    by: str
    reason: str


def check_shadow_to_store(name: str, code: AnyLimit | None, on: Any) -> None:
    """Raises what is wrong with it."""
    if on is not None and not isinstance(on, bool):
        raise ConfigurationError(
            f"limit {name!r}: on={shown(on)} must be True (in shadow), False (in force) or None (as the code says)"
        )
    if on and isinstance(code, Concurrency):
        raise ConfigurationError(f"limit {name!r} is {code}, and {NO_SHADOW}")


def read_shadow(said: Any) -> StoredShadow | None:
    """What ``lua/set_shadow.lua`` has stored; ``None``: nothing is."""
    text = said.decode() if isinstance(said, bytes) else said or ""
    if not text:
        return None
    head, _, note = text.partition("\n")
    flag, since = head.split()
    who = json.loads(note)
    return StoredShadow(flag == "1", int(since) / 1e6, str(who.get("by", "")), str(who.get("reason", "")))


def marked(config: str) -> StoredShadow | None:
    """What the text of a config says of it, which does not say who it was: see ``lua/include/config_text.lua``."""
    return StoredShadow(True, 0.0, "", "") if config[:1] == "0" and config[1:2].isdigit() else None
