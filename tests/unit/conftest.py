"""Hypothesis profiles, as in ``tests/lua``."""

from __future__ import annotations

import os

from hypothesis import settings

from tests.examples import the_same_every_time

settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", settings.get_profile("suite"), derandomize=False, max_examples=20_000)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "suite")
settings.load_profile(PROFILE)
if PROFILE == "suite":
    the_same_every_time()
