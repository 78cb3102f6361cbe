"""The frozen clock of the root conftest, with expiry on that clock too; and how long Hypothesis looks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_ratelimit import Limiter
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import Clock
from tests.examples import load_profile

from .frozen import FROZEN_STORE
from .mixed_world import MixedWorld

load_profile()


@pytest.fixture
def frozen(server: EmbeddedServer, clock: Clock) -> Iterator[Limiter]:
    """A limiter whose scripts read ``clock`` instead of the time, and whose keys expire by it."""
    with redis.Redis.from_url(server.url) as client:
        yield Limiter(client, replace_includes={"now": FROZEN_STORE}, counts=False)


@pytest.fixture
def parking(frozen: Limiter, clock: Clock) -> Backlog:
    """The lots of a fleet."""
    return Backlog(frozen, "fleet", redelivery=3600)


@pytest.fixture(scope="module")
def world(server: EmbeddedServer) -> Iterator[MixedWorld]:
    """The Lua and the model, side by side."""
    world = MixedWorld(server.url)
    yield world
    world.close()


@pytest.fixture(scope="module")
def store_and_limiter(server: EmbeddedServer) -> Iterator[tuple[redis.Redis, Limiter]]:
    """A frozen store for property tests, which empty it themselves and set its clock."""
    with redis.Redis.from_url(server.url, decode_responses=True) as store, redis.Redis.from_url(server.url) as client:
        yield store, Limiter(client, replace_includes={"now": FROZEN_STORE})
