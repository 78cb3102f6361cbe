"""The parking lot in the store: where the messages of throttled tasks wait until their turn is near.

At least once at every step: a message is parked before its broker forgets it, and it leaves the store when it is known
to be at the broker again. A step that is repeated after a crash changes nothing, for a message is known by its task's
id; where two copies of one may be about, the store says which of them may run. See ``lua/include/lot.lua``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from celery import Celery

from .._celery import broker_fingerprint, visibility_timeout_of
from ..app.settings import settings_of
from ..app.state import limiter_of
from ..limiter.calls import ARGUMENTS, KEYS
from ..limiter.demand import Demand
from ..limiter.durations import microseconds
from ..limiter.limiter import Limiter
from ..store.bell import Bell
from ..store.cluster import slot_of
from ..store.keys import config_keys, hash_tag, lots_key, touched_key, weights_key
from ..store.resp import bulk, text
from ..store.script import FAIR, Script
from .backlog_contents import AGAIN, BYTES, LOTS, BacklogContents
from .copies import Copies
from .fleet_registry import WOKEN, ConsumedQueues, FleetRegistry
from .messages import Bucket, Parked, PollResult, ToPark, several
from .pending_reports import PendingReports
from .reconciliation import Reconciliation
from .scripts import FAIR_KEYS, LOT_KEYS, Scripts, arguments_of, weights_text
from .store_calls import Asks, asked

__all__ = ["FULL", "HORIZON", "NOBODY", "OVERTAKEN", "REPLACED", "Backlog", "PollResult", "ToPark"]

#: Seconds by which a broker may be late with what it hands out again: kombu looks for it on Redis every 100 seconds.
LATE = 300.0
#: What :meth:`Backlog.park` answers when it did not park: ``FULL`` less the permits that the tasks ahead cost.
NOBODY, REPLACED, OVERTAKEN, FULL = -1, -2, -3, -4

#: Seconds ahead of its slot that a task leaves the lot: what brokers and timers are late, and a worker's hiccup.
HORIZON = 1.0
#: Tasks of one bucket that have left it and have not started: as many as two workers can hold, or as all can.
MOST, MOST_EACH = 1000, 500
#: Tasks that leave, and lots that are looked after, each of which counts as two, in one script: a millisecond or two of
#: the store's time. Lots that one script is asked for: more would not have their turn in it, if a task leaves each.
WORK, AT_ONCE = 50, 17
#: Seconds after which the store is told which messages are acknowledged, if nothing is sent meanwhile that tells it.
TELL = 2.0
#: Seconds between two looks at a lot, at the least: tasks whose turn has come meanwhile leave it together.
LOOK_APART = 0.2


class Backlog:
    """The lots of one fleet: apps whose workers publish to the same broker.

    Args:
        limiter: the way to the store.
        fleet: names the broker, so that no worker publishes to its own what came from another.
        redelivery: seconds after which the broker may hand out a message again that was not acknowledged.

    Attributes:
        register: who attends to what.
        contents: which tasks are where.
        copies: which copies of messages may run.
        reconciliation: makes keys agree after some were lost.
        untold: what the store has yet to be told. Most of those that have left are back before: whoever has them tells.
        survivors: of the messages that were to be parked last, those in whose place another one waits: by id the task's
            id of that.
    """

    def __init__(self, limiter: Limiter, fleet: str, redelivery: float) -> None:
        self._limiter, self._asker, self._fleet, self._redelivery = limiter, limiter.asker, fleet, redelivery
        self._memory = microseconds(2 * redelivery + LATE)
        self._scripts = scripts = Scripts(limiter.asker, fleet)
        self.untold = PendingReports()
        self.survivors: dict[str, str] = {}
        self.register = FleetRegistry(scripts)
        self.contents = BacklogContents(scripts, self._memory)
        self.copies = Copies(limiter.asker, scripts, self._memory)
        self.reconciliation = Reconciliation(scripts, self._memory)

    def another(self) -> Backlog:
        """The same lots for another thread."""
        return Backlog(self._limiter, self._fleet, self._redelivery)

    @property
    def scripts(self) -> Mapping[str, Script]:
        """All that are used, by name."""
        return self._scripts.by_name

    @property
    def is_asked(self) -> bool:
        """Not in tests that switch the store off (:mod:`celery_ratelimit.testing`)."""
        return self._asker.pretended_wait is None

    @property
    def can_park(self) -> bool:
        """Whether tasks are parked: where the store is asked, and is not in memory."""
        return self.is_asked and not hasattr(self._asker.client, "clock")

    def bell(self) -> Bell:
        """What is rung when tasks are parked for a limit for which nobody was."""
        return Bell(self._asker.client, self._asker.prefix)

    # -- In --------------------------------------------------------------------------------------------------------

    def park(
        self,
        messages_of: Mapping[Bucket, Sequence[ToPark]],
        *,
        only_behind: bool = False,
        most: int | None = None,
        later: Mapping[Bucket, float] = MappingProxyType({}),
    ) -> dict[Bucket, list[int]]:
        """Park messages in the lots of buckets, in their order. Idempotent by id.

        Args:
            messages_of: for each bucket, of the limit that said no, at least one; of buckets that go together
                (:meth:`parts`).
            only_behind: only if other tasks are parked there.
            most: only if the tasks that are parked there cost fewer permits.
            later: seconds after which a worker has to look at a lot in which nobody is parked now; default: at once.

        Returns:
            For each message the permits that the tasks ahead of it cost; :data:`NOBODY`: no task is there;
            :data:`REPLACED`: another one waits in its place (``survivors``);
            :data:`FULL` and less: ``FULL`` less those permits, which are as many as there may be;
            :data:`OVERTAKEN`: a message that was sent anew meanwhile may run in its place.
        """
        return asked(self.parks(messages_of, only_behind=only_behind, most=most, later=later))

    def parks(
        self,
        messages_of: Mapping[Bucket, Sequence[ToPark]],
        *,
        only_behind: bool,
        most: int | None,
        later: Mapping[Bucket, float],
    ) -> Asks[dict[Bucket, list[int]]]:
        """The same for who need not wait."""
        fair = any(each.share is not None for messages in messages_of.values() for each in messages)
        with self.untold.telling(messages_of) as (told, _):
            arguments = arguments_of(messages_of, told, later, only_behind=only_behind, most=most)
            reply = iter((yield partial(self._scripts.of_lots, "park", list(messages_of), *arguments, fair=fair)))
        said = {bucket: [int(next(reply)) for _ in messages] for bucket, messages in messages_of.items()}
        replaced = [
            each.id
            for bucket, messages in messages_of.items()
            for each, ahead in zip(messages, said[bucket], strict=True)
            if ahead == REPLACED
        ]
        self.survivors = {id: text(survivor) for id, survivor in zip(replaced, reply, strict=True)}
        return said

    def acknowledged(self, bucket: Bucket, id: str) -> None:
        """The message that was parked is not at the broker any more. Told to the store with what is sent next."""
        self.untold.note_acknowledged(bucket, id)

    def flush(self, *, at_once: bool = False) -> None:
        """Tell the store what it was to be told for some time, or ``at_once`` all of it."""
        asked(self.tells(at_once=at_once))

    # -- Out -------------------------------------------------------------------------------------------------------

    def due(self, names: Sequence[str]) -> list[Bucket] | None:
        """The lots of these limits that a worker has to look at now; ``None``: nobody is parked in any of them."""
        prefix, fleet = self._asker.prefix, self._fleet
        found: list[Bucket] | None = None
        for part in self._scripts.that_go_together(names) if names else ():
            keys = [key for name in part for key in (lots_key(prefix, name, fleet), touched_key(prefix, name))]
            reply = self._scripts.call("due", (), len(keys), len(keys) + 2, [bulk(*keys, LOTS, fleet)])
            for name, due in zip(part, reply, strict=True):
                if due is not None:
                    found = [*(found or ()), *[(name, text(key)) for key in due]]
        return found

    def wake(self, demand: Demand, since: int) -> tuple[int, bool]:
        """The limit is perhaps another one than it was: its lots are due sooner. To be called until there are no more.

        Args:
            demand: of the limit; its key does not matter.
            since: microseconds since 1970, the store's clock: the last change of what is stored for which this was
                done; -1: the limit has changed.

        Returns:
            The store's clock, and whether there are more.
        """
        prefix, name = self._asker.prefix, demand.name
        lots, code, *_ = self._scripts.shared_keys(name)
        keys = (lots, code, config_keys(prefix, name, "")[0], weights_key(prefix, name))
        method, count, period, size, _, extra = self._asker.shadows.opened(demand).limit.wire(1)
        number, _, _ = weights_text(demand.limit).partition("\0")
        code = " ".join(map(str, (method, count, period, size, extra, *([number] if number else ()))))
        now, moved = self._scripts.call("reschedule", (), len(keys), len(keys) + 3, [bulk(*keys, since, WOKEN, code)])
        return int(now), int(moved) == WOKEN

    def return_due(
        self,
        demands: Sequence[Demand],
        *,
        due: bool = False,
        horizon: float = HORIZON,
        attendance: ConsumedQueues | None = None,
    ) -> list[PollResult]:
        """Let tasks out whose turn is no further away than ``horizon`` seconds. The caller publishes them.

        Args:
            demands: one of each bucket; its cost is that of each message.
            due: only of lots that a worker has to look at now.
            horizon: seconds.
            attendance: which queues some worker consumes; tasks of queues that none consumes get no slot.

        Returns:
            What came of it, for the lots to which one script came: those behind them were not looked at.
        """
        if not demands:
            return []
        demands = [
            self._asker.shadows.opened(demand) for demand in _of_one_script(demands, is_cluster=self._asker.is_cluster)
        ]
        methods = {demand.method for demand in demands}
        keys_of, lot_keys = self._scripts.keys_of, LOT_KEYS
        if any(demand.limit.fair is not None for demand in demands):
            methods, keys_of, lot_keys = {*methods, FAIR}, self._scripts.fair_keys_of, FAIR_KEYS
        buckets = [(demand.name, demand.key) for demand in demands]
        of_limits = [self._scripts.limit_keys(demand.name, demand.key, demand.method) for demand in demands]
        keys = [states for states, _ in of_limits] + [slots for _, slots in of_limits]
        most = max(MOST, MOST_EACH * self.register.workers)
        numbers = (len(demands), int(due), microseconds(horizon), most, microseconds(LOOK_APART), microseconds(AGAIN))
        absent = sorted(attendance.absent) if attendance is not None else []
        attended = sorted(attendance.attended) if attendance is not None and absent else []
        first: list[str | int] = [*numbers, self._memory, WORK, BYTES, len(absent), len(attended), *absent, *attended]
        first += [demand.key for demand in demands]
        weights: dict[str, tuple[int, str]] = {}
        for number, demand in enumerate(demands, 1):
            if demand.limit.weights:
                weights.setdefault(demand.name, (number, weights_text(demand.limit)))
        pieces = [*keys, *map(keys_of, buckets), bulk(*first), *[demand.wire for demand in demands]]
        last = [value for pair in weights.values() for value in pair]
        if last:
            pieces.append(bulk(*last))
        number = (KEYS + lot_keys) * len(demands)
        reply = self._scripts.call(
            "return_due",
            methods.pop() if len(methods) == 1 else frozenset(methods),
            number,
            number + len(first) + ARGUMENTS * len(demands) + len(last),
            pieces,
        )
        return [
            PollResult(bucket, None if int(again) < 0 else int(again) / 1e6, int(another) == 1, tuple(several(leaving)))
            for bucket, (again, another, *leaving) in zip(buckets, reply, strict=False)
        ]

    def published(self, leaving: Mapping[Bucket, Sequence[Parked]]) -> None:
        """These tasks have left their lots: they are at the broker. What was noted is told with them."""
        asked(self.tells(leaving))

    def tells(
        self, leaving: Mapping[Bucket, Sequence[Parked]] = MappingProxyType({}), *, at_once: bool = True
    ) -> Asks[None]:
        """The same for who need not wait; not ``at_once``: if something was to be told for some time."""
        if not at_once and not self.untold.waits(TELL):
            return
        for part in self.parts(dict.fromkeys([*leaving, *self.untold.lots])):
            with self.untold.telling(part, published=True) as (acknowledged, noted):
                arguments: list[str | int] = []
                for bucket in part:
                    those, ids = [*leaving.get(bucket, ()), *noted[bucket]], acknowledged[bucket]
                    arguments += [bucket[1], len(those), len(ids)]
                    arguments += [value for each in those for value in (each.id, each.copy)]
                    arguments += ids
                yield partial(self._scripts.tell, part, arguments)

    def parts(self, buckets: Iterable[Bucket]) -> list[list[Bucket]]:
        """Those whose lots go together into one script: :data:`LOTS` at the most, and of one slot of a cluster."""
        parts: dict[tuple[int, int], list[Bucket]] = {}
        for place, bucket in enumerate(buckets):
            slot = slot_of(hash_tag(bucket[0])) if self._asker.is_cluster else 0
            parts.setdefault((slot, place // LOTS), []).append(bucket)
        return list(parts.values())


def _of_one_script(demands: Sequence[Demand], *, is_cluster: bool) -> Sequence[Demand]:
    """The first, and as many of the others as one script may see with it."""
    if not is_cluster:
        return demands[:AT_ONCE]
    slot = slot_of(hash_tag(demands[0].name))
    return [demand for demand in demands if slot_of(hash_tag(demand.name)) == slot][:AT_ONCE]


def backlog_of(app: Celery) -> Backlog:
    """The parked tasks of ``app``: of all apps whose tasks go to the same broker."""
    return Backlog(limiter_of(app), settings_of(app).fleet or broker_fingerprint(app), visibility_timeout_of(app))
