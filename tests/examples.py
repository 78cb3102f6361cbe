"""Hypothesis looks at the same examples every time: for new ones, ``HYPOTHESIS_PROFILE=explore``."""

from __future__ import annotations

from typing import Any

from hypothesis.internal.conjecture import providers

__all__ = ["the_same_every_time"]


def the_same_every_time() -> None:
    """It also tries numbers that stand in the code that is loaded: then each change of any file is a throw of dice."""
    internals: Any = providers
    if hasattr(internals, "Constants") and hasattr(internals, "HypothesisProvider"):
        internals.HypothesisProvider._local_constants = internals.Constants()
