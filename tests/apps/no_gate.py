"""The fleet's app on a worker without the gate, as another kind of worker would be."""

from __future__ import annotations

from celery.signals import worker_init

from celery_ratelimit.worker.bootstep import GateStep
from tests.apps.fleet import app

worker_init.disconnect(dispatch_uid="celery_ratelimit")
app.finalize()
app.steps["consumer"].discard(GateStep)

__all__ = ["app"]
