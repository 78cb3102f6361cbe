"""The weights of those who share a limit, as they are in the code, for the scripts."""

from __future__ import annotations

import zlib
from functools import lru_cache

from ..limits.any_limit import AnyLimit
from ..store.keys import escape, short

__all__ = ["weights_text"]


@lru_cache(maxsize=256)
def weights_text(limit: AnyLimit) -> str:
    """As ``lua/include/turns.lua`` reads them; empty if there are none."""
    if not limit.weights:
        return ""
    said = "".join(f"\0{escape(short(key))} {weight!r}" for key, weight in limit.weights.items()) + "\0"
    return f"{zlib.crc32(said.encode())}{said}"
