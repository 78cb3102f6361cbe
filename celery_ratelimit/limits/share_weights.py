"""Weights of the keys that share a fair limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import ConfigurationError, shown

__all__ = ["USUAL", "Weights", "check_weight"]

#: The default weight, the least and the largest; beyond these, virtual time would not be exact.
USUAL, LEAST, LARGEST = 1.0, 0.001, 1_000_000.0


def check_weight(label: str, key: str, weight: Any) -> float:
    """Check a weight and return it as a number."""
    is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
    if not is_number or not (weight == 0 or LEAST <= weight <= LARGEST):
        raise ConfigurationError(
            f"{label}: weight {shown(weight)} of {shown(key)} must be 0, which holds its tasks back, or a number from "
            f"{LEAST:g} to {LARGEST:.0f}"
        )
    return float(weight)


class Weights(Mapping[str, float]):
    """Weights by key under a fair limit: frozen, so that limits are hashable."""

    def __init__(self, label: str, written: Any) -> None:
        if not isinstance(written, Mapping):
            raise ConfigurationError(f"{label}: weights={shown(written)} must be a mapping of keys to numbers")
        for key in written:
            if not isinstance(key, str):
                raise ConfigurationError(
                    f"{label}: weights={shown(written)} has the key {shown(key)}, which is no text: keys are "
                    "what fair= makes of a task's arguments"
                )
        self._weights = {key: check_weight(label, key, weight) for key, weight in sorted(written.items())}
        self._hash = hash(tuple(self._weights.items()))

    def __getitem__(self, key: str) -> float:
        return self._weights[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weights) and self._weights == other._weights

    def __repr__(self) -> str:
        return repr({key: int(weight) if weight == int(weight) else weight for key, weight in self._weights.items()})

    def __reduce__(self) -> Any:
        return Weights, ("weights", self._weights)  # hashes of strings differ between processes
