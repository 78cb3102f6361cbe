"""Calls the Lua scripts of parking lots, with the keys of one fleet; collects reports that the next call carries."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from ..limiter.argument_checks import microseconds
from ..limiter.operation import Operation, RunScript, run_all
from ..limiter.script_calls import call_of
from ..limiter.sync_store import StoreRunner
from ..limits.any_limit import AnyLimit
from ..limits.key_rates import whole_limit
from ..store.keys import all_lots_keys, bucket_keys, config_keys, escape, lot_keys, short
from ..store.resp import bulk, text
from ..store.script import Script
from .messages import Bucket, Parked, ParkResult, ToPark, decoded, record_of

__all__ = ["PendingReports", "Scripts", "arguments_of", "park_results", "weights_text"]

#: Number of keys that a script gets for each parking lot.
LOT_KEYS = 16
#: Scripts that have another text for fair limits.
_OF_FAIR = ("park", "take_due")

_NAMES = (
    *("park", "take_due", "confirm_published", "filter_copies_and_acquire", "find_due_lots"),
    *("reschedule_changed_limit", "make_suspended_lots_due", "heartbeat_queues", "heartbeat_limits"),
    *("locate", "list_parked", "take_out", "take_for_original_queues", "position"),
    *("repair_lost_keys", "report_publish_failures", "keys_with_settings"),
)


class Scripts:
    """The scripts, and the keys for them.

    Args:
        asker: calls the store.
        fleet: names the broker. A worker never publishes to its broker a message that came from another broker.
        memory: microseconds during which the broker may deliver an older copy of a message.

    Attributes:
        by_name: all scripts.
        for_fair: the scripts with another text for fair limits.
        prefix: the start of every key in the store.
    """

    def __init__(self, asker: StoreRunner, fleet: str, memory: int) -> None:
        self.asker = asker
        self.fleet = fleet
        self.memory = memory
        self.prefix: str = asker.prefix
        self.by_name: dict[str, Script] = {name: Script(name, asker.replace_includes) for name in _NAMES}
        self.for_fair: dict[str, Script] = {name: Script(name, asker.replace_includes, fair=True) for name in _OF_FAIR}
        self._keys_of = lru_cache(maxsize=1024)(lambda bucket: bulk(*self.lot_keys(bucket)))
        self.limit_keys: Callable[[str, str, str], tuple[bytes, bytes]] = lru_cache(maxsize=1024)(self._limit_keys)

    def lot_keys(self, bucket: Bucket) -> Sequence[str]:
        """The keys of one parking lot, in the order of ``lua/include/lot.lua``."""
        return lot_keys(self.prefix, *bucket, self.fleet)

    def shared_keys(self, name: str) -> Sequence[str]:
        """The keys that all parking lots of one limit have in common."""
        return all_lots_keys(self.prefix, name, self.fleet)

    def _limit_keys(self, name: str, key: str, method: str) -> tuple[bytes, bytes]:
        """The keys that include/read_limits.lua reads for a limit; and its slots key, for the end of the list."""
        state, slots = bucket_keys(self.prefix, name, key, method)
        return bulk(state, *config_keys(self.prefix, name, key)), bulk(slots)

    def call(self, name: str, *call: Any, fair: bool = False) -> Any:
        """See :meth:`StoreRunner.run_script`; ``fair``: one of the limits is fair."""
        return self.asker.run_script((self.for_fair if fair else self.by_name)[name], *call)

    def with_keys(self, name: str, keys: Sequence[str], *arguments: str | int) -> Any:
        """Run a script with these keys."""
        return self.call(name, *call_of(keys, arguments))

    def asking(self, name: str, *calls: tuple[Sequence[str], Sequence[str | int]]) -> Operation[list[Any]]:
        """Run a script with each of these lists of keys and arguments, in one round trip."""
        return run_all([RunScript(self.by_name[name], call_of(*call)) for call in calls])

    def run(self, name: str, bucket: Bucket, *arguments: str | int) -> Any:
        """Run a script for one parking lot."""
        return self.of_lots(name, [bucket], *arguments)

    def of_lots(self, name: str, buckets: Sequence[Bucket], *arguments: str | int, fair: bool = False) -> Any:
        """Run a script for several parking lots; ``fair``: one of their limits is fair."""
        number, keys = self.keys_of_lots(buckets)
        return self.call(name, number, number + len(arguments), [*keys, bulk(*arguments)], fair=fair)

    def keys_of_lots(self, buckets: Sequence[Bucket]) -> tuple[int, list[bytes]]:
        """The number of keys of these parking lots, and the keys."""
        return LOT_KEYS * len(buckets), [self._keys_of(bucket) for bucket in buckets]

    def confirm(self, buckets: Sequence[Bucket], *arguments: str | int) -> None:
        """Report published and acknowledged messages of these parking lots, see ``lua/confirm_published.lua``."""
        self.of_lots("confirm_published", buckets, *arguments)

    def command(self, name: str, *arguments: Any) -> Any:
        """Run one command of the store."""
        return self.asker.store(getattr(self.asker.client, name), *arguments)

    def commands(self, name: str, calls: Sequence[Sequence[Any]]) -> list[Any]:
        """Run the same command several times, in one round trip."""
        pipeline = self.asker.client.pipeline(transaction=False)
        for arguments in calls:
            getattr(pipeline, name)(*arguments)
        replies: list[Any] = self.asker.store(pipeline.execute)
        return replies

    def that_go_together(self, names: Sequence[str]) -> list[Sequence[str]]:
        """Split limits into groups for one script each: all limits together, on a cluster each limit alone."""
        return [names] if not self.asker.is_cluster else [[name] for name in names]


class PendingReports:
    """Reports of messages that were acknowledged after a park, and of returned tasks that were published.

    Attributes:
        acknowledged: an id and a token for each message, by the parking lot's bucket.
        published: tasks, by the parking lot's bucket.
    """

    def __init__(self) -> None:
        self.acknowledged: dict[Bucket, list[str]] = {}
        self.published: dict[Bucket, list[Parked]] = {}
        self._noted_at: dict[Bucket, float] = {}  # when the first report of a bucket was noted

    @property
    def lots(self) -> list[Bucket]:
        return list(self._noted_at)

    def waits(self, seconds: float) -> bool:
        """Whether a report has been pending for that many seconds."""
        return min(self._noted_at.values(), default=float("inf")) <= time.monotonic() - seconds

    def note_acknowledged(self, bucket: Bucket, *names: str) -> None:
        """Note messages that were acknowledged: an id and a token for each."""
        self.acknowledged.setdefault(bucket, []).extend(names)
        self._noted_at.setdefault(bucket, time.monotonic())

    def note_published(self, leaving: Mapping[Bucket, Sequence[Parked]]) -> None:
        for bucket, tasks in leaving.items():
            self.published.setdefault(bucket, []).extend(tasks)
            self._noted_at.setdefault(bucket, time.monotonic())

    @contextmanager
    def telling(
        self, buckets: Iterable[Bucket], *, published: bool = False
    ) -> Iterator[tuple[Mapping[Bucket, Sequence[str]], Mapping[Bucket, Sequence[Parked]]]]:
        """Take out the acknowledged messages, and with ``published`` the published tasks. An error keeps them."""
        told, left = {}, {}
        for bucket in buckets:
            told[bucket] = self.acknowledged.pop(bucket, [])
            left[bucket] = self.published.pop(bucket, []) if published else []
            if bucket not in self.published:
                self._noted_at.pop(bucket, None)
        try:
            yield told, left
        except BaseException:
            for bucket, names in told.items():
                if names:
                    self.note_acknowledged(bucket, *names)
            self.note_published({bucket: tasks for bucket, tasks in left.items() if tasks})
            raise


def arguments_of(
    messages_of: Mapping[Bucket, Sequence[ToPark]],
    told: Mapping[Bucket, Sequence[str]],
    later: Mapping[Bucket, float],
    *,
    only_behind: bool,
    most: int | None,
    memory: int,
) -> list[str | int]:
    """ARGV of ``lua/park.lua``; see :meth:`Backlog.park <celery_ratelimit.backlog.backlog.Backlog.park>`.

    ``told``: by bucket, an id and a token for each message that was acknowledged. ``memory``: microseconds for which a
    call may come late.
    """
    arguments: list[str | int] = [int(only_behind), -1 if most is None else max(0, most), memory]
    for bucket, messages in messages_of.items():
        acknowledged = told.get(bucket, ())
        arguments += [bucket[1], microseconds(later.get(bucket, 0.0)), len(messages), len(acknowledged)]
        for each in messages:
            weight = "" if each.share is None else repr(each.weight)
            arguments += [each.since, int(each.expires * 1e6), each.id, each.cost, each.copy, each.token, each.attempt]
            arguments += [weight, "" if each.max_parked is None else each.max_parked, record_of(each)]
        arguments += acknowledged
    return arguments


def park_results(reply: Sequence[Any]) -> list[ParkResult]:
    """The reply of ``lua/park.lua``: for each message its outcome and what belongs to it."""
    return [
        ParkResult(outcome, survivor=decoded(text(value))) if outcome == "replaced" else ParkResult(outcome, value)
        for outcome, value in zip(map(text, reply[::2]), reply[1::2], strict=True)
    ]


@lru_cache(maxsize=256)
def weights_text(limit: AnyLimit) -> str:
    """The weights of a limit's code, as ``lua/include/next_share.lua`` reads them; empty if the limit has none.

    An ``r`` before it: the rates go by key, and the number alone says whether the limit has changed in the code.
    """
    limit = whole_limit(limit)
    rates = getattr(limit, "rates", None)
    if not limit.weights and rates is None:
        return ""
    said = "".join(f"\0{escape(short(key))} {weight!r}" for key, weight in limit.weights.items()) + "\0"
    if rates is None:
        return f"{zlib.crc32(said.encode())}{said}"
    code = repr((limit.wire(1), rates.fixed, said))
    return f"r{zlib.crc32(code.encode())}{said if limit.weights else ''}"
