"""Pytest fixtures for users' tests: ``pytest_plugins = ["celery_ratelimit.pytest_plugin"]``.

They are about ``memory://`` stores and need ``celery-ratelimit[testing]``. A convenience, not a proof: fakeredis is not
Redis. Where it matters, take a real server from :func:`celery_ratelimit.testing.embedded_server`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from .limiter.limiter import Limiter
from .testing import clear_memory, frozen_clock

if TYPE_CHECKING:
    from .store.memory import Clock

__all__ = ["ratelimit_clock", "ratelimit_memory"]


@pytest.fixture
def ratelimit_memory() -> Iterator[Limiter]:
    """Empty ``memory://`` stores, before and after the test; and a :class:`~celery_ratelimit.Limiter` on ``memory://``.

    Add quotas with ``ratelimit_memory.quotas["stripe"] = Limit("100/s", name="stripe")``.
    """
    clear_memory()
    yield Limiter.from_url("memory://")
    clear_memory()


@pytest.fixture
def ratelimit_clock() -> Iterator[Clock]:
    """The clock of all ``memory://`` stores, stopped: ``ratelimit_clock.advance(seconds)``, ``ratelimit_clock.now``.

    See :func:`celery_ratelimit.testing.frozen_clock`.
    """
    with frozen_clock() as clock:
        yield clock
