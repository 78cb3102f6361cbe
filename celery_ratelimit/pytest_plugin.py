"""A pytest fixture for users' quick tests: ``pytest_plugins = ["celery_ratelimit.pytest_plugin"]``.

Needs ``celery-ratelimit[testing]``. A convenience, not a proof: fakeredis is not Redis. Where it matters, take a real
server from :func:`celery_ratelimit.testing.embedded_server`.
"""

from __future__ import annotations

from collections.abc import Iterator

import fakeredis
import pytest

from .limiter import Limiter

__all__ = ["fake_limiter"]


@pytest.fixture
def fake_limiter() -> Iterator[Limiter]:
    """A :class:`~celery_ratelimit.Limiter` in this process, on an empty fakeredis and the real clock.

    Add quotas with ``fake_limiter.quotas["stripe"] = Limit("100/s", name="stripe")``.
    """
    with fakeredis.FakeRedis() as client:
        yield Limiter(client)
