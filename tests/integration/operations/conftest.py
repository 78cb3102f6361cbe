"""An app with limits of several kinds, and its command line."""

from __future__ import annotations

import pytest
import redis
from celery import Celery
from kombu import pools

from celery_ratelimit.testing import EmbeddedServer
from tests.shop import Run, command_line, make_app


@pytest.fixture
def app(server: EmbeddedServer, store: redis.Redis) -> Celery:
    pools.reset()
    return make_app(server.url)


@pytest.fixture
def run(app: Celery) -> Run:
    return command_line(app)
