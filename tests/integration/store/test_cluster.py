"""Limits on a cluster: one script for each slot, all or nothing over several, moved slots and lost nodes."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import redis

from benchmarks.records import Start
from benchmarks.servers import Cluster
from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter, StoreUnavailable
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.backlog.unattended_tasks import LostKeyRepair
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.fleet_of import assert_over, until
from tests.integration.limiter.either import KINDS, EitherLimiter, opened
from tests.integration.store.helpers import answers
from tests.parks import park_one

#: Of three names that are in three slots, on three nodes.
SPREAD = [Limit("10/s", burst=5, name=name) for name in ("a", "b", "c")]
#: Of one slot, by the hash tag in their names.
TOGETHER = [Limit("10/s", burst=5, name=f"{{stripe}}.{name}") for name in ("a", "b", "c")]


def scripts_run(cluster: Cluster) -> int:
    seen = [client.info("commandstats") for client in cluster.clients]
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for stats in seen for name in ("evalsha", "eval"))


def node_of(cluster: Cluster, limit: Limit) -> int:
    assert limit.name is not None
    return cluster.owner(redis.crc.key_slot(limit.name.encode()))


def remaining(limiter: Any, limits: list[Any]) -> list[int]:
    return [state.remaining for limit in limits for state in limiter.peek(limit).states]


@pytest.fixture
def on_cluster(cluster_store: Cluster) -> Limiter:
    return Limiter.from_url(cluster_store.url + PATIENT)


@pytest.fixture(params=KINDS)
def either(request: pytest.FixtureRequest, cluster_store: Cluster) -> Iterator[EitherLimiter]:
    with opened(request.param, lambda kind: kind.from_url(cluster_store.url + PATIENT)) as limiter:
        yield limiter


def three(rate: str, **options: Any) -> list[Limit]:
    """Limits in three slots, on three nodes."""
    return [Limit(rate, name=name, **options) for name in ("a", "b", "c")]


def test_url_of_one_server_for_a_node_of_a_cluster_is_an_error(cluster_store: Cluster) -> None:
    limiter = Limiter.from_url(cluster_store.nodes[0].url)
    with pytest.raises(ConfigurationError, match=r"redis\+cluster://"):
        limiter.acquire(SPREAD[0]), limiter.acquire(SPREAD[1]), limiter.acquire(SPREAD[2])


def test_url_of_a_cluster_for_one_server_is_an_error(server: EmbeddedServer) -> None:
    with pytest.raises(ConfigurationError, match="Cluster mode is not enabled"):
        Limiter.from_url(server.url.replace("redis://", "redis+cluster://"))


@pytest.mark.parametrize(("limits", "scripts"), [(TOGETHER, 1), (SPREAD, 3)], ids=["one tag", "three tags"])
def test_limits_of_each_hash_tag_cost_one_script(
    on_cluster: Limiter, cluster_store: Cluster, limits: list[Limit], scripts: int
) -> None:
    limits = [replace(limit, rate="10/h") for limit in limits]
    assert on_cluster.check_store() == []
    on_cluster.acquire(limits)
    before = scripts_run(cluster_store)
    decision = on_cluster.acquire(limits)
    assert scripts_run(cluster_store) == before + scripts
    assert [(state.name, state.remaining) for state in decision.states] == [(each.name, 3) for each in limits]
    assert len({node_of(cluster_store, limit) for limit in limits}) == scripts


def test_limit_named_as_the_hash_tag_of_others_is_taken_with_them(on_cluster: Limiter) -> None:
    assert on_cluster.acquire([*TOGETHER, Limit("1/s", name="stripe")]).allowed


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_law_6_all_or_nothing_over_three_tags(either: EitherLimiter, closed: int) -> None:
    limits, full = three("1/m", burst=5), [5, 5, 5]
    assert either.acquire(limits, cost=2).allowed
    assert remaining(either, limits) == [3, 3, 3]
    either.reset(limits)
    either.acquire(limits[closed], cost=5)
    full[closed] = 0
    decision = either.acquire(limits, cost=2)
    assert (decision.allowed, decision.limited_by) == (False, limits[closed].name)
    assert decision.retry_after == pytest.approx(120, abs=1)
    assert [state.remaining for state in decision.states] == full
    assert remaining(either, limits) == full
    peeked = either.peek(limits, cost=2)
    assert (peeked.allowed, peeked.limited_by) == (False, limits[closed].name)


def test_permits_ahead_of_limits_in_several_slots_are_good_at_one_time(on_cluster: Limiter) -> None:
    """As in one script: the permit of each limit is spent at the joint time."""
    limits = three("1/m")
    for slow in limits:
        for limit in limits:
            on_cluster.reset(limit)
        on_cluster.acquire(slow)
        decision = on_cluster._asker.ask(on_cluster._reader.demands(limits, None, None), id="one", horizon=100.0)
        assert decision.allowed
        assert 30 < decision.retry_after <= 60
        resets = [state.reset_after - decision.retry_after for state in on_cluster.peek(limits).states]
        assert max(resets) - min(resets) < 20
        assert min(resets) > 20


def test_reserve_and_cancel_over_three_tags(either: EitherLimiter) -> None:
    limits = three("10/h", burst=5)
    either.acquire(limits[1], cost=5)
    made = either.reserve(limits, id="one", horizon=3600.0)
    again = either.reserve(limits, id="one", horizon=3600.0)
    assert made.allowed
    assert again.retry_after <= made.retry_after
    assert not either.reserve(limits, id="two", horizon=0.0).allowed
    assert [either.cancel(limits, id="one") for _ in range(2)] == [True, False]
    assert either.reserve(limits, id="two", horizon=3600.0).retry_after <= made.retry_after


def test_settle_over_three_tags_counts_once(either: EitherLimiter) -> None:
    limits = three("1/m", burst=9)
    decision = either.acquire(limits, cost=2)
    assert [either.settle(decision, 5) for _ in range(2)] == [True, False]
    assert remaining(either, limits) == [4, 4, 4]


def test_reservation_id_used_for_more_limits_is_an_error(on_cluster: Limiter) -> None:
    one, two, far = [Limit("10/h", burst=10, name=name) for name in ("{t}.one", "{t}.two", "far")]
    assert on_cluster.reserve([one, far], id="r", horizon=0.0).allowed
    with pytest.raises(ConfigurationError, match=r"of other limits than '\{t\}\.two'"):
        on_cluster.reserve([one, two, far], id="r", horizon=0.0)
    assert remaining(on_cluster, [two]) == [10], "no permit of it was taken"


def test_settled_permits_are_returned_on_every_node(on_cluster: Limiter) -> None:
    """Each node grants by its own clock; a log finds an entry by that time."""
    logs = three("10/h", algorithm="sliding_log")
    taken = on_cluster.acquire(logs, cost=4)
    assert on_cluster.settle(pickle.loads(pickle.dumps(taken)), 0), "as a worker's process gets it"
    assert remaining(on_cluster, logs) == [10, 10, 10]
    assert on_cluster.reserve(logs, cost=4, id="one", horizon=0.0).allowed
    found = on_cluster.reserve(logs, cost=4, id="one", horizon=0.0)
    assert on_cluster.settle(found, 1)
    assert remaining(on_cluster, logs) == [9, 9, 9]


def test_leases_over_three_tags(either: EitherLimiter) -> None:
    places = [Concurrency(2, name=name) for name in ("a", "b", "c")]
    one, two = either.acquire(places), either.acquire(places[:2])
    assert one.allowed
    assert two.allowed
    refused = either.acquire(places)
    assert not refused.allowed
    assert refused.limited_by in ("a", "b")
    assert [state.remaining for state in refused.states] == [0, 0, 1], "the place that was taken is given back"
    assert either.renew(one)
    assert either.release(one)
    assert not either.renew(one)
    assert remaining(either, places) == [1, 1, 2]


def test_slot_is_kept_at_the_limit_with_the_longest_wait(on_cluster: Limiter) -> None:
    demands = on_cluster._reader.demands(
        [Limit("1/m", name="a"), Limit("1/h", name="b"), Limit("1/s", name="c")], None, None
    )
    on_cluster._asker.ask(demands)
    refused = on_cluster._asker.ask(demands, id="one", claim=1e9)
    assert refused.limited_by == "b"
    assert refused.retry_after == pytest.approx(3600, abs=2)
    keys = [f"ratelimit:v1:{{{name}}}::slots" for name in ("a", "b", "c")]
    assert [on_cluster.client.exists(key) for key in keys] == [0, 1, 0]
    on_cluster._asker.forget(demands, id="one")
    assert [on_cluster.client.zcard(key) for key in keys] == [0, 0, 0]


def test_laws_1_and_2_with_many_callers_over_three_tags(cluster_store: Cluster) -> None:
    """Each takes two of three limits, in an order of its own, and waits for its turn."""
    limits = three("50/s", burst=3)
    granted: dict[str, list[float]] = {limit.name or "": [] for limit in limits}
    lock = threading.Lock()
    stop = time.monotonic() + 60.0

    def call(number: int) -> None:
        limiter = Limiter.from_url(cluster_store.url + PATIENT)
        mine = [limits[number % 3], limits[(number + 1 + number % 2) % 3]]
        while min(map(len, granted.values())) < 150 and time.monotonic() < stop:
            decision = limiter.acquire(mine, max_wait=1.0)
            if decision.allowed:
                with lock:
                    for limit in mine:
                        granted[limit.name or ""].append(decision._granted_at / 1e6)

    with ThreadPoolExecutor(6) as callers:
        list(callers.map(call, range(6)))
    for name, times in granted.items():
        times.sort()
        most = max(
            sum(1 for at in times[i:] if at < times[i] + length) - 50 * length
            for length in (0.2, 1.0)
            for i in range(len(times))
        )
        # To the accuracy with which one limit's clock is known to another: what a decision takes, on a busy machine.
        assert most <= 3 + 50 * 0.2, f"{name}: {most:.1f} permits beyond the rate"
        assert_over([Start(at, 0, 0) for at in times], 50 / 4, burst=3)


@pytest.mark.parametrize("limits", [TOGETHER, SPREAD], ids=["one tag", "three tags"])
def test_moved_slot_is_followed(either: EitherLimiter, cluster_store: Cluster, limits: list[Limit]) -> None:
    limits = [replace(limit, rate="1/m") for limit in limits]
    assert either.acquire(limits).allowed
    for left in (3, 2, 1):  # once around
        cluster_store.move_slot("stripe" if limits[0].name == "{stripe}.a" else "a")
        decision = either.acquire(limits)
        assert decision.allowed
        assert [state.remaining for state in decision.states] == [left] * 3, "what was taken has moved with it"


def test_lost_node_is_an_outage_for_its_limits(cluster_store: Cluster) -> None:
    limiter = Limiter.from_url(cluster_store.url)
    on_it = {node_of(cluster_store, limit): limit for limit in SPREAD}
    limiter.acquire(SPREAD)
    cluster_store.nodes[2].freeze()
    try:
        for call in (lambda: limiter.acquire(on_it[2]), limiter.ping, lambda: limiter.acquire(SPREAD)):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                call()
            assert time.monotonic() - began < 30
    finally:
        cluster_store.nodes[2].thaw()
    until(lambda: all(cluster_store._is_whole(client) for client in cluster_store.clients), 20, "a whole cluster")
    until(lambda: answers(limiter), 10, "an answer")
    assert remaining(limiter, [on_it[0], on_it[1]]) == [5, 5], "what was taken before the refusal is given back"


def test_tasks_parked_for_limits_in_several_slots_return_once(on_cluster: Limiter) -> None:
    """What one script does elsewhere is one for each slot."""
    parking = Backlog(on_cluster, "fleet", redelivery=3600)
    limits = [Limit("1000/s", name=name, key="{k}") for name in ("one", "two", "three", "four")]
    demands = [LimitRequest(limit, str(limit.name), f"k{number}") for number in range(3) for limit in limits]
    names = [str(limit.name) for limit in limits]
    ids = [f"{number}@{queue}" for number in range(4) for queue in "ab"]
    for demand in demands:
        for id in ids:
            message = json.dumps({"id": id[0], "headers": {"id": id[0]}})
            park_one(parking, demand, id, message)
    assert parking.register.attend("w", "ab", (), 6) == set()
    assert parking.register.attend("w", "b", "a", 6) == {"a"}
    assert sorted(parking.due(names)) == sorted((demand.name, demand.key) for demand in demands)
    left: list[LimitRequest] = list(demands)
    gone: Counter[str] = Counter()
    while left:
        looked = {each.bucket: each.leaving for each in parking.take_due(left, absent={"a"})}
        gone.update(each.id for leaving in looked.values() for each in leaving)
        parking.published(looked)
        left = [demand for demand in left if (demand.name, demand.key) not in looked]
    assert gone == dict.fromkeys([id for id in ids if id.endswith("b")], len(demands))
    assert sum(lot.parked for lot in parking.contents.lots(names)) == 4 * len(demands)
    found = [bucket for step in parking.contents.find(names, ["1"]) for bucket in step]
    assert sorted(found) == sorted((demand.name, demand.key) for demand in demands)
    for demand in demands:
        parking.wake(demand, 0)
        parking.register.recall(demand.name, None, 0)
        assert LostKeyRepair(parking.scripts).step(demand.name) == (0, 0)
        assert sum(taken for taken, _ in parking.contents.remove_all((demand.name, demand.key), purge=True)) == 4
        on_cluster.reset(demand.limit, key=demand.key)
    on_cluster.reset(limits, key="k")
    assert not list(parking.contents.lots(names))


def test_memory_is_that_of_the_fullest_node(on_cluster: Limiter, cluster_store: Cluster) -> None:
    assert on_cluster._asker.memory()[1] == 0
    cluster_store.clients[1].config_set("maxmemory", "1gb")
    cluster_store.clients[2].config_set("maxmemory", "2gb")
    try:
        used, maximum = on_cluster._asker.memory()
        assert (0 < used < 2**28, maximum) == (True, 2**30)
    finally:
        for client in cluster_store.clients:
            client.config_set("maxmemory", "0")


def test_full_cluster_still_decides(either: EitherLimiter, on_cluster: Limiter, cluster_store: Cluster) -> None:
    hourly = three("1/h", burst=5)
    for client in cluster_store.clients:
        client.config_set("maxmemory", "1")
    try:
        on_cluster._asker.probe()
        assert [either.acquire(hourly).allowed for _ in range(6)] == [True] * 5 + [False]
    finally:
        for client in cluster_store.clients:
            client.config_set("maxmemory", "0")


def test_probe_asks_each_node(on_cluster: Limiter, cluster_store: Cluster) -> None:
    for client in cluster_store.clients:
        client.config_set("min-replicas-to-write", "1")
        try:
            with pytest.raises(StoreUnavailable):
                on_cluster._asker.probe()
        finally:
            client.config_set("min-replicas-to-write", "0")
        on_cluster._asker.probe()
