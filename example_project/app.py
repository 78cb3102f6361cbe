"""The Celery app. Everything it needs to know of its surroundings comes from environment variables.

``CELERY_BROKER_URL``: any broker of Celery's (default ``redis://localhost:6379/0``).
``RATELIMIT_URL``: the limiter's store, a Redis or Valkey (default: the broker, if it is one).
``UPSTREAM_URL``: the service that the tasks call; see ``client.py``.
"""

from __future__ import annotations

import os

from celery import Celery
from kombu import Queue

from celery_ratelimit import install

app = Celery("example_project", include=["example_project.tasks"])

app.conf.update(
    broker_url=os.environ.get("CELERY_BROKER_URL", "redis://localhost:6379/0"),
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
    task_queues=[Queue("celery", routing_key="celery"), Queue("emails", routing_key="emails")],
    task_routes={"example_project.tasks.send_email": {"queue": "emails"}},
    # One bucket by this name for whoever uses it: tasks, queues, and processes that are not workers.
    ratelimit_quotas={"stripe": {"rate": "50/s", "burst": 5}},
    # Tasks that do not use the base class, by name or pattern.
    ratelimit_tasks={"example_project.tasks.payout": ["stripe"]},
    # Every task of the queue together, whatever its name.
    ratelimit_queues={"emails": "14/s"},
)
if "RATELIMIT_URL" in os.environ:
    app.conf.ratelimit_url = os.environ["RATELIMIT_URL"]

install(app)
