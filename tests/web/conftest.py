"""Served pages: a read-only one, and one with a token that allows changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.web.server import TOKEN, Server, page_of


@pytest.fixture(scope="module")
def read_only(server: EmbeddedServer) -> Iterator[Server]:
    with page_of(server.url) as page:
        yield page


@pytest.fixture(scope="module")
def with_token(server: EmbeddedServer) -> Iterator[Server]:
    with page_of(server.url, "--allow-changes", CELERY_RATELIMIT_WEB_TOKEN=TOKEN) as page:
        yield page


@pytest.fixture(autouse=True)
def _empty(store: redis.Redis) -> None:
    """The store that the pages show is empty."""
