"""Parts of arguments in keys and costs: dicts, objects and pydantic models."""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Optional, TypedDict

import pydantic
import pytest
from celery import VERSION

from celery_ratelimit import ConfigurationError, Limit, Limiter
from tests.unit.apps import make_app, plan_of, requests_of


class Address(pydantic.BaseModel):
    country: str = "de"


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)

    tenant_id: str = pydantic.Field(alias="tenantId")
    weight: int = 2
    address: Address = Address()
    parent: Optional["Order"] = None

    @pydantic.field_validator("tenant_id")
    @classmethod
    def _in_lower_case(cls, value: str) -> str:
        return value.lower()

    @property
    def market(self) -> str:
        return self.address.country


class Row(TypedDict, total=False):
    tenant_id: str
    lines: "list[Line]"


@dataclasses.dataclass
class Line:
    sku: str
    row: Row | None = None


def model_task(order: Order, orders: list[Order] = [], *, other: Order | None = None) -> None: ...  # noqa: B006


def any_task(order: Any) -> None: ...


ANN = {"tenantId": "Ann"}


# -- Dicts and objects -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["{order.tenant_id}", "{order[tenant_id]}"])
@pytest.mark.parametrize("order", [{"tenant_id": "ann"}, Order(tenantId="ann"), Row(tenant_id="ann")])
def test_dot_and_brackets_are_equal_in_dicts_and_objects(key: str, order: Any) -> None:
    assert requests_of(plan_of(any_task, limits=Limit("1/s", key=key)), order) == [("shop.charge", "ann", 1)]


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("{order.lines[1].sku}", {"lines": [{"sku": "x"}, {"sku": "ann"}]}),
        ("{order[lines][0].sku!s:>3}", {"lines": (Line("ann"),)}),
        ("{order.items}", {"items": "ann"}),  # and not the method
        ("{order[0]}", {"0": "ann"}),  # as JSON writes the key 0
        ("{order[0]}", {0: "ann"}),
        ("{order[0]}", ["ann", "0"]),
        ("{order[a.b]}", {"a.b": "ann"}),
        ("{order.real}nn", type("Named", (), {"real": "a"})()),
    ],
)
def test_parts_of_parts(key: str, order: Any) -> None:
    assert requests_of(plan_of(any_task, limits=Limit("1/s", key=key)), order) == [("shop.charge", "ann", 1)]


def test_costs_shares_and_coalesce_keys_have_parts() -> None:
    limit = Limit("1/s", burst=9, name="a", fair="{order.tenant_id}", cost="order.weight")
    plan = plan_of(any_task, limits=limit, coalesce="newest", coalesce_key="{order.tenant_id}")
    (demand,) = plan.demands(({"tenant_id": "ann", "weight": 3},), {})
    assert (demand.cost, demand.share) == (3, "ann")
    alike = [plan.alone("shop.charge", ({"tenant_id": name, "n": n},), {}) for n, name in enumerate(["a", "a", "b"])]
    assert alike[0] == alike[1] != alike[2]
    with pytest.raises(ConfigurationError, match=r"cost='order\.weight' is not among the arguments order: KeyError"):
        plan.demands(({"tenant_id": "ann"},), {})


class Customer:
    """Its parts fail, with or without items beside them."""

    @property
    def tenant(self) -> str:
        return str({}["tenant"])

    def id(self) -> int:
        return 7


class Items(Customer):
    def __getitem__(self, name: str) -> str:
        raise KeyError(name)


@pytest.mark.parametrize(("key", "why"), [("tenant", "'tenant' has raised KeyError"), ("id", "'id' is a method")])
@pytest.mark.parametrize("customer", [Customer(), Items()])
def test_failing_part_is_an_error_and_not_a_missing_key(key: str, why: str, customer: Any) -> None:
    """Else a call without a limit, or, as a method's text has an address in it, one with a limit of its own."""
    plan = plan_of(any_task, limits=Limit("1/s", key=f"{{order.{key}}}", missing_key="exempt"))
    with pytest.raises(ConfigurationError, match=why):
        plan.demands((customer,), {})
    assert requests_of(plan_of(any_task, limits=Limit("1/s", key="{order.x}", missing_key="exempt")), Items()) == []


