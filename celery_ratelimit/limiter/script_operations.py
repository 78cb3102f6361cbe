"""The operations of limiters on limit requests, without I/O: each is a generator of effects.

:mod:`~celery_ratelimit.limiter.limiter` runs them, :mod:`~celery_ratelimit.limiter.async_limiter` awaits them.
:mod:`~celery_ratelimit.limiter.resolve_request` makes limit requests from users' arguments.
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


#: Limits whose status one script reads.
AT_ONCE = 40


class Scripts:
    """The scripts of a limiter.

    Args:
        replace_includes: Lua includes by name, with the text to use instead; tests freeze the clock with it.
    """

    def __init__(self, replace_includes: Mapping[str, str] | None) -> None:
        def script(name: str) -> Script:
            return Script(name, replace_includes)

        self.acquire, self.peek, self.reset = script("acquire"), script("peek"), script("reset")
        self.acquire_next, self.dedup_and_acquire = script("acquire_next"), script("dedup_and_acquire")
        self.reserve, self.cancel, self.join = script("reserve"), script("cancel"), script("acquire_part")
        self.settle, self.forget = script("settle"), script("forget")
        self.acquire_up_to, self.charge = script("acquire_up_to"), script("charge")
        self.release, self.renew = script("release"), script("renew")
        self.release_and_acquire = script("release_and_acquire")
        self.set_rate, self.expire_rate = script("set_rate"), script("expire_rate")
        self.pause, self.config, self.probe = script("pause"), script("config"), script("probe")
        self.set_weight, self.weights = script("set_weight"), script("weights")
        self.count, self.counts, self.used = script("count"), script("counts"), script("used")
        self.shadow, self.set_shadow = script("shadow"), script("set_shadow")
        self.history, self.standing = script("history"), script("standing")


class Operations:
    """The operations of a limiter.

    Args:
        prefix: the start of every key in the store.
        replace_includes: Lua includes by name, with the text to use instead; tests freeze the clock with it.
        is_cluster: whether limits live in hash slots, of which a script sees one.

    Attributes:
        shadows: the limits in shadow.
        settings: operations on stored rates, pauses, shadows and weights.
    """

    #: In tests: every limiter of this process grants all calls (0), or refuses all with a wait of so many microseconds,
    #: without the store. Set by :mod:`celery_ratelimit.testing`.
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
        """Acquire the permits of ``demands``, all or none.

        Args:
            demands: the limit requests; each bucket at most once (:func:`each_bucket_once`).
            id: names the request, so that it finds its slot again. ``""``: it has none.
            horizon: seconds; a permit may be taken that far ahead, and becomes good in ``retry_after`` seconds.
            claim: seconds; a refused request keeps a slot under ``id`` if the slot is at most that far away.
            lease_id: names the leases, so that a repeated request finds them. Default: ``id``.
        """
        first = id, microseconds(horizon), microseconds(claim)
        last = (lease_id,) if lease_id else ()
        reply = yield from self.decide(self.scripts.acquire, demands, *first, last=last)
        return decision_of(demands, reply, id or self.new_id())

    def ask_for_turn(self, request: AcquirePermits) -> Operation[Decision]:
        """As :meth:`ask`, for a waiting call that tries again: the store holds a free lease for it."""
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
        """The decision that :meth:`ask` would return now; takes nothing."""
        return decision_of(demands, (yield from self.decide(self.scripts.peek, demands, "")))

    def forget(self, demands: Sequence[LimitRequest], *, id: str) -> Operation[None]:
        """Drop the slots of ``id``, a request that will not return. Idempotent."""
        if demands:
            yield from self.decide(self.scripts.forget, demands, id)

    def reserve(self, demands: Sequence[LimitRequest], *, id: str, horizon: float) -> Operation[Decision]:
        """Take permits ahead of time, under an id."""
        check_reservable(demands, id)
        reply = yield from self.decide(self.scripts.reserve, demands, id, microseconds(horizon), kind="ids")
        return decision_of(demands, reply, id)

    def cancel(self, demands: Sequence[LimitRequest], *, id: str) -> Operation[bool]:
        """Cancel a reservation. Returns whether there was one."""
        return (yield from self.decide(self.scripts.cancel, demands, id, kind="ids")) == [1]

    def settle(
        self, demands: Sequence[LimitRequest], actual: Sequence[int], *, id: str, granted_at: int
    ) -> Operation[bool]:
        """Correct the charged costs. Returns whether this call did it."""
        check_actual(demands, actual)
        settled = yield from self.decide(self.scripts.settle, demands, id, granted_at, kind="ids", last=actual)
        return settled == [1]

    def reset(self, demands: Sequence[LimitRequest], note: str) -> Operation[None]:
        """Refill the buckets; ``note``: author and reason."""
        if self.pretended_wait is None and demands:
            parts = [[demands[i] for i in part] for part in self._by_slot(demands)]
            yield from run_all([RunScript(self.scripts.reset, self.calls.of_reset(part, note)) for part in parts])

    # -- Leases ----------------------------------------------------------------------------------------------------

    def release(self, demands: Sequence[LimitRequest], *, id: str, granted_at: int) -> Operation[bool]:
        """Release the leases of ``id``. Returns whether there were any."""
        places = leased(demands)
        if not places or not id:
            return False
        return (yield from self.release_all([Ended(id, places, granted_at)])) > 0

    def release_all(self, ended: Sequence[Ended]) -> Operation[int]:
        """Release the leases of many holders, in one script for each hash slot. Returns their number."""
        leases = [(demand, each) for each in ended for demand in each.places]
        if not leases:
            return 0
        parts = self._by_slot([demand for demand, _ in leases])
        asked = [RunScript(self.scripts.release, self.calls.of_release([leases[i] for i in part])) for part in parts]
        return sum(map(int, (yield from run_all(asked))))

    def renew(self, leases: Sequence[tuple[LimitRequest, str]]) -> Operation[list[bool]]:
        """Renew the leases of many holders in one round trip. False for each that has expired."""
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
        """The status of each bucket; ``codes``: each limit as the code here has it, ``None``: not at all.

        One round trip. Each script reads a bounded number of limits, to keep the store free. An error about one limit
        takes its position in the result.
        """
        steps = [list(part[i : i + AT_ONCE]) for part in self._by_slot(demands) for i in range(0, len(part), AT_ONCE)]
        calls = [self.calls.of_standing([demands[i] for i in step]) for step in steps]
        replies = yield from run_all([RunScript(self.scripts.standing, call) for call in calls])
        found = {
            i: each for step, reply in zip(steps, replies, strict=True) for i, each in zip(step, reply, strict=True)
        }
        return [read_bucket_status(demands[i], codes[i], found[i]) for i in range(len(demands))]

    # -- Decisions -------------------------------------------------------------------------------------------------

    def takes_one_script(self, demands: Sequence[LimitRequest]) -> bool:
        """Whether one script decides all of them, and the store is called at all."""
        return self.pretended_wait is None and not (self.is_cluster and self._over_slots.parts(tuple(demands)))

    def decide(
        self,
        script: Script,
        demands: Sequence[LimitRequest],
        *first: str | int,
        kind: str | None = None,
        last: Sequence[int | str] = (),
    ) -> Operation[list[int]]:
        """A script's reply about all limit requests; arguments as of :meth:`Calls.of_script`."""
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
        if script is self.scripts.acquire_up_to:
            most = 0 if self.pretended_wait else int(first[1])
            return [*_pretended(demands, self.pretended_wait or 0, slot_only=False), most]
        if script not in (self.scripts.acquire, self.scripts.peek, self.scripts.reserve):
            return [0]  # nothing was taken, so nothing comes back
        slot_only = script is self.scripts.acquire and int(first[1]) < 0
        return _pretended(demands, self.pretended_wait or 0, slot_only=slot_only)

    def _by_slot(self, demands: Sequence[LimitRequest]) -> list[Sequence[int]]:
        """Positions of the limit requests, grouped by the hash slot that one script sees."""
        parts = parts_of(demands) if self.is_cluster else ()
        return [part.places for part in parts] or [range(len(demands))]


def _pretended(demands: Sequence[LimitRequest], wait: int, *, slot_only: bool) -> list[int]:
    """The reply of a script if all buckets were full (``wait`` is 0), or closed for ``wait`` microseconds."""
    reply = [int(not wait and not slot_only), wait, int(wait > 0), 0]
    for demand in demands:
        reply += [0, wait] if wait else [demand.size, 0]
    return reply


class Ids:
    """Makes ids that no other process makes, also after a fork.

    Args:
        digits: number of hexadecimal digits that stand for the process.
    """

    def __init__(self, digits: int) -> None:
        self._digits, self._pid = digits, 0

    def __call__(self) -> str:
        if self._pid != os.getpid():
            self._stem, self._count = uuid.uuid4().hex[: self._digits], itertools.count()
            self._pid = os.getpid()
        return f"{self._stem}{next(self._count):x}"
