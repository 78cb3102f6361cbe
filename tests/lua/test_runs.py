"""A lease belongs to one run of a task, and so does a permit: another copy of the task takes its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import redis

from benchmarks.servers import Cluster
from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.script_calls import LeaseRequests, LeasesToRelease
from celery_ratelimit.worker.concurrency import release_and_acquire
from tests.conftest import PATIENT, START, Clock

from .frozen import us

ONE = LimitRequest(Concurrency(1, name="one", lease=60.0), "one")
TWO = LimitRequest(Concurrency(2, name="two", lease=60.0), "two")
RATE = LimitRequest(Limit("10/s", burst=10, name="rate"), "rate")

#: How a run asks for its leases: with the id of its task, and one of its own.
Ask = Callable[[Limiter, Sequence[LimitRequest], str, str], bool]


def by_acquire(limiter: Limiter, demands: Sequence[LimitRequest], id: str, lease_id: str) -> bool:
    return limiter._asker.ask(demands, id=id, lease_id=lease_id).allowed


def with_a_slot(limiter: Limiter, demands: Sequence[LimitRequest], id: str, lease_id: str) -> bool:
    return limiter._asker.ask(demands, id=id, claim=60.0, lease_id=lease_id).allowed


def by_hand_on(limiter: Limiter, demands: Sequence[LimitRequest], id: str, lease_id: str) -> bool:
    asking = LeaseRequests([id], 0, us(60.0), "", 1, False, [lease_id])
    (decision,) = release_and_acquire(limiter._asker, demands, asking, ())
    return decision.allowed


EACH_ASK = (by_acquire, with_a_slot, by_hand_on)
ASKS = pytest.mark.parametrize("ask", EACH_ASK)
DEMANDS = pytest.mark.parametrize("demands", [[ONE], [ONE, TWO], [RATE, ONE]], ids=["one", "two", "rate"])


def release(limiter: Limiter, run: str, demands: Sequence[LimitRequest]) -> int:
    places = [each for each in demands if isinstance(each.limit, Concurrency)]
    return limiter._asker.release([LeasesToRelease(run, places, START)])


@ASKS
@DEMANDS
def test_redelivered_copy_waits_for_its_own_lease(
    frozen: Limiter, store: redis.Redis, ask: Ask, demands: list[LimitRequest]
) -> None:
    assert all(ask(frozen, demands, "task", "task#1") for _ in range(3)), "a reply may be lost: it finds its lease"
    assert store.zcount("ratelimit:v1:{one}::leases", 1, "+inf") == 1
    assert not ask(frozen, demands, "task", "task#2"), "the first run goes on"
    assert release(frozen, "task#2", demands) == 0, "it holds none"
    assert not ask(frozen, demands, "task", "task#2")
    assert release(frozen, "task#1", demands)
    assert ask(frozen, demands, "task", "task#2")
    assert release(frozen, "task#1", demands) == 0, "the end of the first run is no end of the second"
    assert not ask(frozen, demands, "task", "task#3")


def test_lease_passes_from_run_to_run(frozen: Limiter) -> None:
    """A copy asks together with the end of the first run, and is in no way the same to the script."""
    assert by_hand_on(frozen, [ONE], "task", "task#1")
    asking = LeaseRequests(["task", "other"], 0, us(60.0), "", 2, True, ["task#2", "other#1"])
    said = release_and_acquire(frozen._asker, [ONE], asking, [LeasesToRelease("task#1", (ONE,), START)])
    assert [decision.allowed for decision in said] == [True, False]
    assert release(frozen, "task#1", [ONE]) == 0
    assert release(frozen, "task#2", [ONE]) == 1


@ASKS
def test_copy_waits_until_the_lease_of_a_killed_worker_expires(frozen: Limiter, clock: Clock, ask: Ask) -> None:
    assert ask(frozen, [ONE], "task", "task#1")
    clock.advance(20.0)
    assert frozen._asker.renew([(ONE, "task#1")]) == [True]
    clock.advance(59.9)
    assert not ask(frozen, [ONE], "task", "task#2")
    clock.advance(0.2)
    assert ask(frozen, [ONE], "task", "task#2")
    assert frozen._asker.renew([(ONE, "task#1"), (ONE, "task#2")]) == [False, True]


def test_many_leases_are_released_by_one_script(frozen: Limiter, store: redis.Redis) -> None:
    limits = [LimitRequest(Concurrency(8, name=f"l{number}"), f"l{number}") for number in range(3)]
    ended = []
    for number in range(8):
        assert frozen._asker.ask(limits, id=f"t{number}", lease_id=f"t{number}#1").allowed
        ended.append(LeasesToRelease(f"t{number}#1", limits, START))
    before = store.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
    assert frozen._asker.release(ended) == 24
    assert store.info("commandstats")["cmdstat_evalsha"]["calls"] <= before + 1
    assert frozen._asker.release(ended) == 0
    assert all(store.zcount(f"ratelimit:v1:{{l{number}}}::leases", 1, "+inf") == 0 for number in range(3))


def test_leases_on_several_cluster_nodes(cluster_store: Cluster) -> None:
    limiter = Limiter.from_url(cluster_store.url + PATIENT)
    demands = [RATE, ONE, TWO, LimitRequest(Concurrency(1, name="four"), "four")]
    for ask in EACH_ASK:
        assert all(ask(limiter, demands, "task", "task#1") for _ in range(2)), "it finds its lease"
        assert not ask(limiter, demands, "task", "task#2")
        assert release(limiter, "task#1", demands) == 3
        assert ask(limiter, demands, "task", "task#2")
        assert release(limiter, "task#1", demands) == 0
        assert release(limiter, "task#2", demands) == 3


RATES = [
    Limit("1/s", name="rate"),
    Limit("1/s", name="rate", refill="interval"),
    Limit("1/s", name="rate", algorithm="leaky_bucket", capacity=5),
    *[Limit("1/s", name="rate", algorithm=each) for each in ("fixed_window", "sliding_window", "sliding_log")],
]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "with a lease"])
@pytest.mark.parametrize("limit", RATES, ids=lambda limit: f"{limit.method} {limit.refill}")
def test_started_copy_takes_its_own_permit(frozen: Limiter, clock: Clock, limit: Limit, together: bool) -> None:
    """The reservation was used by the first run: the copy, of the same id, is as any other task."""
    demands = [LimitRequest(limit, "rate"), *([TWO] if together else [])]
    assert frozen._asker.ask(demands, id="before", lease_id="before#1").allowed
    first = frozen._asker.ask(demands, id="task", claim=60.0, lease_id="task#1")
    assert not first.allowed
    release(frozen, "before#1", demands)
    clock.advance(first.retry_after)
    assert frozen._asker.ask(demands, id="task", claim=60.0, lease_id="task#1").allowed
    copy = frozen._asker.ask(demands, id="task", claim=60.0, lease_id="task#2")
    assert not copy.allowed
    assert copy.retry_after > 0.5
    other = frozen._asker.ask(demands, id="other", claim=60.0, lease_id="other#1")
    assert other.retry_after > copy.retry_after or limit.method != "token_bucket"
    clock.advance(copy.retry_after)
    assert frozen._asker.ask(demands, id="task", claim=60.0, lease_id="task#2").allowed
    assert not frozen._asker.ask(demands, id="task", claim=60.0, lease_id="task#3").allowed
