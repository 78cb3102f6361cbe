"""A backlog of shares under random faults: no task is lost or leaves twice, and no key stays."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT, START
from tests.examples import examples

from .test_fair_shares import BUCKET, SHARES, TURNS, limit, to_park

TENANTS = ["a", "b", "", "é / \0", "x" * 100]
KEPT = "ratelimit:v1:{api}::"


ACT = st.one_of(
    st.tuples(
        st.just("park"),
        st.sampled_from([*TENANTS, None]),
        st.integers(1, 6),
        st.sampled_from([1, 1, 3, 20]),
        st.sampled_from([0, 0, 0, 3, -2]),
        st.sampled_from(["", "", "n1", "o2"]),
        st.sampled_from(["q", "q", "away"]),
        st.sampled_from([None, None, 5]),
    ),
    st.tuples(st.just("look"), st.integers(0, 30), st.booleans()),
    st.tuples(st.just("weigh"), st.sampled_from(TENANTS), st.sampled_from([None, 0, 0.001, 1, 8, 1e6])),
    st.tuples(st.just("code"), st.dictionaries(st.sampled_from(TENANTS), st.sampled_from([0, 0.5, 4]), max_size=3)),
    st.tuples(st.just("again"), st.integers(0, 50)),
    st.tuples(st.sampled_from(["purge", "release", "expire", "by an older worker"]), st.integers(0, 50)),
    st.tuples(st.just("take for original queues")),
    st.tuples(st.just("release all")),
)


@given(acts=st.lists(ACT, min_size=1, max_size=40))
@examples(150)
def test_random_faults_lose_no_task(
    store_and_limiter: tuple[redis.Redis, Limiter], acts: Sequence[tuple[Any, ...]]
) -> None:
    store, limiter = store_and_limiter
    for key in store.scan_iter("*"):
        store.delete(key)
    lot = Lot(store, Backlog(limiter, "fleet", 3600), limiter)
    for verb, *arguments in acts:
        getattr(lot, verb.replace(" ", "_"))(*arguments)
        lot.check()
    for tenant in TENANTS:
        lot.weigh(tenant, 1)
    lot.code({})
    for _ in range(300):
        lot.look(20, False)
        if not lot.waiting:
            break
    assert not lot.waiting, "it comes out"
    lot.look(20, False)
    assert not store.exists(SHARES, TURNS, f"{KEPT}parked@fleet", f"{KEPT}payloads@fleet", f"{KEPT}unique@fleet")


class Lot:
    def __init__(self, store: redis.Redis, parking: Backlog, limiter: Limiter) -> None:
        self.store, self.parking, self.limiter = store, parking, limiter
        self.now, self.number, self.asked = START, 0, limit("100/s", burst=20)
        self.waiting: dict[str, Any] = {}
        self.left: dict[str, Any] = {}
        store.set("test:clock", self.now)

    def park(
        self,
        share: str | None,
        some: int,
        cost: int,
        order: int,
        alone: str,
        queue: str,
        expires: float | None,
    ) -> None:
        messages = []
        for _ in range(some):
            self.number += 1
            each = to_park(share, f"{self.number}@{queue}", cost=cost, order=order)
            if expires:
                each = each._replace(expires=self.now / 1e6 + expires)
            if alone:
                each = each._replace(unique=alone)
            messages.append(each)
        self._park(messages)

    def _park(self, messages: Sequence[Any]) -> None:
        for each, said in zip(messages, self.parking.park({BUCKET: messages})[BUCKET], strict=True):
            assert said.outcome in ("parked", "replaced")
            if said.is_parked:
                self.waiting[each.id] = each

    def again(self, which: int) -> None:
        """One that has left comes back, and is parked at its old place."""
        if self.left:
            each, leaving = list(self.left.values())[which % len(self.left)]
            del self.left[each.id]
            self._park([each._replace(copy=leaving.copy + 1, token=f"t{leaving.copy + 1}", since=leaving.since)])

    def look(self, tenths: int, away: bool) -> None:
        self.now += tenths * 100_000
        self.store.set("test:clock", self.now)
        absent = frozenset({"away"}) if away else frozenset[str]()
        for _ in range(50):
            (looked,) = self.parking.take_due([self.asked], absent=absent, horizon=0.5)
            self._left(looked.leaving)
            if looked.again != 0:
                return
        raise AssertionError("it goes on and on")

    def _left(self, leaving: Sequence[Any]) -> None:
        for each in leaving:
            task = self.waiting.pop(each.id.removeprefix("^"))
            self.left[task.id] = task, each
        self.parking.published({BUCKET: leaving})

    def weigh(self, tenant: str, weight: float | None) -> None:
        self.limiter.set_weight(self.asked.limit, tenant, weight)

    def code(self, weights: dict[str, float]) -> None:
        self.asked = limit("100/s", burst=20, weights=weights)

    def _some(self, which: int) -> list[str]:
        return list(self.waiting)[which % 7 :: 7][:3]

    def purge(self, which: int) -> None:
        ids = self._some(which)
        assert self.parking.contents.remove(BUCKET, ids, purge=True)[0] == len(ids)
        for id in ids:
            del self.waiting[id]

    def release(self, which: int) -> None:
        self._left(self.parking.contents.remove(BUCKET, self._some(which), purge=False)[1])

    def release_all(self) -> None:
        for _, leaving in self.parking.contents.remove_all(BUCKET, purge=False):
            self._left(leaving)

    def expire(self, which: int) -> None:
        for id in self._some(which):
            self.store.zadd(f"{KEPT}expiring@fleet", {id: self.now})

    def by_an_older_worker(self, which: int) -> None:
        """It lets out by a script that is called for a limit that is not fair."""
        asked = LimitRequest(Limit("100/s", burst=20, name="api"), "api")
        (looked,) = self.parking.take_due([asked], horizon=0.1)
        self._left(looked.leaving)

    def take_for_original_queues(self) -> None:
        for _ in range(20):
            _, leaving = self.parking.contents.take_for_original_queues(BUCKET)
            if not leaving:
                return
            self._left(leaving)

    def check(self) -> None:
        parked = self.parking.contents.lot(BUCKET, 0, -1)
        assert parked.parked == len(self.waiting)
        assert sorted(each.id for each in parked.tasks) == sorted(self.waiting)
        for id in list(self.waiting)[::5]:
            found = self.parking.contents.position(BUCKET, id)
            assert found.before <= 2 * self.number


def test_concurrent_parks_and_returns_lose_no_task(server: EmbeddedServer, store: redis.Redis) -> None:
    """On a clock that goes: each leaves once."""
    asked, left, parks = limit("100000/s", burst=1000), list[str](), threading.Barrier(23)

    def parker(number: int) -> None:
        parking = Backlog(Limiter.from_url(server.url + PATIENT), "fleet", 3600)
        parks.wait()
        for first in range(0, 50, 10):
            parking.park({BUCKET: [to_park(f"t{each % 7}", f"{number}.{each}@q") for each in range(first, first + 10)]})

    def looker(_: int) -> None:
        parking = Backlog(Limiter.from_url(server.url + PATIENT), "fleet", 3600)
        parks.wait()
        while len(left) < 1000:
            (looked,) = parking.take_due([asked])
            parking.published({BUCKET: looked.leaving})
            left.extend(each.id for each in looked.leaving)

    with ThreadPoolExecutor(23) as pool:
        wait = [pool.submit(parker, number) for number in range(20)] + [pool.submit(looker, 0) for _ in range(3)]
        for each in wait:
            each.result(60)
    assert sorted(left) == sorted(f"{number}.{each}@q" for number in range(20) for each in range(50))
    Backlog(Limiter.from_url(server.url + PATIENT), "fleet", 3600).take_due([asked])
    assert not store.exists(SHARES, TURNS)


def test_turns_survive_a_killed_store() -> None:
    """As far as it has what is parked: here it writes that before it answers."""
    server = EmbeddedServer(persist=True)
    try:
        server.start()
        parking = Backlog(Limiter.from_url(server.url + PATIENT), "fleet", 3600)
        for share, number in (("big", 200), ("small", 10)):
            parking.park({BUCKET: [to_park(share, f"{share}{each}") for each in range(number)]})
        (looked,) = parking.take_due([limit("1/s", burst=10)], horizon=0)
        parking.published({BUCKET: looked.leaving})
        server.kill()
        server.start()
        parking = Backlog(Limiter.from_url(server.url + PATIENT), "fleet", 3600)
        (looked,) = parking.take_due([limit("100000/s", burst=1000)])
        assert [each.id for each in looked.leaving[:6]] == ["big5", "small5", "big6", "small6", "big7", "small7"]
    finally:
        server.close()
