"""The frozen clock of the root conftest, with expiry on that clock too; and how long Hypothesis looks."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import redis
from hypothesis import HealthCheck, settings

from celery_ratelimit import Limiter
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import Clock
from tests.examples import the_same_every_time

from .frozen import FROZEN_STORE
from .mixed_world import MixedWorld

# The suite looks at the same examples every time. To look for new ones: HYPOTHESIS_PROFILE=explore.
settings.register_profile(
    "suite", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", settings.get_profile("suite"), derandomize=False, max_examples=20_000)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "suite")
settings.load_profile(PROFILE)
if PROFILE == "suite":
    the_same_every_time()


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
