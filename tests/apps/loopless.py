"""The app of ``fleet`` for workers without an event loop, as Celery's are on Windows."""

from __future__ import annotations

from tests.apps.fleet import app

__all__ = ["app"]

app.IS_WINDOWS = True  # celery/worker/worker.py 307: all that it decides in a worker that runs
