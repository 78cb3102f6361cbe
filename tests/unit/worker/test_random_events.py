"""Whatever happens in the gate, and wherever: each request is in one state and in one place, and nothing stays behind.

Operations, errors, and what comes in while a greenlet waits, at random: Hypothesis finds the order.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from celery_ratelimit import ImpossibleRequest, StoreUnavailable
from celery_ratelimit.backlog.backlog import ParkResult
from tests.examples import examples
from tests.parks import EMPTY
from tests.unit.worker.gate_bench import Bench, Lost

KINDS = (
    ("retry", "r1"),
    ("wait", "r1"),
    ("wait", "r2"),
    ("drop", "r1"),
    ("retry", "p1"),
    ("wait", "p1"),
    ("wait", "r1", "p1"),
    ("retry", "r2", "p1"),
    ("retry", "r1", "r2"),
    ("plain",),
    ("impatient", "r1"),
    ("overflowing", "r1"),
    ("impatient", "r1", "p1"),
)
OPTIONS: dict[str, Any] = {
    "impatient": ("wait", {"max_wait": 0.15}),
    "overflowing": ("retry", {"max_wait": 0.15, "overflow": "later"}),
}
AT = (
    *("ask", "start", "revoked", "announce", "park", "forget", "release", "may run"),
    *("sent back", "redirected", "acknowledged"),
)
HAPPENS = ("unexpected", "no answer", "lost", "close", "come", "come plain", "end", "changed", "impossible")

how_it_came = st.sampled_from(("", "returned", "via_return_queue"))
come = st.tuples(st.just("come"), st.sampled_from(KINDS), how_it_came, st.sampled_from(("celery", "other")))
passes = st.tuples(st.just("pass"), st.sampled_from((0.0, 0.005, 0.03, 0.1, 0.3, 1.0)))
happens = st.tuples(st.just("happens"), st.sampled_from(AT), st.sampled_from(HAPPENS))
others = st.tuples(st.sampled_from(("end", "revoke", "changed", "close", "store lost", "store back", "again")))
takes = st.tuples(st.just("takes"), st.sampled_from((0.05, 5.0)))
said = (
    *(EMPTY, ParkResult("full"), ParkResult("full", 5), ParkResult("no_room", 3)),
    *(ParkResult("parked"), ParkResult("parked", 3)),
)
parked = st.tuples(st.just("parked"), st.sampled_from(said))
together = st.tuples(st.just("together"), st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
steps = st.one_of(come, come, come, together, passes, passes, happens, others, parked, takes)
operations = st.lists(steps, min_size=1, max_size=40)


def task(bench: Bench, kind: str, *names: str) -> Any:
    throttle, options = OPTIONS.get(kind, (kind, {}))
    return bench.task(throttle, *names, **options)


def happening(bench: Bench, kind: str, step: str) -> Any:
    return {
        "unexpected": ZeroDivisionError(f"at {step}"),
        "no answer": StoreUnavailable("no answer"),
        "lost": Lost(),
        "close": bench.lose_connection,
        "come": lambda: bench.receive(bench.task("wait", "r1", "p1")),
        "come plain": lambda: bench.receive(bench.task("plain")),
        "end": bench.finish,
        "changed": lambda: bench.gate._changed({"r1", "p1"}),
        "impossible": ImpossibleRequest("r1", 2, 1),
    }[kind]


def do(bench: Bench, what: str, *how: Any) -> None:
    waiting = [request for request in bench.requests if not request.ends]
    match what, *how:
        case "come", (kind, *names), came, queue:
            bench.receive(task(bench, kind, *names), queue=queue, **({came: True} if came else {}))
        case "together", kinds:
            bench.receive_batch([task(bench, *each) for each in kinds])
        case "pass", seconds:
            bench.run(seconds)
        case "happens", step, kind:
            bench.on_step.setdefault(step, []).append(happening(bench, kind, step))
        case "takes", seconds:
            bench.mean_runtime = lambda name: seconds  # type: ignore[method-assign]
        case "parked", result:
            bench.has_parked_tasks = True
            bench.park_results.append(result)
        case ["end"]:
            bench.finish()
        case ["revoke"] if waiting:
            waiting[0].is_revoked = True
        case ["changed"]:
            bench.contained(lambda: bench.gate._changed({"r1", "p1"}))
        case ["close"]:
            bench.lose_connection()
        case ["store lost"]:
            bench.begin(StoreUnavailable("no answer"))
        case ["store back"]:
            bench.end_outage()
        case ["again"] if waiting:  # the same id, twice at once
            bench.receive(waiting[0].task, waiting[0].id)


@examples(1000, suppress_health_check=list(HealthCheck))
@given(
    choice=st.sampled_from(("defer", "allow", "local", "raise")),
    processes=st.sampled_from((1, 2, 4)),
    away=st.sampled_from((0.0, 0.02)),
    operations=operations,
)
def test_gate_stays_consistent_under_random_events(
    choice: str, processes: int, away: float, operations: list[Any]
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        bench = Bench(monkeypatch, choice, processes, seconds_away=away)
        for operation in operations:
            do(bench, *operation)
            bench.check()
        bench.on_step.clear()
        bench.end_outage()
        for _ in range(200):
            bench.finish()
            bench.run(0.3)
            if not bench.running and not bench.pending() and not len(bench.gate._pool_scheduler):
                break
        bench.check_empty()