def test_template_keeps_braces_and_formats() -> None:
    def task(order: Any, width: int) -> None: ...

    plan = plan_of(task, limits=Limit("1/s", key="{{x}}:{order.n:0{width}d}:{order!r}"))
    assert requests_of(plan, {"n": 7}, 3) == [("shop.charge", "{x}:007:{'n': 7}", 1)]


def test_limiter_reads_parts_as_a_task_does() -> None:
    limit = Limit("1/s", name="tenant", key="{order.tenant_id}")
    limiter = Limiter.from_url("memory://", quotas={"tenant": limit})
    assert limiter.acquire("tenant", args={"order": {"tenant_id": "ann"}}).allowed
    assert not limiter.acquire("tenant", args={"order": Order(tenantId="ann")}).allowed


# -- Tasks with pydantic=True ------------------------------------------------------------------------------------------

models_are_made = pytest.mark.skipif(VERSION[:2] < (5, 5), reason="Celery makes models since 5.5")


@models_are_made
@pytest.mark.parametrize("options", [{}, {"autoretry_for": (OSError,)}, {"acks_late": True}])
def test_limit_reads_the_validated_model(options: dict[str, Any]) -> None:
    """By its fields, validated, with defaults, whatever keys the message has."""

    def bound(self: Any, order: Order, *rest: int, other: Order | None = None, **more: Any) -> None: ...

    limit = Limit("9/s", burst=9, key="{order.tenant_id}:{order.market}", cost="order.weight")
    plan = plan_of(model_task, pydantic=True, limits=limit, **options)
    for order in (ANN, {"tenant_id": "ANN"}, Order(tenantId="ANN")):
        assert requests_of(plan, order) == [("shop.charge", "ann:de", 2)]
        assert requests_of(plan, order=order) == [("shop.charge", "ann:de", 2)]
    limit = Limit("1/s", key="{order.tenant_id}:{other.tenant_id}:{n}")
    plan = plan_of(bound, app=make_app(), bind=True, pydantic=True, limits=limit, **options)
    assert requests_of(plan, ANN, 1, 2, other=ANN, n=7) == [("shop.charge", "ann:ann:7", 1)]


@models_are_made
def test_callable_key_gets_models_as_passed() -> None:
    seen: list[Any] = []

    def key(*args: Any, **kwargs: Any) -> str:
        seen.append((args, kwargs))
        return "x"

    plan = plan_of(model_task, pydantic=True, limits=Limit("1/s", key=key))
    plan.demands((ANN,), {"other": ANN})
    plan.demands((), {"order": ANN})
    order = Order(tenantId="ann")
    assert seen == [((order,), {"other": order}), ((), {"order": order})]


def test_without_a_key_equal_messages_coalesce() -> None:
    """A model does not show every field."""

    class Hidden(pydantic.BaseModel):
        n: int = pydantic.Field(repr=False)

    def task(hidden: Hidden) -> None: ...

    plan = plan_of(task, pydantic=True, limits="1/s", coalesce="newest")
    assert plan.alone("x", ({"n": 1},), {}) != plan.alone("x", ({"n": 2},), {})
    by_key = plan_of(task, app=make_app(), pydantic=True, limits="1/s", coalesce="newest", coalesce_key="{hidden.n}")
    assert by_key.alone("x", ({"n": 1},), {}) == by_key.alone("x", ({"n": "1"},), {})


@models_are_made
def test_arguments_invalid_for_the_model_are_invalid_for_the_limit() -> None:
    plan = plan_of(model_task, pydantic=True, limits=Limit("1/s", key="{order.tenant_id}", missing_key="shared"))
    with pytest.raises(pydantic.ValidationError):
        plan.demands(({"weight": 3},), {})
    with pytest.raises(TypeError, match="missing a required argument"):
        plan.demands((), {})
    strict = plan_of(model_task, pydantic=True, pydantic_strict=True, limits=Limit("1/s", key="{order.tenant_id}"))
    with pytest.raises(pydantic.ValidationError):
        strict.demands(({"tenantId": "ann", "weight": "3"},), {})


