"""Bodies that are not JSON: limited, parked and sent back, and unchanged when they run."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import NewFleet, assert_never_over, until

pytestmark = pytest.mark.slow

#: Bytes that are no text in any encoding, and what only the one or the other can say.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "msgpack": (b"\x00\xff\xfe", "€ 😀", {"list": [1.5, None, True], "big": 2**63}, [[]]),
    "yaml": (b"\x00\xff\xfe", "€ 😀", {1: datetime(2026, 1, 2, 3, 4, 5)}, "null", "1e3"),
    "pickle": (b"\x00\xff\xfe", "€ 😀", {("a", 1): {2, 3}}, datetime(2026, 1, 2), 10**30, 1 + 2j),
}
TASKS = 20


@pytest.mark.parametrize(
    ("serializer", "kind"), [("msgpack", "redis"), ("yaml", "rabbitmq"), ("pickle", "redis"), ("pickle", "rabbitmq")]
)
def test_parked_arguments_are_unchanged(
    new_fleet: NewFleet, request: pytest.FixtureRequest, server: EmbeddedServer, serializer: str, kind: str
) -> None:
    broker_url = server.url if kind == "redis" else request.getfixturevalue("broker").url
    for module in {"msgpack": ["msgpack"], "yaml": ["yaml"]}.get(serializer, []):
        pytest.importorskip(module)
    conf = {"task_serializer": serializer, "accept_content": [serializer, "json"], "ratelimit_url": server.url}
    args, kwargs = ARGUMENTS[serializer], {"text": "€"}
    with new_fleet(rate="10/s", broker=broker_url, **conf) as fleet:
        fleet.env["C_FORCE_ROOT"] = "1"  # or a worker of root's refuses pickle
        results = [fleet.send("shown", *args, kwargs=kwargs) for _ in range(TASKS)]
        fleet.start(number=2)
        assert {result.get(timeout=40) for result in results} == {repr((args, kwargs))}
        assert len(fleet.starts()) == len(fleet.permits()) == TASKS
        assert_never_over(fleet.permits(), 10)
        logs = fleet.log(0) + fleet.log(1)
        assert logs.count("throttled by") > TASKS / 2
        assert "Traceback" not in logs
        until(lambda: not fleet.parking_lots().lots(), 10, "empty lots")
