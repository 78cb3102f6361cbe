"""Fair shares of a limit: ``fair=`` and ``weights=``."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from celery_ratelimit import ConfigurationError, Limit
from celery_ratelimit.store.keys import escape
from tests.unit.apps import make_app, plan_of

FAIR = Limit("5/s", name="stripe", fair="{tenant_id}", weights={"gold": 4, "held": 0})


def charge(order: int, tenant_id: str, items: Any = None) -> None: ...


def share_of(fair: Any, *args: Any, **kwargs: Any) -> str | None:
    (demand,) = plan_of(charge, limits=Limit("5/s", name="stripe", fair=fair)).demands(args, kwargs)
    share: str | None = demand.share
    return share


def test_share_comes_from_a_template_or_a_callable() -> None:
    assert share_of("{tenant_id}", 1, "acme") == "acme"
    assert share_of("{tenant_id}:{items[0]}", 1, tenant_id=7, items=["x"]) == "7:x"
    assert share_of(lambda order, tenant_id: f"{tenant_id} {order}", 1, "acme") == "acme 1"
    assert share_of(None, 1, "acme") is None
    assert len(share_of("{tenant_id}", 1, "x" * 5000) or "") < 100


@pytest.mark.parametrize(
    "made", [None, "", 7, 0.5, b"x", "é / \0", "\ud800", "x" * 1_000_000, "é" * 1_000_000, ["a"], float("nan")]
)
def test_any_result_of_a_callable_is_a_bounded_share(made: Any) -> None:
    """Something else than a text is taken as it is shown, as a key is."""
    share = share_of(lambda order, tenant_id: made, 1, "acme")
    assert share is not None
    assert share == share_of(lambda order, tenant_id: made, 2, "other")
    assert len(escape(share)) <= 80
    if not isinstance(made, str):
        assert share == str(made)


def test_calls_of_different_shares_use_one_bucket() -> None:
    plan = plan_of(charge, limits=FAIR)
    (one,), (other,) = plan.demands((1, "a"), {}), plan.demands((1, "b"), {})
    assert one == other
    assert hash(one) == hash(other)
    assert (one.share, other.share) == ("a", "b")
    assert pickle.loads(pickle.dumps(other)).share == "b"


def test_unfillable_share_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"fair='\{items.name\}' cannot be filled"):
        share_of("{items.name}", 1, "acme")
    with pytest.raises(ZeroDivisionError):
        share_of(lambda order, tenant_id: str(1 / 0), 1, "acme")
    for fair, said in (("{tenant}", "names the argument 'tenant'"), ("tenant_id", r"fair='\{tenant_id\}', or leave")):
        with pytest.raises(ConfigurationError, match=said):
            plan_of(charge, limits=Limit("5/s", name="stripe", fair=fair))


def test_quotas_take_fair_and_weights_from_json() -> None:
    written = json.loads('{"stripe": {"rate": "5/s", "fair": "{tenant_id}", "weights": {"held": 0.0, "gold": 4.0}}}')
    (limit,) = plan_of(charge, app=make_app(ratelimit_quotas=written), limits="stripe").limits
    assert limit == FAIR
    assert limit.weights["gold"] == 4


def test_fair_with_throttle_wait_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="throttle='wait' leaves what waits in the broker's queue"):
        plan_of(charge, limits=FAIR, throttle="wait")
    assert plan_of(charge, limits=FAIR, throttle="fail")
