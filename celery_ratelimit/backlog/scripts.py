"""Calls the Lua scripts of parking lots, with the keys of one fleet."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from ..limiter.asker import Asker
from ..limiter.durations import microseconds
from ..limits.any_limit import AnyLimit
from ..store.keys import all_lots_keys, bucket_keys, config_keys, escape, lot_keys, short
from ..store.resp import bulk
from ..store.script import FAIR, Script
from .messages import Bucket, ToPark, record_of

__all__ = ["FAIR_KEYS", "LOT_KEYS", "Scripts", "arguments_of", "weights_text"]

#: Number of keys that a script gets for each parking lot.
LOT_KEYS = 13
#: The same with the keys for shares: for scripts of fair limits, and for some scripts in any case.
FAIR_KEYS = 16
_FAIR_IN_ANY_CASE = ("confirm_published", "remove", "return_to_queue", "position", "reconcile")

_NAMES = (
    *("park", "return_due", "confirm_published", "dedup", "due"),
    *("reschedule", "wake_suspended", "heartbeat_queues", "heartbeat_limits", "count_lots"),
    *("list_lots", "locate", "remove", "return_to_queue", "position"),
    *("reconcile", "publish_failures", "postpone"),
)


class Scripts:
    """The scripts, and the keys for them.

    Args:
        asker: calls the store.
        fleet: names the broker. A worker never publishes to its broker a message that came from another broker.

    Attributes:
        by_name: all scripts.
        prefix: of all keys in the store.
    """

    def __init__(self, asker: Asker, fleet: str) -> None:
        self.asker, self.fleet = asker, fleet
        self.prefix = asker.prefix
        self.by_name = {name: Script(name, asker.replace_includes) for name in _NAMES}
        self.keys_of = lru_cache(maxsize=1024)(self._keys_of)
        self.fair_keys_of = lru_cache(maxsize=1024)(self._fair_keys_of)
        self.limit_keys = lru_cache(maxsize=1024)(self._limit_keys)

    def lot_keys(self, bucket: Bucket) -> Sequence[str]:
        """The keys of one parking lot, in the order of ``lua/include/lot.lua``."""
        return lot_keys(self.prefix, *bucket, self.fleet)

    def shared_keys(self, name: str) -> Sequence[str]:
        """The keys that all parking lots of one limit have in common."""
        return all_lots_keys(self.prefix, name, self.fleet)

    def _keys_of(self, bucket: Bucket) -> bytes:
        return bulk(*self.lot_keys(bucket)[:LOT_KEYS])

    def _fair_keys_of(self, bucket: Bucket) -> bytes:
        return bulk(*self.lot_keys(bucket))

    def _limit_keys(self, name: str, key: str, method: str) -> tuple[bytes, bytes]:
        """The keys that include/read_limits.lua reads for a limit; and its slots key, for the end of the list."""
        state, slots = bucket_keys(self.prefix, name, key, method)
        return bulk(state, *config_keys(self.prefix, name, key)), bulk(slots)

    def call(self, name: str, *call: Any) -> Any:
        """See :meth:`Asker.run_script`."""
        return self.asker.run_script(self.by_name[name], *call)

    def run(self, name: str, bucket: Bucket, *arguments: str | int) -> Any:
        """Run a script for one parking lot."""
        return self.of_lots(name, [bucket], *arguments)

    def of_lots(self, name: str, buckets: Sequence[Bucket], *arguments: str | int, fair: bool = False) -> Any:
        """Run a script for several parking lots; ``fair``: one of their limits is fair."""
        keys_of, each = self.keys_of, LOT_KEYS
        if fair or name in _FAIR_IN_ANY_CASE:
            keys_of, each = self.fair_keys_of, FAIR_KEYS
        keys = each * len(buckets)
        methods = FAIR if fair else ()
        return self.call(name, methods, keys, keys + len(arguments), [*map(keys_of, buckets), bulk(*arguments)])

    def tell(self, buckets: Sequence[Bucket], arguments: Sequence[str | int]) -> None:
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
            arguments += [weight, record_of(each)]
        arguments += acknowledged
    return arguments


@lru_cache(maxsize=256)
def weights_text(limit: AnyLimit) -> str:
    """The weights of a limit's code, as ``lua/include/turns.lua`` reads them; empty if the limit has none."""
    if not limit.weights:
        return ""
    said = "".join(f"\0{escape(short(key))} {weight!r}" for key, weight in limit.weights.items()) + "\0"
    return f"{zlib.crc32(said.encode())}{said}"
