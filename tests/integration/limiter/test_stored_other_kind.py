"""A stored limit of another kind than the code's (a rate, a Concurrency) is not in force, and is not shown as such."""

from __future__ import annotations

import pytest
from celery import Celery
from prometheus_client import CollectorRegistry

from celery_ratelimit import Concurrency, Limit, Limiter, RateLimitedTask
from celery_ratelimit.limits.any_limit import AnyLimit
from celery_ratelimit.operations.overview import overview
from celery_ratelimit.operations.setup_checks import check_store
from celery_ratelimit.operations.wording import in_force_now, rate_set_by
from celery_ratelimit.prometheus import collector
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.worker.stored_rate_labels import stored_in_place_of

RATE = Limit("1/h", name="x", burst=3, key="{t}")
PLACES = Concurrency(3, name="x", key="{t}", lease=60.0)


@pytest.mark.parametrize(
    ("code", "of_all", "of_key"),
    [
        (RATE, Limit("1/h", name="x", burst=6), Concurrency(7, name="x")),
        (PLACES, Concurrency(6, name="x"), Limit("1/h", name="x", burst=9)),
    ],
)
def test_key_with_a_stored_limit_of_another_kind_has_the_limit_of_all_keys(
    limiter: Limiter, code: AnyLimit, of_all: AnyLimit, of_key: AnyLimit
) -> None:
    limiter.set_rate("x", of_all, by="ann", force=True)
    limiter.set_rate("x", of_key, key="k", by="root", force=True)
    admitted = sum(limiter.acquire(code, key="k").allowed for _ in range(10))
    config = limiter.config(code, key="k")
    assert config.in_force is not None
    assert config.in_force.size == admitted == 6
    assert config.override == config.stored == config.in_force
    assert config.by == "ann"


@pytest.mark.parametrize(
    ("code", "stored"), [(PLACES, Limit("1/h", name="x", burst=9)), (RATE, Concurrency(7, name="x"))]
)
def test_stored_limit_of_another_kind_is_no_override(limiter: Limiter, code: AnyLimit, stored: AnyLimit) -> None:
    limiter.set_rate("x", stored, by="root", force=True)
    config = limiter.config(code, key="k")
    assert config.override is None
    assert stored_in_place_of(code, config) == "", "in a worker's log"
    assert rate_set_by(config).endswith(", not in force")
    assert in_force_now(config).startswith(f"{str(code).removeprefix('x: ')} (code)")


def test_checks_and_metrics_leave_out_a_stored_limit_of_another_kind(limiter: Limiter, server: EmbeddedServer) -> None:
    app = Celery("other-kind", broker=server.url, set_as_current=False)

    @app.task(base=RateLimitedTask, limits=Limit("10/s", name="x", burst=5, cost=5))
    def costly() -> None: ...

    limiter.set_rate("x", Concurrency(2, name="x"), force=True)
    assert not [each for each in check_store(app) if "none can ever be granted" in each]
    (status,) = overview(app, "x")
    assert (status.standing.size, status.standing.interval) == (5, 0.1)
    registry = CollectorRegistry()
    registry.register(collector(app))
    labels = {"limit": "x", "source": "code"}
    assert registry.get_sample_value("celery_ratelimit_rate", labels) == 10
    assert registry.get_sample_value("celery_ratelimit_rate", labels | {"source": "stored"}) is None
