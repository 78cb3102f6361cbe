"""An app without a limit and without a Redis."""

from __future__ import annotations

from celery import Celery

app = Celery("unlimited", broker="memory://")


@app.task(name="unlimited.plain")
def plain(index: int) -> int:
    return index
