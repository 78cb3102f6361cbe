"""The permit of a running task names the limit requests that it was granted, whatever its body does."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from celery import Celery

from celery_ratelimit import Concurrency, Limit, RateLimitedTask
from celery_ratelimit.app.permits import demands_in, permit_of
from celery_ratelimit.app.plan import Plan, plan_of

LIMITS: dict[str, list[Any]] = {
    "rate": ["10/s"],
    "key": [Limit("10/s", name="a", key="{order[account]}")],
    "key of any type": [Limit("10/s", name="a", key="{size}")],
    "long key": [Limit("10/s", name="a", key=lambda order, size: 2000 * order["account"])],
    "cost": [Limit("10/s", name="a", burst=100, cost="size")],
    "rates": [Limit("10/s", name="a", key="{order[account]}", rates={"é\0": "20/s"})],
    "fair": [Limit("10/s", name="a", fair="{order[account]}")],
    "fair by key": [Limit("10/s", name="a", key="{size}", fair="{order[account]}")],
    "each worker": [Limit("10/s", name="a", key="{order[account]}", per_worker=True)],
    "places": [Concurrency(5, name="a", key="{order[account]}", cost="size")],
    "several": ["10/s", Limit("5/s", name="b", key="{size}"), Concurrency(5, name="c")],
    "one name twice": [Limit("10/s", burst=9, name="a"), Limit("10/s", burst=9, name="a", cost="size")],
    "two accounts": [
        Limit("10/s", burst=9, name="a", key="{size}", cost="size"),
        Limit("10/s", burst=9, name="a", key="{order[account]}", rates={"é\0": "20/s"}),
    ],
    "reserve": [Limit("10/s", name="a", burst=20, key="{size}", priority_reserve={0: 0.25})],
    "not applicable": [Limit("10/s", name="a", key="{order[none]}", missing_key="exempt"), Limit("5/s", name="b")],
}


def plan_with(limits: Any) -> Plan:
    app = Celery("a", broker="redis://", set_as_current=False)

    @app.task(base=RateLimitedTask, limits=limits)
    def charge(order: dict[str, str] | None = None, size: int = 1) -> None: ...

    plan = plan_of(charge, "celery")
    assert plan is not None
    return plan


@pytest.mark.parametrize("priority", [0, 9])
@pytest.mark.parametrize("shadowed", [0, 1])
@pytest.mark.parametrize("kind", LIMITS)
def test_permit_names_what_the_call_was_granted(kind: str, shadowed: int, priority: int) -> None:
    plan = plan_with(LIMITS[kind])
    demands = plan.demands([{"account": "é\0"}], {"size": 3}, priority)
    permit = permit_of(plan, "celery", "1", 1, demands[shadowed:], demands[:shadowed])
    found = demands_in(pickle.loads(pickle.dumps(permit)), plan, priority)
    for demand in demands:
        (same,) = [each for each in found if (each.name, each.key) == (demand.name, demand.key)]
        assert (same, same.share, same.wire, same.interval) == (demand, demand.share, demand.wire, demand.interval)
        assert same.limit.cost == demand.limit.cost, "by which settle() chooses"
    assert len(found) == len(demands)


def test_equal_limits_of_two_tasks_are_each_of_its_own_task() -> None:
    """The limit of a key is made once for equal limits."""
    app = Celery("a", broker="redis://", set_as_current=False)

    def limits() -> Limit:
        return Limit("10/s", name="a", key="{model}", rates={"large": "5/s"}, cost="size", burst=9)

    @app.task(base=RateLimitedTask, limits=limits())
    def first(model: str, size: int) -> None: ...

    @app.task(base=RateLimitedTask, limits=limits())
    def second(model: str, size: int) -> None: ...

    for task in (first, second):
        plan = plan_of(task, "celery")
        assert plan is not None
        demands = plan.demands(["large", 3], {})
        assert demands_in(permit_of(plan, "celery", "1", 1, demands, ()), plan) == demands


def test_limit_that_the_process_does_not_have_is_left_out() -> None:
    """Its worker was reloaded, with other limits, while the task was under way."""
    plan = plan_with("10/s")
    permit = permit_of(plan, "celery", "1", 1, plan.demands([], {}), ())
    gone = [(0, "gone", "", 1, None), (7, "gone", "", 1, None)]
    assert demands_in({**permit, "asked": [*gone, *permit["asked"]]}, plan) == plan.fixed


class Own(str):
    """A text that cannot be pickled."""

    def __str__(self) -> str:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


def test_keys_of_a_callable_are_plain_text() -> None:
    plan = plan_with(Limit("10/s", name="a", key=lambda: Own("k"), fair=lambda: Own("s")))
    permit = permit_of(plan, "celery", "1", 1, plan.demands([], {}), ())
    assert pickle.loads(pickle.dumps(permit))["asked"] == [(0, "a", "k", 1, "s")]
