"""Limiters on the real clock, which know the ``QUOTAS`` of the test's module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.integration.limiter.either import KINDS, EitherLimiter, opened


@pytest.fixture
def limiter(request: pytest.FixtureRequest, server: EmbeddedServer, store: redis.Redis) -> Iterator[Limiter]:
    with Limiter.from_url(server.url + PATIENT, quotas=getattr(request.module, "QUOTAS", {})) as limiter:
        yield limiter


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, server: EmbeddedServer, store: redis.Redis) -> Iterator[Callable[..., Any]]:
    """Makes limiters of one kind, each as another process would have it."""
    with ExitStack() as stack:

        def limiter(url: str = server.url, *, app: Any = None, **options: Any) -> EitherLimiter:
            options.setdefault("quotas", getattr(request.module, "QUOTAS", {}))

            def of_kind(kind: Any) -> Any:
                return kind.from_url(url + PATIENT, **options) if app is None else kind.from_app(app)

            return stack.enter_context(opened(request.param, of_kind))

        yield limiter


@pytest.fixture
def either(make: Callable[..., EitherLimiter]) -> EitherLimiter:
    return make()