def test_arguments_that_no_limit_reads_are_not_validated() -> None:
    assert requests_of(plan_of(model_task, pydantic=True, limits="1/s"), {"weight": 3}) == [("shop.charge", "", 1)]


# -- Checked at the start ----------------------------------------------------------------------------------------------


@models_are_made
@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("{order.tenant}", r"key='\{order.tenant\}' .*names 'order.tenant', and Order has no 'tenant' \(fields: "),
        ("{order.tenantId}", "Order has no 'tenantId'"),  # of the message, not of the model
        ("{order.address.city}", "Address has no 'city'"),
        ("{other.parent.address.city}", "Address has no 'city'"),
        ("{orders[0].tenant}", "Order has no 'tenant'"),
    ],
)
def test_unknown_part_of_a_model_is_refused(key: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Limiter.from_url("memory://").limited(Limit("1/s", name="a", key=key))(model_task)
    with pytest.raises(ConfigurationError, match=why):
        plan_of(model_task, pydantic=True, limits=Limit("1/s", key=key))
    plan_of(model_task, app=make_app(), limits=Limit("1/s", key=key))  # dicts, which may have any keys


def test_known_part_of_a_model_is_accepted() -> None:
    model, parents = "{order.tenant_id}{order.market}{order.model_extra}", "{orders[0].parent.parent.weight}"
    for key in (model, parents, "{order.address.country.real}", "{other.tenant_id}"):
        plan_of(model_task, app=make_app(), pydantic=True, limits=Limit("1/s", key=key))


def test_dataclasses_typed_dicts_and_containers_are_checked() -> None:
    def task(
        line: "Line",
        row: Annotated[Row, "x"],
        rows: Sequence[Row],
        by_id: dict[str, Line],
        either: Row | Line,
        *rest: Row,
    ) -> None: ...

    for good in (
        *("{line.sku}", "{line.row.tenant_id}", "{row[lines][0].sku}", "{rows[3].tenant_id}", "{by_id[7].sku}"),
        "{rows.first.x}",
        *("{either.color}", "{rest[0].tenant_id}"),
    ):
        plan_of(task, app=make_app(), limits=Limit("1/s", key=good))
    for bad in ("{line.sk}", "{line.row.x}", "{row[lines][0].x}", "{rows[3].x}", "{by_id[7].x}"):
        with pytest.raises(ConfigurationError, match=r"has no '(sk|x)'"):
            plan_of(task, app=make_app(), limits=Limit("1/s", key=bad))
    with pytest.raises(ConfigurationError, match=r"cost='line\.weight' of limit 'a' names .*Line has no"):
        plan_of(task, app=make_app(), limits=Limit("1/s", burst=9, name="a", cost="line.weight"))
    with pytest.raises(ConfigurationError, match=r"coalesce_key='\{line\.x\}' names 'line.x', and Line has no 'x'"):
        plan_of(task, app=make_app(), limits="1/s", coalesce="newest", coalesce_key="{line.x}")


@dataclasses.dataclass
class Unresolved:
    part: "Elsewhere"  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    "annotation",
    [Unresolved, dict, list, Any, typing.Dict, typing.List, typing.Mapping, str, "str | int", "Elsewhere"],  # noqa: UP006
)
def test_annotation_without_known_fields_allows_any_part(annotation: Any) -> None:
    def task(order: Any) -> None: ...

    task.__annotations__["order"] = annotation
    assert requests_of(plan_of(task, limits=Limit("1/s", key="{order.x}")), {"x": "ann"}) == [("shop.charge", "ann", 1)]


def test_model_with_extra_fields_allows_any_part() -> None:
    class Loose(pydantic.BaseModel, extra="allow"):
        pass

    def task(loose: Loose) -> None: ...

    plan = plan_of(task, pydantic=True, limits=Limit("1/s", key="{loose.tenant}"))
    assert requests_of(plan, {"tenant": "ann"}) == [("shop.charge", "ann", 1)]
