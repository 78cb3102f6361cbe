"""Which examples Hypothesis looks at, and how many.

The same every time; for new ones, ``HYPOTHESIS_PROFILE=explore``. ``RATELIMIT_TEST_EXAMPLES`` is the share of them that
is looked at: a quarter if it is not set, as in ``make test``; 1 in ``make test-all``.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

__all__ = ["examples", "load_profile", "share_of"]

SHARE = float(os.environ.get("RATELIMIT_TEST_EXAMPLES", "0.25"))


def share_of(number: int) -> int:
    """How many of so many examples are looked at."""
    return max(1, round(number * SHARE))


def examples(number: int, **options: Any) -> settings:
    """A decorator of a property with so many examples."""
    return settings(max_examples=share_of(number), **options)


def load_profile() -> None:
    """Load the profile that the environment names."""
    common = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("suite", derandomize=True, max_examples=share_of(100), **common)
    settings.register_profile("explore", max_examples=share_of(100), **common)
    profile = os.environ.get("HYPOTHESIS_PROFILE", "suite")
    settings.load_profile(profile)
    # It also tries numbers that stand in the code that is loaded: then each change of any file is a throw of dice.
    internals: Any = providers
    if profile == "suite" and hasattr(internals, "Constants") and hasattr(internals, "HypothesisProvider"):
        internals.HypothesisProvider._local_constants = internals.Constants()
