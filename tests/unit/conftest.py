"""The profile of Hypothesis."""

from __future__ import annotations

from tests.examples import load_profile

load_profile()
