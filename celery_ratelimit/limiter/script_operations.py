"""What a limiter does, but for talking to the store: each verb is a generator of questions.

One core, and two faces that drive it: :mod:`~celery_ratelimit.limiter.limiter` asks,
:mod:`~celery_ratelimit.limiter.async_limiter` awaits. Verbs are about demands; what users say is read by
:mod:`~celery_ratelimit.limiter.resolve_request`.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..errors import RateLimitError
from ..limits.any_limit import AnyLimit
from ..limits.decision import Decision
from ..store.script import Script
from .limit_request import LimitRequest, check_actual, check_reservable, leased, microseconds
from .multi_slot_acquire import MultiSlotAcquire, Step, Steps
from .operation import AcquirePermits, Operation, RunScript, run_all
from .parts import parts_of
from .script_calls import Calls, Ended, PlaceRequests, decision_of, impossible, whole_numbers
from .setting_calls import BucketStatus, SettingCalls, read_bucket_status
from .shadow import Shadows

__all__ = ["Ids", "Operations"]


#: Limits that one script tells of how they stand.
AT_ONCE = 40


class Scripts:
    """The scripts of a limiter, by their verbs.

    Args:
        replace_includes: Lua includes to put other text in place of; how tests freeze the clock.
    """

    def __init__(self, replace_includes: Mapping[str, str] | None) -> None:
        def script(name: str) -> Script:
            return Script(name, replace_includes)

        self.acquire, self.peek, self.reset = script("acquire"), script("peek"), script("reset")
        self.acquire_next, self.dedup_and_acquire = script("acquire_next"), script("dedup_and_acquire")
        self.reserve, self.cancel, self.join = script("reserve"), script("cancel"), script("acquire_part")
        self.settle, self.forget = script("settle"), script("forget")
        self.release, self.renew = script("release"), script("renew")
        self.release_and_acquire = script("release_and_acquire")
        self.set_rate, self.expire_rate = script("set_rate"), script("expire_rate")
        self.pause, self.config, self.probe = script("pause"), script("config"), script("probe")
        self.set_weight, self.weights = script("set_weight"), script("weights")
        self.count, self.counts, self.used = script("count"), script("counts"), script("used")
        self.shadow, self.set_shadow = script("shadow"), script("set_shadow")
        self.history, self.standing = script("history"), script("standing")


class Operations:
    """The verbs of a limiter.

    Args:
        prefix: what every key in the store begins with.
        replace_includes: Lua includes to put other text in place of; how tests freeze the clock.
        is_cluster: whether limits live in slots, of which a script sees one.

    Attributes:
        shadows: which limits are in shadow.
        settings: what people store for limits.
    """

    #: In tests: every limiter of this process lets all pass (0), or none, saying that it is to wait for so many
    #: microseconds, and does not ask the store. Set by :mod:`celery_ratelimit.testing`.
    pretended_wait: ClassVar[int | None] = None

    def __init__(self, prefix: str, replace_includes: Mapping[str, str] | None, *, is_cluster: bool) -> None:
        self.is_cluster = is_cluster
        self.scripts = Scripts(replace_includes)
        self.calls = Calls(self.scripts, prefix)
        self.shadows = Shadows()
        self.settings = SettingCalls(self.scripts, prefix, self.shadows)
        self.new_id = Ids(20)
        self._over_slots = MultiSlotAcquire(self.scripts, self.new_id)

    # -- Permits ---------------------------------------------------------------------------------------------------

    def ask(
        self,
        demands: Sequence[LimitRequest],
        *,
        id: str = "",
        horizon: float = 0.0,
        claim: float = 0.0,
        lease_id: str = "",
    ) -> Operation[Decision]:
        """The permits of ``demands``, all or none.

        Args:
            demands: what is asked of which limit; a bucket no more than once (:func:`each_bucket_once`).
            id: names the request, so that it finds its slot again. ``""``: it has none.
            horizon: seconds; a permit may be taken that far ahead, and ``retry_after`` says when it is good.
            claim: seconds; if refused, a slot is kept for ``id`` unless it lies further away than that.
            lease_id: names the leases that it gets; asked again with the same, it finds them. ``""``: ``id`` does.
        """
        first = id, microseconds(horizon), microseconds(claim)
        last = (lease_id,) if lease_id else ()
        reply = yield from self.decide(self.scripts.acquire, demands, *first, last=last)
        return decision_of(demands, reply, id or self.new_id())

    def ask_for_turn(self, request: AcquirePermits) -> Operation[Decision]:
        """The same for a call that waits and asks again: if it is for a place, one that is free is held for it."""
        demands, id = request.demands, request.id
        if not (request.claim and id and leased(demands) and self.takes_one_script(demands)):
            return (yield from self.ask(demands, id=id, horizon=request.horizon, claim=request.claim))
        asking = PlaceRequests([id], microseconds(request.horizon), microseconds(request.claim), "@", 1, False)
        (said,) = yield [
            RunScript(self.scripts.release_and_acquire, self.calls.of_release_and_acquire(tuple(demands), asking, ()))
        ]
        if isinstance(said, RateLimitError):
            raise impossible(demands, said)
        return decision_of(demands, whole_numbers(said[0]), id)

    def peek(self, demands: Sequence[LimitRequest]) -> Operation[Decision]:
        """What :meth:`ask` would say now."""
        return decision_of(demands, (yield from self.decide(self.scripts.peek, demands, "")))

    def forget(self, demands: Sequence[LimitRequest], *, id: str) -> Operation[None]:
        """Give back the slots that were kept for ``id``; for a request that will not come back. Idempotent."""
        yield from self.decide(self.scripts.forget, demands, id)

    def reserve(self, demands: Sequence[LimitRequest], *, id: str, horizon: float) -> Operation[Decision]:
        """Permits ahead of time, under an id."""
        check_reservable(demands, id)
        reply = yield from self.decide(self.scripts.reserve, demands, id, microseconds(horizon), kind="ids")
        return decision_of(demands, reply, id)

    def cancel(self, demands: Sequence[LimitRequest], *, id: str) -> Operation[bool]:
        """Give a reservation back. Was there one?"""
        return (yield from self.decide(self.scripts.cancel, demands, id, kind="ids")) == [1]

    def settle(
        self, demands: Sequence[LimitRequest], actual: Sequence[int], *, id: str, granted_at: int
    ) -> Operation[bool]:
        """Correct what was charged. Was it this call that did?"""
        check_actual(demands, actual)
        settled = yield from self.decide(self.scripts.settle, demands, id, granted_at, kind="ids", last=actual)
        return settled == [1]

    def reset(self, demands: Sequence[LimitRequest], note: str) -> Operation[None]:
        """Forget what was taken; ``note``: who and why."""
        if self.pretended_wait is None:
            parts = [[demands[i] for i in part] for part in self._by_slot(demands)]
            yield from run_all([RunScript(self.scripts.reset, self.calls.of_reset(part, note)) for part in parts])

    # -- Places ----------------------------------------------------------------------------------------------------

    def release(self, demands: Sequence[LimitRequest], *, id: str, granted_at: int) -> Operation[bool]:
        """Give back the places that ``id`` holds. Were there any?"""
        places = leased(demands)
        if not places or not id:
            return False
        return (yield from self.release_all([Ended(id, places, granted_at)])) > 0

    def release_all(self, ended: Sequence[Ended]) -> Operation[int]:
        """Give back leases of many holders, in one script for each slot. How many were there?"""
        leases = [(demand, each) for each in ended for demand in each.places]
        if not leases:
            return 0
        parts = self._by_slot([demand for demand, _ in leases])
        asked = [RunScript(self.scripts.release, self.calls.of_release([leases[i] for i in part])) for part in parts]
        return sum(map(int, (yield from run_all(asked))))

    def renew(self, leases: Sequence[tuple[LimitRequest, str]]) -> Operation[list[bool]]:
        """One round trip for the leases of many holders. False for each that has expired."""
        if not leases:
            return []
        parts = self._by_slot([demand for demand, _ in leases])
        asked = [RunScript(self.scripts.renew, self.calls.of_renew([leases[i] for i in part])) for part in parts]
        replies = yield from run_all(asked)
        kept: dict[int, bool] = {}
        for part, reply in zip(parts, replies, strict=True):
            kept.update(zip(part, [each in (49, "1") for each in reply], strict=True))
        return [kept[i] for i in range(len(leases))]

    def bucket_statuses(
        self, demands: Sequence[LimitRequest], codes: Sequence[AnyLimit | None]
    ) -> Operation[list[BucketStatus]]:
        """How limits stand, each for itself; ``codes``: each as it is here, ``None`` if it is not.

        In one round trip, by scripts for so many limits that none keeps the store for long; an error that concerns one
        of them is in its place.
        """
        steps = [list(part[i : i + AT_ONCE]) for part in self._by_slot(demands) for i in range(0, len(part), AT_ONCE)]
        calls = [self.calls.of_standing([demands[i] for i in step]) for step in steps]
        replies = yield from run_all([RunScript(self.scripts.standing, call) for call in calls])
        found = {
            i: each for step, reply in zip(steps, replies, strict=True) for i, each in zip(step, reply, strict=True)
        }
        return [read_bucket_status(demands[i], codes[i], found[i]) for i in range(len(demands))]

    # -- How it is decided -----------------------------------------------------------------------------------------

    def takes_one_script(self, demands: Sequence[LimitRequest]) -> bool:
        """Whether one script sees all of them; and the store is asked at all."""
        return self.pretended_wait is None and not (self.is_cluster and self._over_slots.parts(tuple(demands)))

    def decide(
        self,
        script: Script,
        demands: Sequence[LimitRequest],
        *first: str | int,
        kind: str | None = None,
        last: Sequence[int | str] = (),
    ) -> Operation[list[int]]:
        """A script's reply about all of the demands; the arguments are those of :meth:`Calls.of_script`."""
        if self.pretended_wait is not None:
            return self._pretended(script, demands, first)
        if self.is_cluster and (parts := self._over_slots.parts(tuple(demands))):
            return (yield from self._in_steps(self._over_slots.steps(script, parts, first, kind, last)))
        (reply,) = yield [RunScript(script, self.calls.of_script(script, tuple(demands), first, kind, last))]
        said = self._read(demands, reply)
        if isinstance(said, RateLimitError):
            raise said
        return said

    def _in_steps(self, steps: Steps) -> Operation[list[int]]:
        """One decision by several scripts, see :mod:`~celery_ratelimit.limiter.multi_slot_acquire`."""
        try:
            asked = next(steps)
            while True:
                replies = yield [self._question(step) for step in asked]
                asked = steps.send([self._read(step.demands, said) for step, said in zip(asked, replies, strict=True)])
        except StopIteration as end:
            result: list[int] = end.value
            return result

    def _question(self, step: Step) -> RunScript:
        if step.script is self.scripts.release:
            id, granted_at = step.first
            ended = Ended(str(id), step.demands, int(granted_at))
            return RunScript(step.script, self.calls.of_release([(demand, ended) for demand in step.demands]))
        return RunScript(step.script, self.calls.of_script(*step))

    @staticmethod
    def _read(demands: Sequence[LimitRequest], reply: Any) -> list[int] | RateLimitError:
        return impossible(demands, reply) if isinstance(reply, RateLimitError) else whole_numbers(reply)

    def _pretended(self, script: Script, demands: Sequence[LimitRequest], first: Sequence[str | int]) -> list[int]:
        if script not in (self.scripts.acquire, self.scripts.peek, self.scripts.reserve):
            return [0]  # nothing was taken: there is nothing to give back
        slot_only = script is self.scripts.acquire and int(first[1]) < 0
        return _pretended(demands, self.pretended_wait or 0, slot_only=slot_only)

    def _by_slot(self, demands: Sequence[LimitRequest]) -> list[Sequence[int]]:
        """The demands by their places, those together that one script can see."""
        parts = parts_of(demands) if self.is_cluster else ()
        return [part.places for part in parts] or [range(len(demands))]


def _pretended(demands: Sequence[LimitRequest], wait: int, *, slot_only: bool) -> list[int]:
    """What a script would reply, if all buckets were full (``wait`` is 0), or closed for so many microseconds."""
    reply = [int(not wait and not slot_only), wait, int(wait > 0), 0]
    for demand in demands:
        reply += [0, wait] if wait else [demand.size, 0]
    return reply


class Ids:
    """Ids that no other process makes, also after a fork.

    Args:
        digits: hexadecimal ones that stand for the process.
    """

    def __init__(self, digits: int) -> None:
        self._digits, self._pid = digits, 0

    def __call__(self) -> str:
        if self._pid != os.getpid():
            self._stem, self._count = uuid.uuid4().hex[: self._digits], itertools.count()
            self._pid = os.getpid()
        return f"{self._stem}{next(self._count):x}"
