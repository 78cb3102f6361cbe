"""The fleet's app on a worker without the gate, as another kind of worker would be."""

from __future__ import annotations

from celery_ratelimit.worker import GateStep
from tests.apps.fleet import app

app.finalize()
app.steps["consumer"].discard(GateStep)

__all__ = ["app"]
