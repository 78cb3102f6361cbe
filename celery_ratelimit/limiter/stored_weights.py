"""Weights that people put in the store for those who share a limit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigurationError, shown
from ..limits.any_limit import AnyLimit
from ..limits.weights import USUAL, check_weight
from .stored import note_of

__all__ = ["WeightConfig", "note_of_weight", "read_weights", "weight_to_store"]


@dataclass(frozen=True, slots=True)
class WeightConfig:
    """The weight that is in force for one of those who share a limit, and why.

    Attributes:
        weight: the one in force.
        code: the one in the code.
        stored: the one in the store; ``None``: there is none.
        since: when that was stored, in seconds since 1970; 0.0 without one.
        by: who stored it.
    """

    weight: float
    code: float
    stored: float | None
    since: float
    by: str


def weight_to_store(
    name: str, code: AnyLimit | None, key: Any, weight: float | None, *, force: bool = False
) -> float | None:
    """The weight that is meant; raises what is wrong with it."""
    if not isinstance(key, str):
        raise ConfigurationError(f"limit {name!r}: key={shown(key)} must be a text: what fair= makes of the arguments")
    if code is not None and code.fair is None and not force:
        raise ConfigurationError(
            f"limit {name!r} is not fair, so nobody has a weight in it: say with fair= who shares it, as in "
            "fair='{tenant_id}' (force=True stores it all the same)"
        )
    return None if weight is None else check_weight(f"limit {name!r}", key, weight)


def note_of_weight(key: str, by: str | None, reason: str) -> str:
    """What is stored beside a weight, for people."""
    return json.dumps({"key": key, **json.loads(note_of(by, reason))})


def read_weights(code: AnyLimit | None, reply: Sequence[Any]) -> dict[str, WeightConfig]:
    """The reply of ``lua/weights.lua``."""
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
