"""A rolling deploy: the scripts of the version before and these share a bucket; what either lends counts for both."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path

import pytest
import redis

from benchmarks import processes
from celery_ratelimit import Limit, Limiter
from celery_ratelimit.limiter.demand import Demand
from celery_ratelimit.store import script as scripts
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import START

from .frozen import FROZEN_STORE, answer
from .windows import Start, check_every_window

#: The last version before states said which rule they were written under.
EARLIER = "26778aa"
RATE = 10
LIMITS = {
    "token_bucket": Limit("10/s", burst=5, name="x"),
    "token_bucket, uneven": Limit("10/3s", burst=5, debt=2, name="x"),
    "leaky_bucket": Limit("10/s", algorithm="leaky_bucket", capacity=4, name="x"),
    "fixed_window": Limit("10/s", algorithm="fixed_window", name="x"),
    "fixed_window, opened": Limit("10/s", algorithm="fixed_window", align="first", name="x"),
    "sliding_window": Limit("10/s", algorithm="sliding_window", precision=4, name="x"),
    "sliding_log": Limit("10/s", algorithm="sliding_log", name="x"),
    "stepped_bucket": Limit("10/s", burst=10, refill="interval", name="x"),
    "warm_up": Limit("10/s", burst=2, warmup=2.0, name="x"),
}
#: That hold as much: what is in use is no more than the other can take over.
OF_A_SIZE = [
    Limit("10/s", burst=10, name="x"),
    *(LIMITS[kind] for kind in ("fixed_window", "sliding_window", "sliding_log", "stepped_bucket")),
]

Both = Callable[[Limit, Limit], tuple[Limiter, Limiter]]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts as they were."""
    root = tmp_path_factory.mktemp("earlier")
    archive = root / "archive.zip"
    command = ["git", "-C", str(processes.ROOT), "archive", "-o", str(archive), EARLIER, "lua"]
    if shutil.which("git") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip(f"the history of this checkout does not have {EARLIER}")
    shutil.unpack_archive(archive, root)
    return root / "lua"


@pytest.fixture
def both(server: EmbeddedServer, store: redis.Redis, earlier: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    """A limiter with the scripts as they were, and one with these; both know the algorithms of both limits."""
    with redis.Redis.from_url(server.url) as client:

        def make(before: Limit, after: Limit) -> tuple[Limiter, Limiter]:
            old, new = (Limiter(client, replace_includes={"now": FROZEN_STORE}) for _ in range(2))
            with monkeypatch.context() as patch:
                patch.setattr(scripts, "_read", lambda path: (earlier / path).read_text())
                old.asker.core.scripts.acquire._make(before.method, {before.method, after.method})
                old.asker.core.scripts.settle._make(before.method, {before.method, after.method})
            return old, new

        yield make


def play(
    store: redis.Redis, old: tuple[Limiter, Limit], new: tuple[Limiter, Limit], seed: int, seconds: float
) -> tuple[list[Start], list[Start]]:
    """Both ask in turn, at random; these scripts also settle what they granted. What was used, by each."""
    chance, now, end = random.Random(seed), START + seed * 12_345, START + seconds * 1e6
    starts: tuple[list[Start], list[Start]] = [], []
    granted: list[tuple[str, int]] = []  # of `starts`, by these scripts
    while now < end:
        store.set("test:clock", now)
        which = chance.randrange(2)
        limiter, limit = (old, new)[which]
        demand = Demand(limit, "x", "", chance.choice([1, 1, 1, min(2, limit.most)]))
        if which and granted and chance.random() < 0.15:
            id, index = granted.pop(chance.randrange(len(granted)))
            start = starts[1][index]
            limiter.asker.settle([Demand(limit, "x", "", start.cost)], [0], id=id, granted_at=start.at)
            starts[1][index] = start._replace(cost=0)
        else:
            id = f"{len(starts[0])} {len(starts[1])}"
            decision = limiter.asker.ask([demand], id="", horizon=chance.choice([0.0, 0.0, 0.0, 0.35]))
            if decision.allowed:
                starts[which].append(Start(decision.granted_at, demand.cost))
                if which:
                    granted.append((id, len(starts[1]) - 1))
        now += chance.choice([0, 0, 1, 1000, 20_000, 50_000, 130_000])
    return starts


@pytest.mark.parametrize("kind", LIMITS)
def test_law_1_where_both_write(store: redis.Redis, both: Both, kind: str) -> None:
    limit = LIMITS[kind]
    for seed in range(4):
        store.flushall()
        old, new = both(limit, limit)
        before, after = play(store, (old, limit), (new, limit), seed, 12)
        check_every_window(before + after, Demand(limit, "x"))
        assert min(len(before), len(after)) >= 5, "both get permits"


@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("first", [0, 1])
def test_what_the_one_has_used_up_is_used_up_for_the_other(
    store: redis.Redis, both: Both, kind: str, first: int
) -> None:
    limit = LIMITS[kind]
    limiters = both(limit, limit)
    store.set("test:clock", START)
    one, other = limiters[first], limiters[1 - first]
    demand = [Demand(limit, "x")]
    while one.asker.ask(demand, id="").allowed:
        pass
    allowed, wait = answer(one.asker.ask(demand, id=""))
    assert (allowed, wait) == answer(other.asker.ask(demand, id=""))
    assert not allowed
    store.set("test:clock", START + wait)
    assert other.asker.ask(demand, id="").allowed


@pytest.mark.parametrize(("before", "after"), list(permutations(OF_A_SIZE, 2)), ids=lambda limit: limit.method)
def test_a_deploy_that_changes_the_algorithm_too(store: redis.Redis, both: Both, before: Limit, after: Limit) -> None:
    """Each takes over what the other left: who began with a full bucket each time would grant 450 permits."""
    starts = play(store, *zip(both(before, after), (before, after), strict=True), 1, 12)
    # A window that is opened anew by each change ends sooner than it would.
    assert sum(start.cost for start in [*starts[0], *starts[1]]) <= 1.5 * 12 * RATE
