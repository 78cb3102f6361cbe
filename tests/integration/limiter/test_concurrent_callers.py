"""Every algorithm on the real clock, called by many processes and threads.

All times are the store's own, to the microsecond, so that the laws hold without any allowance. The model judges that
nothing is left unused: each call gets from it what it got from the store.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import redis

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer
from tests.integration.limiter.callers import (
    Asked,
    Crowd,
    Held,
    Told,
    ask_and_log,
    crowd,
    hold_and_tell,
    hold_places,
    most_at_once,
    take_turns,
)
from tests.lua.counted import Numbers
from tests.lua.model import Model
from tests.lua.windows import Start, check_every_window, most

SECONDS = 1.0


def limit_of(rate: str, **options: Any) -> Limit:
    return Limit(rate, name="api", **options)


TURNS = {
    "token_bucket": limit_of("100/s", burst=5),
    "token_bucket, interval": limit_of("12/0.2s", burst=15, refill="interval"),
    "token_bucket, debt": limit_of("120/s", burst=3, debt=4, cost=6),
    "token_bucket, warmup": limit_of("100/s", warmup=1.0),
    "leaky_bucket": limit_of("60/s", algorithm="leaky_bucket", capacity=3),
    "fixed_window, clock": limit_of("12/0.2s", algorithm="fixed_window"),
    "fixed_window, first": limit_of("12/0.2s", algorithm="fixed_window", align="first"),
    "sliding_window": limit_of("8/0.1s", algorithm="sliding_window", sub_windows=4),
    "sliding_log": limit_of("8/0.1s", algorithm="sliding_log"),
}


def some(table: dict[str, Any], name: str, fast: Sequence[str]) -> pytest.MarkDecorator:
    """A test of each row; a row that is not ``fast`` is left to ``make test-all``."""
    marks = {id: [] if id in fast else [pytest.mark.slow] for id in table}
    return pytest.mark.parametrize(name, [pytest.param(row, id=id, marks=marks[id]) for id, row in table.items()])


@pytest.fixture(scope="module")
def callers() -> Iterator[Crowd]:
    with crowd() as running:
        yield running


def demand_of(limit: Limit | Concurrency, cost: int | None = None) -> LimitRequest:
    assert limit.name is not None
    assert isinstance(limit.cost, int)
    return LimitRequest(limit, limit.name, cost=cost or limit.cost)


# -- Rates -------------------------------------------------------------------------------------------------------------


@some(TURNS, "limit", fast=("token_bucket", "token_bucket, warmup", "leaky_bucket", "sliding_log"))
def test_blocking_calls_get_what_the_law_allows_in_order(
    server: EmbeddedServer, store: redis.Redis, callers: Crowd, limit: Limit
) -> None:
    demand = demand_of(limit)
    parts: list[list[Told]] = callers.run(take_turns, server.url, limit, SECONDS)
    told = sorted(each for part in parts for each in part)
    granted = [each for each in told if each.allowed]
    starts = [Start(each.at, demand.cost) for each in granted]

    check_every_window(starts, demand)
    if limit.warmup:
        check_warm_up(starts, limit)
    if limit.capacity is not None:
        check_queue(told, limit.capacity)
    else:
        assert granted == told, "no call was refused"
    assert all(one.at <= next.at for one, next in pairwise(granted)), "first come, first served"


def check_warm_up(starts: list[Start], limit: Limit) -> None:
    """Cold, a permit takes three intervals; that falls linearly, over as many as come at half the rate meanwhile."""
    stable, warm = limit.interval * 1e6, limit.warmup * 1e6
    rising = warm / (2 * stable)
    for number, start in enumerate(starts):
        if number <= rising:
            least = 3 * stable * number - stable * number**2 / rising
        else:
            least = warm + (number - rising) * stable
        assert start.at - starts[0].at >= least


def check_queue(told: list[Told], capacity: int) -> None:
    """At most ``capacity`` calls wait at any time, and none is refused while fewer do."""
    waits = [(each.asked, each.at, 1) for each in told if each.allowed and each.at > each.asked]
    assert most_at_once(waits) == capacity
    refused = [each for each in told if not each.allowed]
    assert refused, "there were more callers than places in the queue"
    for each in refused:
        assert each.queue_full
        assert sum(asked <= each.asked <= at for asked, at, _ in waits) >= capacity


STORM = {
    "token_bucket": [limit_of("200/s", burst=5)],
    "token_bucket, interval": [limit_of("40/0.2s", burst=50, refill="interval")],
    "token_bucket, debt": [limit_of("300/s", burst=2, debt=1)],
    "token_bucket, warmup": [limit_of("300/s", burst=3, warmup=0.5)],
    "leaky_bucket": [limit_of("150/s", algorithm="leaky_bucket", capacity=2)],
    "fixed_window, clock": [limit_of("30/0.15s", algorithm="fixed_window")],
    "fixed_window, first": [limit_of("30/0.15s", algorithm="fixed_window", align="first")],
    "sliding_window": [limit_of("30/0.15s", algorithm="sliding_window", sub_windows=7)],
    "sliding_log": [limit_of("30/0.15s", algorithm="sliding_log")],
    "several": [
        Limit("200/s", burst=20, name="bucket"),
        Limit("40/0.2s", name="window", algorithm="sliding_window"),
        Limit("20/0.1s", name="log", algorithm="sliding_log"),
        Limit("200/1s", name="clock", algorithm="fixed_window"),
    ],
}


@some(STORM, "limits", fast=("token_bucket", "sliding_window", "several"))
def test_every_interleaving_agrees_with_the_model(
    server: EmbeddedServer, store: redis.Redis, callers: Crowd, limits: list[Limit]
) -> None:
    """Costs of 1 to 3; without patience, with slots and permits ahead: each answer is the one that the model gives."""
    wanted = [demand_of(limit) for limit in limits]
    dearest = 1 if limits[0].algorithm == "leaky_bucket" else 3
    parts = callers.run(ask_and_log, server.url, server.url, wanted, 0.7, dearest)
    answers: dict[str, deque[Asked]] = defaultdict(deque)
    for each in [asked for part in parts for asked in part]:
        answers[each.id].append(each)
    model = Model(0)
    starts: list[Start] = []
    refused = 0
    for line in store.lrange("test:log", 0, -1):  # scripts run one after the other: this is their order
        now, id = line.split(" ", 1)
        model.now = int(now)
        told = answers[id].popleft()
        assert told.answer == model.acquire(told.wanted, id, told.horizon, told.claim)
        if told.answer.allowed:
            starts.append(Start(model.now + told.answer.wait, told.wanted[0].cost))
        else:
            refused += 1
    assert not any(answers.values()), "every reply belongs to a call"
    for demand in wanted:
        check_every_window(starts, demand)
    assert starts
    assert refused


# -- Reservations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit",
    [
        limit_of("9000/s", burst=3),
        limit_of("9000/s", algorithm="leaky_bucket"),
        limit_of("9000/s", burst=3, debt=3),
        limit_of("9000/s", warmup=0.001),
    ],
    ids=["token_bucket", "leaky_bucket", "token_bucket, debt", "token_bucket, warmup"],
)
def test_thousands_of_permits_keep_the_rate_whose_interval_is_a_fraction_of_a_microsecond(
    frozen: Limiter, limit: Limit
) -> None:
    starts = [frozen.reserve(limit, id=str(number), horizon=1.0)._granted_at for number in range(2000)][100:]  # warm
    length = starts[-1] - starts[0]
    assert len(starts) <= most(Numbers.of(demand_of(limit)), length)
    # Without a burst each call starts at a whole microsecond, and the next is counted from it.
    rounded_up = int(limit.burst == 1)
    assert length <= (len(starts) - 1) * (limit.interval * 1e6 + rounded_up) + 1


# -- Concurrency -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("places", "dearest", "max_wait"), [(3, 1, 0.0), (4, 4, 0.0), (4, 4, 60.0)])
def test_leases_never_exceed_the_limit_and_none_stays_free_while_calls_are_refused_or_wait(
    server: EmbeddedServer, limiter: Limiter, callers: Crowd, places: int, dearest: int, max_wait: float
) -> None:
    limit = Concurrency(places, name="places", lease=30.0)
    parts = callers.run(hold_places, server.url, limit, 0.01 * dearest, dearest, max_wait)
    held: list[Held] = [each for part, _ in parts for each in part]
    refused: list[int] = [each for _, part in parts for each in part]
    assert most_at_once([(each.since, each.ended, each.cost) for each in held]) == places
    if max_wait:
        assert all(part for part, _ in parts), "every caller was served"
    else:
        assert refused
    if dearest == 1:  # else a free place may be too few
        for at in refused:
            assert sum(each.since <= at <= each.free for each in held) >= places
    assert limiter.available(limit) == places


def test_lease_of_a_killed_process_is_free_after_its_time_and_not_before(
    server: EmbeddedServer, limiter: Limiter
) -> None:
    limit = Concurrency(1, name="places", lease=2.0)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold_and_tell, args=(server.url, limit, theirs))
    process.start()
    assert ours.poll(200)
    told: Told = ours.recv()
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    decision = limiter.acquire(limit, max_wait=600.0)
    assert decision.allowed
    assert told.at + 2_000_000 <= decision._granted_at
