"""The operations of limiters on limit requests, without I/O: each is a generator of effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..errors import RateLimitError
from ..forks import Ids
from ..limits.decision import Decision
from ..store.script import Script
from .argument_checks import check_actual, check_reservable, microseconds
from .limit_request import LimitRequest, leased
from .multi_slot_acquire import MultiSlotDecider, parts_of
from .operation import Operation, RunScript, UninterruptedAcquire, run_all
from .script_calls import Call, Calls, LeaseRequests, LeasesToRelease, decision_of, impossible, whole_numbers
from .setting_operations import SettingOperations
from .shadow import KnownShadows

__all__ = ["Operations"]


class LimiterScripts:
    """The scripts of a limiter."""

    def __init__(self, replace_includes: Mapping[str, str] | None) -> None:
        def script(name: str) -> Script:
            return Script(name, replace_includes)

        self.acquire: Script = script("acquire")
        self.peek: Script = script("peek")
        self.reset: Script = script("reset")
        self.acquire_in_order: Script = script("acquire_in_order")
        self.filter_copies_and_acquire: Script = script("filter_copies_and_acquire")
        self.reserve: Script = script("reserve")
        self.cancel: Script = script("cancel_reservation")
        self.acquire_part: Script = script("acquire_part")
        self.settle: Script = script("settle")
        self.withdraw_request: Script = script("withdraw_request")
        self.acquire_up_to: Script = script("acquire_up_to")
        self.charge: Script = script("charge")
        self.lower_remaining: Script = script("lower_remaining")
        self.release: Script = script("release")
        self.renew: Script = script("renew")
        self.release_and_acquire: Script = script("release_and_acquire")
        self.set_rate: Script = script("set_rate")
        self.expire_rate: Script = script("set_rate_expiry")
        self.pause: Script = script("pause")
        self.config: Script = script("read_config")
        self.check_permissions: Script = script("check_permissions")
        self.report_throttle: Script = script("report_throttle")
        self.set_weight: Script = script("set_weight")
        self.weights: Script = script("weights")
        self.add_counts: Script = script("add_counts")
        self.read_counts: Script = script("read_counts")
        self.recent_usage: Script = script("recent_usage")
        self.simulate_shadow: Script = script("simulate_shadow")
        self.set_shadow: Script = script("set_shadow")
        self.reduce_rate: Script = script("reduce_rate")
        self.report_outcomes: Script = script("report_outcomes")
        self.change_history: Script = script("change_history")
        self.limit_levels: Script = script("limit_levels")


class Operations:
    """The operations of a limiter.

    Args:
        is_cluster: whether limits live in hash slots, of which a script sees one.

    Attributes:
        shadows: the limits in shadow.
        settings: operations on stored rates, pauses, shadows and weights.
    """

    def __init__(self, prefix: str, replace_includes: Mapping[str, str] | None, *, is_cluster: bool) -> None:
        self.is_cluster = is_cluster
        self.scripts: LimiterScripts = LimiterScripts(replace_includes)
        self.calls: Calls = Calls(self.scripts, prefix)
        self.shadows: KnownShadows = KnownShadows()
        self.settings: SettingOperations = SettingOperations(self.scripts, prefix, self.shadows)
        self.new_id: Ids = Ids(20)
        self._over_slots = MultiSlotDecider(self)

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

    def ask_for_turn(self, request: UninterruptedAcquire) -> Operation[Decision]:
        """As :meth:`ask`, for a waiting call that tries again: the store holds a free lease for it."""
        demands, id = request.demands, request.id
        if not (request.claim and id and leased(demands) and self.takes_one_script(demands)):
            return (yield from self.ask(demands, id=id, horizon=request.horizon, claim=request.claim))
        asking = LeaseRequests([id], microseconds(request.horizon), microseconds(request.claim), "@", 1, False)
        call = self.calls.of_release_and_acquire(tuple(demands), asking, ())
        (decision,) = yield from self.decide_each(self.scripts.release_and_acquire, call, demands, [id])
        return decision

    def peek(self, demands: Sequence[LimitRequest]) -> Operation[Decision]:
        """The decision that :meth:`ask` would return now; takes nothing."""
        return decision_of(demands, (yield from self.decide(self.scripts.peek, demands, "")))

    def forget(self, demands: Sequence[LimitRequest], *, id: str) -> Operation[None]:
        """Drop the slots of ``id``, a request that will not return. Idempotent."""
        if demands:
            yield from self.decide(self.scripts.withdraw_request, demands, id)

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

    def charge(self, demands: Sequence[LimitRequest]) -> Operation[None]:
        """Take permits that were used already."""
        charge, calls = self.scripts.charge, self.calls
        parts = [tuple([demands[i] for i in part]) for part in self.by_slot(demands)]
        yield from run_all([RunScript(charge, calls.of_script(charge, part, (), None, ())) for part in parts])

    def lower_remaining(self, demand: LimitRequest, most: int) -> Operation[int]:
        """Take permits until at most ``most`` are left. Returns how many were taken."""
        if demand.limit.priority_reserve is not None:
            demand = replace(demand, leaves=0)  # of all permits, also those set aside
        (taken,) = yield from self.decide(self.scripts.lower_remaining, (demand,), most)
        return taken

    def reset(self, demands: Sequence[LimitRequest], note: str) -> Operation[None]:
        """Refill the buckets; ``note``: author and reason."""
        parts = [[demands[i] for i in part] for part in self.by_slot(demands)] if demands else []
        yield from run_all([RunScript(self.scripts.reset, self.calls.of_reset(part, note)) for part in parts])

    # -- Leases ----------------------------------------------------------------------------------------------------

    def release(self, demands: Sequence[LimitRequest], *, id: str, granted_at: int) -> Operation[bool]:
        """Release the leases of ``id``. Returns whether there were any."""
        places = leased(demands)
        if not places or not id:
            return False
        return (yield from self.release_all([LeasesToRelease(id, places, granted_at)])) > 0

    def release_all(self, ended: Sequence[LeasesToRelease]) -> Operation[int]:
        """Release the leases of many holders, in one script for each hash slot. Returns their number."""
        leases = [(demand, each) for each in ended for demand in each.places]
        if not leases:
            return 0
        parts = self.by_slot([demand for demand, _ in leases])
        asked = [RunScript(self.scripts.release, self.calls.of_release([leases[i] for i in part])) for part in parts]
        return sum(map(int, (yield from run_all(asked))))

    def renew(self, leases: Sequence[tuple[LimitRequest, str]]) -> Operation[list[bool]]:
        """Renew the leases of many holders in one round trip. False for each that has expired."""
        if not leases:
            return []
        parts = self.by_slot([demand for demand, _ in leases])
        asked = [RunScript(self.scripts.renew, self.calls.of_renew([leases[i] for i in part])) for part in parts]
        kept = [True] * len(leases)
        for part, reply in zip(parts, (yield from run_all(asked)), strict=True):
            for i, each in zip(part, reply, strict=True):
                kept[i] = each in (49, "1")
        return kept

    # -- Decisions -------------------------------------------------------------------------------------------------

    def takes_one_script(self, demands: Sequence[LimitRequest]) -> bool:
        """Whether one script decides all of them."""
        return not (self.is_cluster and self._over_slots.parts(tuple(demands)))

    def decide(
        self,
        script: Script,
        demands: Sequence[LimitRequest],
        *first: str | int,
        kind: str | None = None,
        last: Sequence[int | str] = (),
    ) -> Operation[list[int]]:
        """A script's reply about all limit requests; arguments as of :meth:`Calls.of_script`."""
        if self.is_cluster and (parts := self._over_slots.parts(tuple(demands))):
            return (yield from self._over_slots.decide(script, parts, first, kind, last))
        (reply,) = yield [RunScript(script, self.calls.of_script(script, tuple(demands), first, kind, last))]
        if isinstance(reply, RateLimitError):
            raise impossible(demands, reply)
        return whole_numbers(reply)

    def decide_each(
        self, script: Script, call: Call, demands: Sequence[LimitRequest], ids: Sequence[str]
    ) -> Operation[list[Decision]]:
        """The decisions in a script's reply about several requests, in the order of their ids."""
        (said,) = yield [RunScript(script, call)]
        if isinstance(said, RateLimitError):
            raise impossible(demands, said)
        return [decision_of(demands, whole_numbers(reply), id) for reply, id in zip(said, ids, strict=False)]

    def by_slot(self, demands: Sequence[LimitRequest]) -> list[Sequence[int]]:
        """Positions of the limit requests, grouped by the hash slot that one script sees."""
        parts = parts_of(demands) if self.is_cluster else ()
        return [part.places for part in parts] or [range(len(demands))]
