"""pytest-celery's fixtures, with processes of this machine in the place of its containers.

Imported rather than loaded as a plugin, which would put its ``celery_worker`` in the way of Celery's own.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery, _state
from kombu import pools
from pytest_celery import (
    CeleryTestBackend,
    CeleryTestBroker,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
    celery_backend_cluster,
    celery_backend_cluster_config,
    celery_broker_cluster,
    celery_broker_cluster_config,
    celery_setup,
    celery_setup_cls,
    celery_setup_config,
    celery_setup_name,
    celery_worker_cluster_config,
)

from celery_ratelimit.testing import EmbeddedServer

from .nodes import LocalServer, LocalWorker

__all__ = [
    "celery_backend",
    "celery_backend_cluster",
    "celery_backend_cluster_config",
    "celery_broker",
    "celery_broker_cluster",
    "celery_broker_cluster_config",
    "celery_setup",
    "celery_setup_app",
    "celery_setup_cls",
    "celery_setup_config",
    "celery_setup_name",
    "celery_worker_cluster",
    "celery_worker_cluster_config",
]


@pytest.fixture(params=["valkey", pytest.param("rabbitmq", marks=pytest.mark.slow)])
def celery_broker(request: pytest.FixtureRequest, server: EmbeddedServer) -> CeleryTestBroker:
    url = server.url if request.param == "valkey" else request.getfixturevalue("broker").url
    return CeleryTestBroker(LocalServer(request.param, url))


@pytest.fixture
def celery_backend(server: EmbeddedServer, store: object) -> CeleryTestBackend:
    return CeleryTestBackend(LocalServer("backend", server.url))


@pytest.fixture
def celery_setup_app(
    celery_setup_cls: type[CeleryTestSetup], celery_setup_config: dict[str, str], celery_setup_name: str
) -> Iterator[Celery]:
    """The sender's app, which pytest-celery makes everybody's current one: until the end of the test."""
    before = _state._get_current_app()
    pools.reset()  # an earlier test may have broken the connections that are kept for the same address
    with celery_setup_cls.create_setup_app(celery_setup_config, celery_setup_name) as app:
        yield app
    _state._set_current_app(before)
    # A result that is collected unsubscribes from its key, and tries for ever where the server is gone.
    gc.collect()


@pytest.fixture
def celery_worker_cluster(
    celery_worker_cluster_config: dict[str, dict[str, list[str]]], celery_setup_app: Celery, tmp_path: Path
) -> Iterator[CeleryWorkerCluster]:
    """Two workers."""
    env = {
        "CELERY_BROKER_URL": ";".join(celery_worker_cluster_config["celery_broker_cluster_config"]["urls"]),
        "CELERY_RESULT_BACKEND": ";".join(celery_worker_cluster_config["celery_backend_cluster_config"]["urls"]),
    }
    cluster = CeleryWorkerCluster(
        *[CeleryTestWorker(LocalWorker(number, tmp_path, env), celery_setup_app) for number in range(2)]
    )
    yield cluster
    for node in cluster:
        node.teardown()
