"""Parks messages of throttled tasks in the store, and returns them shortly before their slots.

Each step is at least once. A message is parked before its broker forgets it. It is deleted from the store when the
broker is known to have it again. The task's id identifies a message, so a step repeated after a crash changes nothing.
If two copies of a message may exist, the store decides which of them may run. See ``lua/include/lot.lua``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from celery import Celery

from .._celery import broker_fingerprint, visibility_timeouts_of
from ..app.app_attributes import kept
from ..app.app_store import limiter_of
from ..app.settings import settings_of
from ..limiter.argument_checks import microseconds
from ..limiter.limit_request import LimitRequest
from ..limiter.limiter import Limiter
from ..limiter.script_calls import ARGUMENTS, KEYS
from ..store.cluster import slot_of
from ..store.keys import config_keys, hash_tag, lots_key, touched_key, weights_key
from ..store.notifications import NotificationListener
from ..store.resp import bulk, text
from ..store_calls.store_calls import Asks, asked
from . import tuning
from .backlog_contents import BacklogContents
from .deduplicator import CopyReporter
from .fleet_registry import FleetRegistry
from .messages import Bucket, Parked, ParkResult, PollResult, ToPark, encoded, several
from .scripts import PendingReports, Scripts, arguments_of, park_results, weights_text

__all__ = ["Backlog", "ParkResult", "PollResult", "ToPark"]


class Backlog:
    """The parking lots of one fleet: of all apps whose workers publish to the same broker.

    Args:
        limiter: calls the store.
        fleet: names the broker. A worker never publishes to its broker a message that came from another broker.
        redelivery: seconds after which the broker may redeliver a message that was not acknowledged.

    Attributes:
        scripts: the scripts for the parking lots.
        register: which workers consume which queues and apply which limits.
        contents: which tasks are in which parking lot.
        copies: which copies of messages may run.
        untold: reports to the store that are pending. Most returned tasks arrive earlier; their workers report them.
    """

    def __init__(self, limiter: Limiter, fleet: str, redelivery: float) -> None:
        self._limiter, self._asker, self._fleet, self._redelivery = limiter, limiter._asker, fleet, redelivery
        memory = microseconds(2 * redelivery + tuning.REDELIVERY_LATE)
        self.scripts: Scripts = Scripts(limiter._asker, fleet, memory)
        self.untold: PendingReports = PendingReports()
        self.register: FleetRegistry = FleetRegistry(self.scripts)
        self.contents: BacklogContents = BacklogContents(self.scripts)
        self.copies: CopyReporter = CopyReporter(self.scripts)

    def another(self) -> Backlog:
        """A backlog of the same parking lots, for another thread."""
        return Backlog(self._limiter, self._fleet, self._redelivery)

    @property
    def can_park(self) -> bool:
        """Whether tasks are parked: the store is not in memory, and no test has switched it off."""
        return not self._asker.is_fake and not hasattr(self._asker.client, "clock")

    def memory(self) -> tuple[int, int]:
        """See :meth:`StoreRunner.memory`."""
        return self._asker.memory() if self.can_park else (0, 0)

    def notification_listener(
        self, on_notification: Callable[[str | None], None] | None = None
    ) -> NotificationListener:
        """Notified when a limit without parked tasks gets its first ones, or an upstream pauses a limit."""
        return NotificationListener(self._asker.client, self._asker.prefix, on_notification=on_notification)

    # -- In --------------------------------------------------------------------------------------------------------

    def park(self, messages_of: Mapping[Bucket, Sequence[ToPark]], **options: Any) -> dict[Bucket, list[ParkResult]]:
        """:meth:`parks`, without a generator."""
        return asked(self.parks(messages_of, **options))

    def parks(
        self,
        messages_of: Mapping[Bucket, Sequence[ToPark]],
        *,
        only_behind: bool = False,
        most: int | None = None,
        later: Mapping[Bucket, float] = MappingProxyType({}),
    ) -> Asks[dict[Bucket, list[ParkResult]]]:
        """Park messages in the parking lots of their buckets, in the given order. Idempotent by id.

        Args:
            messages_of: for each bucket (of the limit that refused) at least one message; all buckets are of one of
                :meth:`parts`.
            only_behind: park only if other tasks are parked in the bucket.
            most: park only if the tasks parked in the bucket cost fewer permits.
            later: seconds until the first poll of a parking lot that is empty now; default: at once.
        """
        fair = any(each.share is not None for messages in messages_of.values() for each in messages)
        with self.untold.telling(messages_of) as (told, _):
            arguments = arguments_of(
                messages_of, told, later, only_behind=only_behind, most=most, memory=self.scripts.memory
            )
            reply = yield partial(self.scripts.of_lots, "park", list(messages_of), *arguments, fair=fair)
        results = iter(park_results(reply))
        return {bucket: [next(results) for _ in messages] for bucket, messages in messages_of.items()}

    # -- Out -------------------------------------------------------------------------------------------------------

    def due(self, names: Sequence[str]) -> list[Bucket] | None:
        """The parking lots of these limits that are due for a poll; ``None``: none of the limits has parked tasks."""
        prefix, fleet = self._asker.prefix, self._fleet
        found: list[Bucket] | None = None
        for part in self.scripts.that_go_together(names) if names else ():
            keys = [key for name in part for key in (lots_key(prefix, name, fleet), touched_key(prefix, name))]
            reply = self.scripts.with_keys("find_due_lots", keys, tuning.READ_AT_ONCE, fleet)
            for name, due in zip(part, reply, strict=True):
                if due is not None:
                    found = [*(found or ()), *[(name, text(key)) for key in due]]
        return found

    def wake(self, demand: LimitRequest, since: int) -> tuple[int, bool]:
        """Make the parking lots of a limit due sooner if the limit has changed. Call again while there are more.

        Args:
            demand: of the limit; its key does not matter.
            since: microseconds since 1970, the store's clock: the last change of the stored limit that was handled;
                -1: the limit has changed in any case.

        Returns:
            The store's clock in microseconds since 1970, and whether more parking lots remain.
        """
        prefix, name = self._asker.prefix, demand.name
        lots, code, *_ = self.scripts.shared_keys(name)
        keys = (lots, code, config_keys(prefix, name, "")[0], weights_key(prefix, name))
        method, count, period, size, _, extra = self._asker.shadows.opened(demand).limit.wire(1)
        number, _, _ = weights_text(demand.limit).partition("\0")
        code = " ".join(map(str, (method, count, period, size, extra, *([number] if number else ()))))
        code = number if number.startswith("r") else code
        now, moved = self.scripts.with_keys("reschedule_changed_limit", keys, since, tuning.SCANNED_AT_ONCE, code)
        return int(now), int(moved) == tuning.SCANNED_AT_ONCE

    def take_due(
        self,
        demands: Sequence[LimitRequest],
        *,
        due: bool = False,
        horizon: float = tuning.RETURN_AHEAD,
        absent: Collection[str] = (),
    ) -> list[PollResult]:
        """Return the tasks that have slots at most ``horizon`` seconds ahead. The caller publishes them.

        Args:
            demands: one for each bucket. Each message has its own cost. A demand of cost 0 is in shadow mode.
            due: process only parking lots that are due for a poll.
            horizon: seconds.
            absent: queues that no worker consumes. Their tasks get no slots.

        Returns:
            A result for each parking lot that the script reached. The script did not process the remaining ones.
        """
        if not demands:
            return []
        demand_of = {(demand.name, demand.key): demand for demand in demands}
        buckets = self.parts(demand_of)[0][: tuning.LOTS_PER_RETURN]
        demands = [self._asker.shadows.opened(demand_of[bucket]) for bucket in buckets]
        fair = any(demand.limit.fair is not None for demand in demands)
        of_limits = [self.scripts.limit_keys(demand.name, demand.key, demand.method) for demand in demands]
        keys = [states for states, _ in of_limits] + [slots for _, slots in of_limits]
        number, of_lots = self.scripts.keys_of_lots(buckets)
        number += KEYS * len(demands)
        most, apart = tuning.MAX_IN_FLIGHT * max(2, self.register.workers), microseconds(tuning.POLL_INTERVAL)
        times = microseconds(horizon), most, apart, microseconds(tuning.PUBLISH_TIMEOUT), self.scripts.memory
        first: list[str | int] = [len(demands), int(due), *times, tuning.STEP_BUDGET, tuning.MAX_REPLY_BYTES]
        first += [len(absent), *sorted(map(encoded, absent)), *[key for _, key in buckets]]
        weights: dict[str, tuple[int, str]] = {}
        for place, demand in enumerate(demands, 1):
            if text := weights_text(demand.limit):
                weights.setdefault(demand.name, (place, text))
        last = [value for pair in weights.values() for value in pair]
        reply = self.scripts.call(
            "take_due",
            number,
            number + len(first) + ARGUMENTS * len(demands) + len(last),
            [*keys, *of_lots, bulk(*first), *[demand.wire for demand in demands], *([bulk(*last)] if last else [])],
            fair=fair,
        )
        return [
            PollResult(bucket, None if int(again) < 0 else int(again) / 1e6, int(another) == 1, tuple(several(leaving)))
            for bucket, (again, another, *leaving) in zip(buckets, reply, strict=False)
        ]

    def published(self, leaving: Mapping[Bucket, Sequence[Parked]] = MappingProxyType({})) -> None:
        """Report that the broker has the messages of these returned tasks. Pending reports are sent with it."""
        asked(self.tells(leaving))

    def tells(
        self, leaving: Mapping[Bucket, Sequence[Parked]] = MappingProxyType({}), *, at_once: bool = True
    ) -> Asks[None]:
        """:meth:`published` as a generator of calls; unless ``at_once``, only if a report has been pending for long."""
        if not at_once and not self.untold.waits(tuning.REPORT_DELAY):
            return
        for part in self.parts(dict.fromkeys([*leaving, *self.untold.lots])):
            with self.untold.telling(part, published=True) as (acknowledged, noted):
                arguments: list[str | int] = []
                for bucket in part:
                    those, ids = [*leaving.get(bucket, ()), *noted[bucket]], acknowledged[bucket]
                    arguments += [bucket[1], len(those), 0, len(ids) // 2]
                    arguments += [value for each in those for value in (each.id, each.copy)]
                    arguments += ids
                yield partial(self.scripts.confirm, part, *arguments)

    def parts(self, buckets: Iterable[Bucket]) -> list[list[Bucket]]:
        """Split buckets into groups for one script each: not too many, and of one hash slot of a cluster."""
        parts: dict[tuple[int, int], list[Bucket]] = {}
        for place, bucket in enumerate(buckets):
            slot = slot_of(hash_tag(bucket[0])) if self._asker.is_cluster else 0
            parts.setdefault((slot, place // tuning.READ_AT_ONCE), []).append(bucket)
        return list(parts.values())


def backlog_of(app: Celery) -> Backlog:
    """The backlog of ``app``, shared by all apps that publish to the same broker."""
    redelivery: float = kept(app, "redelivery", lambda: max(visibility_timeouts_of(app)))
    return Backlog(limiter_of(app), settings_of(app).fleet or broker_fingerprint(app), redelivery)
