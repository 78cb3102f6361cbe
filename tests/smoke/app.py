"""pytest-celery's own tasks, throttled as somebody would who cannot change them: by their names."""

from __future__ import annotations

import os

from celery import Celery

from celery_ratelimit import install
from tests.apps import pool_jobs  # noqa: F401  (registers itself)

app = Celery("smoke", include=["pytest_celery.vendors.worker.tasks"])
app.conf.update(
    broker_url=os.environ["CELERY_BROKER_URL"],
    result_backend=os.environ["CELERY_RESULT_BACKEND"],
    broker_connection_retry_on_startup=True,
    task_default_queue="celery",
    ratelimit_url=os.environ["CELERY_RESULT_BACKEND"],
    ratelimit_quotas={"ours": "20/s"},
    ratelimit_tasks={"pytest_celery.*": ["ours"]},
)
install(app)
