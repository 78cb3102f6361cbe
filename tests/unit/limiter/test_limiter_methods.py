"""``Limiter`` and ``AsyncLimiter`` have the same methods; each is written once, as an operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from celery_ratelimit import AsyncLimiter, Limiter
from celery_ratelimit.limiter.operation import limiter_method

#: Waits for the store by itself, and has no awaited form yet.
SYNC_ONLY = {"check_store"}


#: What both limiters offer, and no more: the package's own modules use names with an underscore.
SURFACE = {
    *("acquire", "acquire_up_to", "available", "cancel", "charge", "limited", "peek", "permit"),
    *("release", "renew", "report", "reserve", "reset", "settle"),
    *("config", "expire_rate", "history", "pause", "resume", "set_rate", "set_shadow", "set_weight", "shadow_report"),
    "throttled",
    *("stats", "try_set_rate", "unset_rate", "weights", "from_app", "from_url", "ping"),
}


def public(kind: type) -> dict[str, Callable[..., Any]]:
    return {name: each for name, each in inspect.getmembers(kind, callable) if not name.startswith("_")}


def parameters(method: Callable[..., Any]) -> list[tuple[str, Any, Any, Any]]:
    signature = inspect.signature(method)
    return [(each.name, each.kind, each.default, each.annotation) for each in signature.parameters.values()]


def test_both_limiters_have_the_same_methods() -> None:
    ours, theirs = public(Limiter), public(AsyncLimiter)
    assert ours.keys() - SYNC_ONLY - {"close"} == theirs.keys() - {"aclose"} == SURFACE
    for name in ours.keys() & theirs.keys():
        assert parameters(ours[name]) == parameters(theirs[name]), name
    defaults = {
        name: inspect.signature(ours[name]).parameters["max_wait"].default for name in ("acquire", "permit", "limited")
    }
    assert defaults == {"acquire": 0.0, "permit": None, "limited": None}
    assert ours["acquire"].__doc__ == theirs["acquire"].__doc__


@pytest.mark.parametrize("name", [name for name in dir(Limiter) if not name.startswith("_")])
def test_method_shows_signature_and_docstring_of_its_operation(name: str) -> None:
    written = inspect.getattr_static(Limiter, name)
    if not isinstance(written, limiter_method):
        return
    for kind in (Limiter, AsyncLimiter):
        method = getattr(kind, name)
        assert method.__doc__ == written.operation.__doc__
        assert method.__name__ == name
        assert parameters(method) == parameters(written.operation)
        assert {each.kind for each in inspect.classify_class_attrs(kind) if each.name == name} == {"method"}, (
            "for help()"
        )
        assert not str(inspect.signature(method).return_annotation).startswith("Operation")
        assert inspect.iscoroutinefunction(method) == (kind is AsyncLimiter)


def test_public_attributes_of_a_limiter() -> None:
    limiters = Limiter.from_url("redis://127.0.0.1:1/0"), AsyncLimiter.from_url("redis://127.0.0.1:1/0")
    for limiter in limiters:
        data = {name for name in dir(limiter) if not name.startswith("_") and not callable(getattr(limiter, name))}
        assert data | {"client"} == {"client", "prefix", "quotas"}


def test_public_types_are_importable() -> None:
    import celery_ratelimit
    from celery_ratelimit.counts.stats import Stats
    from celery_ratelimit.errors import StoreMisconfigured
    from celery_ratelimit.limiter.setting_operations import LimitConfig
    from celery_ratelimit.limits.decision import LimitState

    for kind in (LimitConfig, LimitState, Stats, StoreMisconfigured):
        assert getattr(celery_ratelimit, kind.__name__) is kind
    assert all(hasattr(celery_ratelimit, name) for name in celery_ratelimit.__all__)
