"""How long Hypothesis looks: as in ``tests/lua``, the same examples every time."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", settings.get_profile("suite"), derandomize=False, max_examples=20_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))
