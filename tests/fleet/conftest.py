"""Brokers of tests that run with Redis and with RabbitMQ."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def broker_url(request: pytest.FixtureRequest, server: EmbeddedServer, store: redis.Redis) -> str:
    return str(server.url if request.param == "redis" else request.getfixturevalue("broker").url)
