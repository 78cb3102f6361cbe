"""Of equal waiting tasks one runs, and the others end, whatever happens to workers."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from celery import chord, group
from celery.result import AsyncResult

from tests.fleet_of import Fleet, NewFleet, assert_never_over, until
from tests.rabbitmq import Broker

ACCOUNTS, ROUNDS = 3, 8
#: While the first of all starts, the others wait.
RATE = 1


def ends(results: list[AsyncResult]) -> dict[str, str]:
    """The coalesced tasks, each with the task in whose favour it has ended."""
    until(lambda: all(result.ready() for result in results), 60, "every task having ended")
    found = {}
    for result in results:
        if result.state == "REVOKED":
            (survivor,) = re.fullmatch(r"coalesced: task (\S+) waits in its place", str(result.result)).groups()  # type: ignore[union-attr]
            found[result.id] = survivor
        else:
            assert result.state == "SUCCESS"
    return found


def coalesced(fleet: Fleet) -> Counter[str]:
    """How often each task has ended in favour of another, by the logs."""
    logs = "".join(map(fleet.log, range(len(fleet.workers))))
    return Counter(re.findall(r"\[([0-9a-f-]{36})\] coalesced", logs))


def last(id: str, ended: dict[str, str]) -> str:
    """The one that runs for it."""
    while id in ended:
        id = ended[id]
    return id


@pytest.mark.parametrize(
    ("which", "broker_url", "workers"),
    [("newest", "redis", 1), ("oldest", "redis", 2), pytest.param("newest", "rabbitmq", 2, marks=pytest.mark.slow)],
    indirect=["broker_url"],
)
def test_equal_waiting_tasks_end_in_favour_of_one_that_runs(
    new_fleet: NewFleet, broker_url: str, which: str, workers: int
) -> None:
    with new_fleet(rate=f"{RATE}/s", broker=broker_url) as fleet:
        fleet.start(number=workers)
        fleet.send(which, -1, "other").get(timeout=20)
        results = [fleet.send(which, index, index % ACCOUNTS) for index in range(ACCOUNTS * ROUNDS)]
        ended = ends(results)
        for account in range(ACCOUNTS):
            own = results[account::ACCOUNTS]
            assert all(ended.get(result.id) in {None, *[each.id for each in own]} for result in own), "the same account"
            if workers == 1:  # of two, the one may hand on earlier what the other has taken in before
                assert own[-1].id not in ended, "what was sent last has run"
            ran = {result.id for result in own} - ended.keys()
            assert 1 <= len(ran) < ROUNDS
            assert {last(result.id, ended) for result in own} == ran, "in favour of one that has run"
        started = [start.index for start in fleet.starts()]
        assert sorted(started) == [-1, *[i for i, result in enumerate(results) if result.id not in ended]]
        until(lambda: coalesced(fleet).total() >= len(ended), 10, "a line of the log for each end")
        assert coalesced(fleet) == Counter(list(ended)), "each ends once"
        assert_never_over(fleet.permits(), RATE)
        until(lambda: not fleet.parking_lots().lots(f"tests.apps.fleet.{which}"), 20, "the lot being empty")


def test_tasks_of_a_canvas_are_not_coalesced(new_fleet: NewFleet) -> None:
    with new_fleet(rate="4/s") as fleet:
        fleet.start()
        app = fleet.sender
        same = app.signature("tests.apps.fleet.newest", args=(0, 7))
        total = chord(group([same.clone() for _ in range(4)]), app.signature("tests.apps.fleet.total"))()
        linked = same.clone().apply_async(link=app.signature("tests.apps.fleet.total", args=([1, 2],), immutable=True))
        others = [fleet.send("newest", 1, 7) for _ in range(4)]
        assert total.get(timeout=40) == 0, "all four have run"
        assert linked.get(timeout=20) == 0
        assert len(ends(others)) >= 1


@pytest.mark.parametrize(
    "step",
    [
        "parked, not acknowledged",
        *[pytest.param(step, marks=pytest.mark.slow) for step in ("before it parks", "published, not reported")],
    ],
)
def test_killed_worker_loses_no_coalesced_task_and_ends_none_twice(
    new_fleet: NewFleet, broker: Broker, step: str
) -> None:
    with new_fleet(rate=f"{RATE}/s", app="tests.apps.crashing", broker=broker.url) as fleet:
        fleet.env["TEST_DIES"] = step
        doomed = fleet.launch()
        results = [fleet.send("newest", 0, 0)]
        results[0].get(timeout=60)
        # Not acknowledged, it would come again after the kill, as the newest.
        until(lambda: fleet.asked("active") == [], 20, "its acknowledgement")
        results += [fleet.send("newest", index, 0) for index in range(1, ROUNDS)]
        until(lambda: doomed.poll() is not None, 40, f"its death {step}")
        # Else the next worker may receive the last message before RabbitMQ gives back the earlier ones.
        until(lambda: not broker.consumers("celery"), 20, "RabbitMQ having noticed it")
        before = {start.index for start in fleet.starts()}
        fleet.launch()
        ended = ends(results)
        assert results[-1].id not in ended
        ran = Counter(start.index for start in fleet.starts())
        assert {index for index, times in ran.items() if times > 1} <= before
        assert {results[index].id for index in ran}.isdisjoint(ended), "it has run, or it has ended"
        assert set(coalesced(fleet).values()) <= {1}
        assert {*ended, *[results[index].id for index in ran]} == {result.id for result in results}
