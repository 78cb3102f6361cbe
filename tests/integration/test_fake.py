"""The documented fixture for users' quick tests works as documented."""

from __future__ import annotations

from celery_ratelimit import Limit, Limiter

pytest_plugins = ["celery_ratelimit.pytest_plugin"]


def test_the_fixture_runs_the_same_scripts(fake_limiter: Limiter) -> None:
    fake_limiter.quotas["stripe"] = Limit("1/h", name="stripe", burst=2)
    assert [fake_limiter.acquire("stripe").allowed for _ in range(3)] == [True, True, False]
    assert fake_limiter.peek("stripe").remaining == 0
    fake_limiter.reset("stripe")
    assert fake_limiter.acquire("stripe", cost=2).allowed
