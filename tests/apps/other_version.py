"""The fleet's app as a version of this library has it whose keys are others; its records are in ``v0``."""

from __future__ import annotations

import os

from celery_ratelimit.store import keys

keys.SCHEMA = "v0"
os.environ["TEST_RECORDS"] = os.path.join(os.environ["TEST_RECORDS"], keys.SCHEMA)
os.makedirs(os.environ["TEST_RECORDS"], exist_ok=True)

from tests.apps.fleet import app  # noqa: E402

__all__ = ["app"]
