"""``max_parked`` bounds the backlog of each key exactly; tasks beyond it end by ``overflow``."""

from __future__ import annotations

from collections import Counter

from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import NewFleet, until

NAME, MOST, TENANTS, EACH = "tests.apps.fleet.bounded", 5, ("a", "b"), 25


def test_backlog_of_each_key_is_bounded(new_fleet: NewFleet, server: EmbeddedServer) -> None:
    with new_fleet(rate="1/h") as fleet:
        results = [fleet.send("bounded", index, TENANTS[index % 2]) for index in range(2 * EACH)]
        fleet.start(number=2)
        beyond = 2 * (EACH - 1 - MOST)
        until(lambda: sum(result.ready() for result in results) == beyond + 2, 30, "the end of all but the parked ones")
        lots = fleet.parking_lots()
        assert {lot.key: lot.parked for lot in lots.lots(NAME)} == dict.fromkeys(TENANTS, MOST)
        states = Counter(result.state for result in results)
        assert states == {"SUCCESS": 2, "REVOKED": beyond, "PENDING": 2 * MOST}
        reason = str(next(result.result for result in results if result.state == "REVOKED"))
        assert reason.endswith(f", and {MOST} tasks wait already (max_parked)")

        lots.purge(NAME, "a", ids=[lots.tasks(NAME, "a")[0].id])
        another = [fleet.send("bounded", 100 + index, "a") for index in range(2)]
        until(lambda: sum(result.ready() for result in another) == 1, 20, "one more being refused")
        assert {lot.key: lot.parked for lot in lots.lots(NAME)} == dict.fromkeys(TENANTS, MOST)

        Limiter.from_url(server.url).set_rate(NAME, "50/s", force=True)
        fleet.wait_for(2 + 2 * MOST, 20)
        until(lambda: not lots.lots(NAME), 20, "the lots being empty")
        counted = Counter(result.state for result in [*results, *another])
        assert counted["SUCCESS"] == 2 + 2 * MOST
        assert counted["REVOKED"] == beyond + 1
        assert len(fleet.starts()) == 2 + 2 * MOST
