"""The fleet's app in workers of another version, with a wrong clock, or that do not know what they are asked."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

from celery.worker.control import Panel

from celery_ratelimit.app import remote_control
from tests.apps.slow import app

__all__ = ["app"]

if os.environ["TEST_STRANGE"] == "version":
    remote_control.version = lambda name: "0.0.7"
elif os.environ["TEST_STRANGE"] == "clock":
    remote_control.time = SimpleNamespace(time=lambda: time.time() - 90)  # type: ignore[assignment]
elif os.environ["TEST_STRANGE"] == "silent":
    Panel.data.pop("ratelimits")
