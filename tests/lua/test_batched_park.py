"""One script for several calls does what the calls would do one by one, at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Limiter
from celery_ratelimit.backlog.backlog import Backlog, ToPark
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.worker.deduplication import acquire_along
from tests.examples import examples

from .backlog_steps import API
from .frozen import FROZEN_STORE

IDS = ["a", "b", "c", "d", "e"]
NOW = 1_767_225_600_000_000
BUCKETS = [("api", "key"), ("api", "other"), ("web", "")]

messages = st.builds(
    ToPark,
    id=st.sampled_from(IDS),
    cost=st.integers(1, 5),
    message=st.sampled_from(["{}", '{"id": "a"}', '{"id": "b", "to": "q"}']),
    copy=st.integers(1, 3),
    token=st.sampled_from(["s", "t", "u", "v"]),
    since=st.sampled_from([0, 0, 0, NOW - 5_000_000, NOW + 1]),
    expires=st.sampled_from([0.0, NOW / 1e6 - 10, NOW / 1e6 + 60]),
    attempt=st.integers(0, 2),
    order=st.sampled_from([0, 0, 3, -9]),
    task=st.sampled_from(["", "a", "b c"]),
    queue=st.sampled_from(["", "q", "q r"]),
    leaves=st.sampled_from([None, 5]),
    unique=st.sampled_from(["", "", "nab", "oab", "ncd"]),
    share=st.none(),  # of a limit that is fair every task has one
    weight=st.just(1.0),
    max_parked=st.sampled_from([None, None, 1, 2, 3]),
)
calls = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(BUCKETS), st.lists(messages, min_size=1, max_size=4), min_size=1),
        st.dictionaries(
            st.sampled_from(BUCKETS),
            st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 3), min_size=1),
            min_size=1,
        ),
        st.booleans(),
        st.none() | st.integers(0, 12),
        st.sampled_from([0, 1, 3_000_000]),
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module")
def fleets(server: EmbeddedServer) -> Iterator[tuple[redis.Redis, list[Backlog]]]:
    """Two lots that know nothing of one another."""
    store: Any = redis.Redis.from_url(server.url, decode_responses=True)
    clients = [redis.Redis.from_url(server.url) for _ in range(2)]
    limiters = [
        Limiter(client, prefix=f"p{number}", replace_includes={"now": FROZEN_STORE})
        for number, client in enumerate(clients)
    ]
    yield store, [Backlog(limiter, "fleet", 3600) for limiter in limiters]
    for client in (store, *clients):
        client.close()


def contents(store: redis.Redis, prefix: str, now: int) -> dict[str, Any]:
    """All that is kept. A lot that is overdue is due."""
    kept: dict[str, Any] = {}
    for key in store.scan_iter(f"{prefix}*"):
        name = str(key).removeprefix(prefix)
        kind = store.type(key)
        if kind == "zset":
            scores = store.zrange(key, 0, -1, withscores=True)
            kept[name] = {each: max(score, now) if name.endswith("due@fleet") else score for each, score in scores}
        elif kind == "hash":
            kept[name] = store.hgetall(key)
        else:
            kept[name] = store.get(key)
    return kept


@pytest.mark.slow
@given(calls=calls)
@examples(300)
def test_batched_park_matches_single_parks(fleets: tuple[redis.Redis, list[Backlog]], calls: list[Any]) -> None:
    store, (together, one_by_one) = fleets
    store.flushall()
    now = NOW
    for messages_of, copies_of, only_behind, most, pause in calls:
        now += pause
        store.set("test:clock", now)
        for parking in (together, one_by_one):  # of older copies, which the next call tells
            parking.untold.note_acknowledged(next(iter(messages_of)), "a", "t")
        assert together.park(messages_of, only_behind=only_behind, most=most) == {
            bucket: [
                one_by_one.park({bucket: [each]}, only_behind=only_behind, most=most)[bucket][0] for each in several
            ]
            for bucket, several in messages_of.items()
        }
        assert contents(store, "p0", now) == contents(store, "p1", now)
        assert together.copies.arrive_all(copies_of) == {
            (bucket, id)
            for bucket, copies in copies_of.items()
            for id, copy in copies.items()
            if one_by_one.copies.arrive(bucket, {id: copy})
        }
        assert contents(store, "p0", now) == contents(store, "p1", now)


steps = st.lists(
    st.tuples(
        st.lists(messages, max_size=3),  # parked
        st.booleans(),  # let out
        st.dictionaries(st.sampled_from(IDS), st.integers(0, 3), min_size=1),  # come
        st.lists(
            st.tuples(st.sampled_from(IDS), st.integers(0, 3)),
            min_size=1,
            max_size=4,
            unique=True,
        ),  # ask
        st.sampled_from([0, 1, 150_000, 3_000_000, 12_000_000]),
        st.sampled_from([0.0, 0.1, 0.25]),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@given(steps=steps)
@examples(200)
def test_combined_script_answers_like_two_scripts(fleets: tuple[redis.Redis, list[Backlog]], steps: list[Any]) -> None:
    store, (along, apart) = fleets
    store.flushall()
    now, bucket = NOW, ("api", "")
    for parked, lets_out, come, asking, pause, horizon in steps:
        now += pause
        store.set("test:clock", now)
        for each in (along, apart):
            if parked:
                each.park({bucket: parked})
            if lets_out:
                each.take_due([API])
        told = along.copies.along({bucket: come}, asking)
        ids = [id for id, _ in asking]
        decisions, may = acquire_along(along._limiter._asker, [API], ids, told, horizon=horizon, claim=1.0)
        barred = {id for _, id in apart.copies.arrive_all({bucket: come})}
        assert [id for id, runs in zip(come, may, strict=True) if not runs] == [id for id in come if id in barred]
        expected: list[Any] = []
        for id, copy in asking:
            if come.get(id) == copy and id in barred:
                expected.append(None)
                continue
            expected.append(apart._limiter._asker.ask([API], id=id, horizon=horizon, claim=1.0))
            if not expected[-1].allowed and expected[-1].retry_after > 1.0:
                break
        assert decisions == expected
        for each in (along, apart):
            each._limiter._asker.ask([API], horizon=-1e6)  # expired keys go with the next call
        assert contents(store, "p0", now) == contents(store, "p1", now)
