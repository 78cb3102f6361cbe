"""Several requests in one script: each is answered as if it had asked by itself at that time, up to the first that has
neither a permit nor a slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import ImpossibleRequest, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.script_calls import decision_of, whole_numbers
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.worker.admission import acquire_in_order
from tests.conftest import Clock
from tests.examples import examples

from .frozen import demand
from .mixed_world import KINDS, MixedWorld, acts, follow
from .model import Answer


class NextWorld(MixedWorld):
    """Each request for a permit is followed by others in the same script."""

    others: Sequence[str] = ()

    def acquire(
        self, demands: Sequence[LimitRequest], id: str = "", horizon: int = 0, claim: int = 0, process: int = 0
    ) -> tuple[Answer, Answer]:
        ids = [id, *self.others]
        asker = self.limiters[process]._asker
        script = asker.core.scripts.acquire_in_order
        call = asker.core.calls.of_script(script, tuple(demands), (id, horizon, claim), None, self.others)
        said = asker.run_script(script, *call)
        lua = [Answer.of(decision_of(demands, whole_numbers(reply))) for reply in said]
        model = []
        for each in ids:
            model.append(self.model.acquire(demands, each, horizon, claim))
            if not model[-1].allowed and (model[-1].queue_full or model[-1].wait > claim):
                break
        assert lua == model
        return lua[-1], model[-1]


@pytest.fixture(scope="module")
def world(server: EmbeddedServer) -> Iterator[NextWorld]:
    world = NextWorld(server.url)
    yield world
    world.close()


others = st.lists(st.sampled_from(["a", "b", "c", "f", "g", ""]), max_size=4)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@examples(80)
def test_requests_in_order_match_the_model(world: NextWorld, kind: str, data: st.DataObject) -> None:
    world.others = data.draw(others)
    follow(world, data.draw(acts(only=[kind])))


@pytest.mark.parametrize("back", [False, True], ids=["", "the clock steps back"])
@given(data=st.data(), others=others)
@examples(250)
def test_several_algorithms_match_the_model(
    world: NextWorld, back: bool, data: st.DataObject, others: list[str]
) -> None:
    world.others = others
    follow(world, data.draw(acts(back=back)))


def test_permits_within_the_horizon_are_granted_ahead(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    said = acquire_in_order(frozen._asker, [demand("100/s")], [f"id-{n}" for n in range(20)], horizon=0.045, claim=1.0)
    assert [decision.allowed for decision in said] == [True] * 5 + [False] * 15
    assert [decision._granted_at - said[0]._granted_at for decision in said[:5]] == [10_000 * n for n in range(5)]
    assert [decision.id for decision in said] == [f"id-{n}" for n in range(20)]
    assert [decision.retry_after for decision in said[5:]] == [(5 + n) / 100 for n in range(15)], "a slot for each"
    assert store.zcard("ratelimit:v1:{api}::slots") == 15


def test_requests_behind_the_first_without_a_slot_are_skipped(
    frozen: Limiter, clock: Clock, store: redis.Redis
) -> None:
    said = acquire_in_order(frozen._asker, [demand("100/s")], [f"id-{n}" for n in range(20)], horizon=0.045, claim=0.07)
    assert [decision.allowed for decision in said] == [True] * 5 + [False] * 4
    assert [decision.retry_after for decision in said[5:]] == [0.05, 0.06, 0.07, 0.08]
    assert store.zcard("ratelimit:v1:{api}::slots") == 3


def test_impossible_cost_raises_for_the_batch(frozen: Limiter, clock: Clock) -> None:
    frozen.set_rate("api", Limit("100/s", burst=2), force=True)
    with pytest.raises(ImpossibleRequest, match="api"):
        acquire_in_order(frozen._asker, [demand("100/s", burst=5, cost=3)], ["a", "b"])


@pytest.mark.parametrize(
    ("code", "stored"),
    [
        (Limit("100/s"), Limit("3/s", algorithm="sliding_log")),
        (Limit("100/s", algorithm="sliding_log"), Limit("10/s", burst=3)),
    ],
    ids=["log for a bucket", "bucket for a log"],
)
def test_stored_algorithm_replaces_that_of_the_code(frozen: Limiter, clock: Clock, code: Limit, stored: Limit) -> None:
    frozen.set_rate("api", stored, force=True)
    said = acquire_in_order(frozen._asker, [LimitRequest(code, "api")], ["a", "b", "c", "d", "e"], claim=1.0)
    assert [decision.allowed for decision in said] == [True, True, True, False, False]
