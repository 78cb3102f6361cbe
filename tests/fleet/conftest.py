"""Fleets on the store of the suite, and brokers of tests that run with Redis and with RabbitMQ."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, NewFleet


@pytest.fixture
def new_fleet(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> NewFleet:
    return partial(Fleet, server, tmp_path)


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def broker_url(request: pytest.FixtureRequest, server: EmbeddedServer, store: redis.Redis) -> str:
    return str(server.url if request.param == "redis" else request.getfixturevalue("broker").url)
