"""The parking lot in the store: where the messages of throttled tasks wait until their turn is near.

At least once at every step: a message is parked before its broker forgets it, and it leaves the store when it is known
to be at the broker again. A step that is repeated after a crash changes nothing, for a message is known by its task's
id; where two copies of one may be about, the store says which of them may run. See ``lua/include/lot.lua``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..limiter.core import ARGUMENTS, KEYS, microseconds
from ..limiter.demand import Demand
from ..limiter.limiter import Limiter
from ..store.cluster import slot_of
from ..store.keys import (
    all_lots_keys,
    attendance_keys,
    bucket_keys,
    config_keys,
    hash_tag,
    lot_keys,
    lots_key,
    seen_keys,
    touched_key,
)
from ..store.resp import bulk
from ..store.script import Script

__all__ = [
    "FULL",
    "HORIZON",
    "NOBODY",
    "OVERTAKEN",
    "UNATTENDED",
    "Attendance",
    "Bucket",
    "Looked",
    "Lot",
    "Parked",
    "Parking",
    "Unseen",
    "marker_of",
]

#: A limit's name, and the key of one of its buckets.
Bucket = tuple[str, str]

#: What :meth:`Parking.park` answers when it did not park: ``FULL`` less the permits that those ahead cost.
NOBODY, OVERTAKEN, FULL = -1, -3, -4

#: Seconds ahead of its slot that a task leaves the lot: what brokers and timers are late, and a worker's hiccup.
HORIZON = 1.0
#: Tasks of one bucket that have left it and have not started.
MOST = 1000
#: Tasks that leave, and lots that are looked after, each of which counts as two, in one script: a millisecond or two of
#: the store's time. Lots that one script is asked for: more would not have their turn in it, if a task leaves each. And
#: bytes of messages after which no more leave: what a connection takes in a moment.
WORK, AT_ONCE, BYTES = 50, 17, 512_000
#: Seconds between two looks at a lot, at the least: those whose turn has come meanwhile leave it together.
LOOK_APART = 0.2
#: Seconds after which a task that has left the lot, and was not reported to be at the broker, is published once more.
AGAIN = 10.0
#: How many keys a lot has.
_KEYS = 12
#: Lots of one limit that are due, of which a worker hears at once, and lots that are told that their limit has changed.
LOTS, WOKEN = 100, 500
#: Seconds for which a queue is known that nobody consumes. Where no worker has ever said so, it is not known.
KNOWN = 30 * 86_400.0
#: Seconds after which nobody attends to a limit or a return queue, at the soonest: workers say so every five.
UNATTENDED = 15.0
#: Seconds for which a limit or a return queue is known that nobody attends to: what waits there is not to be forgotten.
REMEMBERED = 365 * 86_400.0
#: Tasks that are taken out or listed in one script, and look-ups in one.
PAGE, FOUND = 100, 250


class Parked(NamedTuple):
    """One message in the lot, or on its way out.

    Attributes:
        id: what the store knows the task by.
        copy: which copy of the message it is, counted from the user's own, which is 0.
        since: microseconds since 1970, the store's clock: when it was throttled first.
        wait: seconds until its turn; 0.0 if that is not known.
        message: as it was parked.
    """

    id: str
    copy: int
    since: int
    wait: float
    message: str


def marker_of(bucket: Bucket, parked: Parked) -> dict[str, Any]:
    """What a message says of itself when it comes back: where it was parked, which copy it is, since when it waits."""
    return {"lot": bucket, "id": parked.id, "copy": parked.copy, "since": parked.since}


class Looked(NamedTuple):
    """What came of a look at one lot.

    Attributes:
        bucket: whose lot.
        again: seconds until somebody has to look again; 0.0: at once, not all have left that may; ``None``: never, it
            is empty.
        another: whoever looked after a lot of this limit last had another limit in its code.
        leaving: those that have left: whoever has looked publishes them.
    """

    bucket: Bucket
    again: float | None
    another: bool
    leaving: tuple[Parked, ...]


class Attendance(NamedTuple):
    """Queues that somebody in the fleet consumes, and those that nobody does any more."""

    attended: frozenset[str]
    absent: frozenset[str]


class Unseen(NamedTuple):
    """What no worker has said for some time that it attends to; each with the seconds since somebody did.

    Attributes:
        limits: by name.
        returns: return queues, each with the queue whose tasks come back by it.
        queues: that nobody consumes.
    """

    limits: dict[str, float]
    returns: dict[tuple[str, str], float]
    queues: dict[str, float]


class Lot(NamedTuple):
    """The parking lot of one bucket.

    Attributes:
        name: of the limit.
        key: of the bucket.
        parked: tasks in it.
        leaving: tasks that were let out, but are not known to be at the broker yet.
        oldest: seconds since 1970 at which the first of them was throttled; 0.0: nobody is there.
        cost: permits that those who are parked cost.
        tasks: those that were asked for, in their order.
    """

    name: str
    key: str
    parked: int
    leaving: int
    oldest: float
    cost: int
    tasks: tuple[Parked, ...]


class Parking:
    """The lots of one fleet: apps whose workers publish to the same broker.

    Args:
        limiter: the way to the store.
        fleet: names the broker, so that no worker publishes to its own what came from another.
        redelivery: seconds after which the broker may hand out a message again that was not acknowledged.
    """

    def __init__(self, limiter: Limiter, fleet: str, redelivery: float) -> None:
        self._limiter = limiter
        self._fleet = fleet
        self._redelivery = redelivery
        self._memory = microseconds(2 * redelivery)
        self._keys = lru_cache(maxsize=1024)(self._make_keys)
        self._limit_keys = lru_cache(maxsize=1024)(self._make_limit_keys)
        self._acknowledged: dict[Bucket, list[str]] = {}
        names = (
            "park",
            "unpark",
            "published",
            "arrive",
            "due",
            "wake",
            "parked",
            "pick",
            "find",
            "scan",
            "attend",
            "recall",
            "occupied",
            "seen",
            "hand_back",
        )
        self.scripts = {name: Script(name, limiter.replace_includes) for name in names}

    def another(self) -> Parking:
        """The same lots for another thread."""
        return Parking(self._limiter, self._fleet, self._redelivery)

    def _make_keys(self, bucket: Bucket) -> bytes:
        return bulk(*lot_keys(self._limiter.prefix, *bucket, self._fleet))

    def _make_limit_keys(self, name: str, key: str, method: str) -> tuple[bytes, bytes]:
        """What include/request.lua reads of a limit, and its slots, which come after what it reads of all."""
        prefix = self._limiter.prefix
        state, slots = bucket_keys(prefix, name, key, method)
        return bulk(state, *config_keys(prefix, name, key)), bulk(slots)

    def _run(self, name: str, bucket: Bucket, *arguments: str | int) -> Any:
        return self._call(name, (), _KEYS, _KEYS + len(arguments), [self._keys(bucket), bulk(*arguments)])

    def _call(self, name: str, *call: Any) -> Any:
        return self._limiter.run_script(self.scripts[name], *call)

    @property
    def in_use(self) -> bool:
        """Not in tests that switch the store off (:mod:`celery_ratelimit.testing`), nor in a store in memory."""
        return self._limiter.pretended_wait is None and not hasattr(self._limiter.client, "clock")

    # -- In --------------------------------------------------------------------------------------------------------

    def park(
        self,
        demand: Demand,
        id: str,
        message: str,
        *,
        copy: int,
        since: int,
        expires: float,
        only_behind: bool,
        most: int | None,
        doubts: int = 0,
    ) -> int:
        """Park a message in the lot of ``demand``'s bucket. Idempotent by ``id``.

        Args:
            demand: of the limit that said no.
            id: what the store knows the task by.
            message: the message.
            copy: which copy of it this will be, when it leaves.
            since: microseconds since 1970, the store's clock: its place in the order; 0: behind all others.
            expires: seconds since 1970 at which the task expires; 0.0: never.
            only_behind: only if others are parked there.
            most: only if those who are parked there cost fewer permits.
            doubts: how often it was sent anew, for it was not known whether it was parked.

        Returns:
            The permits that those ahead of it cost; :data:`NOBODY`: nobody is there; :data:`FULL` and less: ``FULL``
            less those permits, which are as many as there may be; :data:`OVERTAKEN`: a message that was sent anew
            meanwhile may run in its place.
        """
        bucket = demand.name, demand.key
        return int(
            self._run(
                "park",
                bucket,
                int(only_behind),
                -1 if most is None else max(0, most),
                since,
                int(expires * 1e6),
                demand.key,
                id,
                demand.cost,
                copy,
                doubts,
                message,
                *self._acknowledged.pop(bucket, ()),
            )
        )

    def acknowledged(self, bucket: Bucket, id: str) -> None:
        """The message that was parked is not at the broker any more. Told to the store with what is sent next."""
        self._acknowledged.setdefault(bucket, []).append(id)

    def flush(self) -> None:
        """Tell the store now."""
        if self._acknowledged:
            self.published({})

    # -- Out -------------------------------------------------------------------------------------------------------

    def due(self, names: Sequence[str]) -> list[Bucket]:
        """The lots of these limits that somebody has to look after now."""
        if not names:
            return []
        prefix, fleet = self._limiter.prefix, self._fleet
        found: list[Bucket] = []
        for part in [names] if not self._limiter.is_cluster else [[name] for name in names]:
            keys = [key for name in part for key in (lots_key(prefix, name, fleet), touched_key(prefix, name))]
            reply = self._call("due", (), len(keys), len(keys) + 2, [bulk(*keys, LOTS, fleet)])
            found += [(name, _text(key)) for name, due in zip(part, reply, strict=True) for key in due]
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
        prefix, name = self._limiter.prefix, demand.name
        lots, code, *_ = all_lots_keys(prefix, name, self._fleet)
        keys = (lots, code, config_keys(prefix, name, "")[0])
        method, count, period, size, _, extra = demand.limit.wire(1)
        code = f"{method} {count} {period} {size} {extra}"
        now, moved = self._call("wake", (), len(keys), len(keys) + 3, [bulk(*keys, since, WOKEN, code)])
        return int(now), int(moved) == WOKEN

    def attend(self, worker: str, queues: Sequence[str], left: Sequence[str], lasts: float) -> Attendance:
        """Which queues somebody consumes, and which nobody does.

        Args:
            worker: who asks.
            queues: which it consumes.
            left: which it does not consume any more.
            lasts: seconds for which it may be taken for alive.
        """
        keys = attendance_keys(self._limiter.prefix, self._fleet)
        numbers = (microseconds(lasts), microseconds(KNOWN), len(queues))
        arguments: list[str | int] = [worker, *numbers, *queues, *left]
        reply = self._call("attend", (), len(keys), len(keys) + len(arguments), [bulk(*keys, *arguments)])
        attended, absent = [frozenset([_text(queue) for queue in each]) for each in reply]
        return Attendance(attended | set(queues), absent - set(queues))

    def seen(
        self,
        limits: Sequence[str],
        returns: Sequence[tuple[str, str]],
        forget: Sequence[str] = (),
        *,
        after: float = 0.0,
        most: int = -1,
    ) -> Unseen:
        """A worker attends to these limits and return queues. Which were not seen to for ``after`` seconds?

        Args:
            limits: by name.
            returns: return queues, each with the queue whose tasks come back by it.
            forget: limits, and return queues with their queues, in which nothing waits.
            after: seconds.
            most: how many of each kind; -1: all.
        """
        keys = seen_keys(self._limiter.prefix, self._fleet)
        numbers = (microseconds(REMEMBERED), microseconds(after), most, len(limits), len(returns))
        arguments: list[str | int] = [*numbers, *limits, *["\0".join(each) for each in returns], *forget]
        reply = self._call("seen", (), len(keys), len(keys) + len(arguments), [bulk(*keys, *arguments)])
        of_limits, of_returns, of_queues = [
            {_text(name): int(us) / 1e6 for name, us in zip(each[::2], each[1::2], strict=True)} for each in reply
        ]
        pairs = {tuple(name.split("\0", 1)): ago for name, ago in of_returns.items()}
        return Unseen(of_limits, {(to, queue): ago for (to, queue), ago in pairs.items()}, of_queues)

    def consumed(self) -> set[str]:
        """The queues that some worker consumes, or has consumed in the last 30 days."""
        _, queues = attendance_keys(self._limiter.prefix, self._fleet)
        return {_text(queue) for queue in self._limiter._store(self._limiter.client.zrange, queues, 0, -1)}

    def occupied(self, names: Sequence[str]) -> list[str]:
        """Those of the limits that have lots in which somebody is parked."""
        found: list[str] = []
        for part in [names] if not self._limiter.is_cluster else [[name] for name in names]:
            keys = [lots_key(self._limiter.prefix, name, self._fleet) for name in part]
            reply = self._call("occupied", (), len(keys), len(keys), [bulk(*keys)]) if keys else ()
            found += [name for name, some in zip(part, reply, strict=True) if int(some)]
        return found

    def recall(self, name: str, after: str | None, offset: int) -> tuple[str | None, int]:
        """A queue is consumed again: lots of a limit in which tasks are aside are due. In steps.

        Args:
            name: of the limit.
            after: up to which bucket's key the step before has come; ``None``: the first step.
            offset: how many lots there were before.

        Returns:
            The same for the next step; ``None``: there is none.
        """
        lots, _, _, asides, _ = all_lots_keys(self._limiter.prefix, name, self._fleet)
        first = "-" if after is None else f"({after}"
        reply = self._call("recall", (), 2, 5, [bulk(lots, asides, first, offset, WOKEN)])
        return (_text(reply[-1]) if len(reply) == WOKEN else None), offset + len(reply)

    def unpark(
        self,
        demands: Sequence[Demand],
        *,
        due: bool = False,
        horizon: float = HORIZON,
        attendance: Attendance | None = None,
    ) -> list[Looked]:
        """Let those out whose turn is no further away than ``horizon`` seconds. Whoever calls publishes them.

        Args:
            demands: one of each bucket; its cost is that of each message.
            due: only of those lots that somebody has to look after now.
            horizon: seconds.
            attendance: which queues somebody consumes; tasks of those that nobody does get no slot.

        Returns:
            What came of it, for the lots to which one script came: those behind them are left.
        """
        if not demands:
            return []
        demands = self._of_one_script(demands)
        methods = {demand.method for demand in demands}
        buckets = [(demand.name, demand.key) for demand in demands]
        of_limits = [self._limit_keys(demand.name, demand.key, demand.method) for demand in demands]
        keys = [states for states, _ in of_limits] + [slots for _, slots in of_limits]
        numbers = (len(demands), int(due), microseconds(horizon), MOST, microseconds(LOOK_APART), microseconds(AGAIN))
        absent = sorted(attendance.absent) if attendance is not None else []
        attended = sorted(attendance.attended) if attendance is not None and absent else []
        first: list[str | int] = [*numbers, self._memory, WORK, BYTES, len(absent), len(attended), *absent, *attended]
        first += [demand.key for demand in demands]
        pieces = [*keys, *map(self._keys, buckets), bulk(*first), *[demand.wire for demand in demands]]
        number = (KEYS + _KEYS) * len(demands)
        reply = self._call(
            "unpark",
            methods.pop() if len(methods) == 1 else frozenset(methods),
            number,
            number + len(first) + ARGUMENTS * len(demands),
            pieces,
        )
        return [
            Looked(bucket, None if int(again) < 0 else int(again) / 1e6, int(another) == 1, tuple(_several(leaving)))
            for bucket, (again, another, *leaving) in zip(buckets, reply, strict=False)
        ]

    def _of_one_script(self, demands: Sequence[Demand]) -> Sequence[Demand]:
        """Those at the head, and as many with them, that one script may see."""
        if not self._limiter.is_cluster:
            return demands[:AT_ONCE]
        slot = slot_of(hash_tag(demands[0].name))
        return [demand for demand in demands if slot_of(hash_tag(demand.name)) == slot][:AT_ONCE]

    def published(self, leaving: Mapping[Bucket, Sequence[Parked]]) -> None:
        """These have left their lots: they are at the broker. What is acknowledged is told with them."""
        acknowledged = self._acknowledged
        buckets = [*leaving, *[bucket for bucket in acknowledged if bucket not in leaving]]
        parts: dict[tuple[int, int], list[Bucket]] = {}
        for place, bucket in enumerate(buckets):
            slot = slot_of(hash_tag(bucket[0])) if self._limiter.is_cluster else 0
            parts.setdefault((slot, place // LOTS), []).append(bucket)
        for part in parts.values():
            arguments: list[str | int] = []
            for bucket in part:
                those, ids = leaving.get(bucket, ()), acknowledged.get(bucket, ())
                arguments += [bucket[1], len(those), len(ids)]
                arguments += [value for each in those for value in (each.id, each.copy)]
                arguments += ids
            told = {bucket: len(acknowledged.get(bucket, ())) for bucket in part}
            number = _KEYS * len(part)
            self._call("published", (), number, number + len(arguments), [*map(self._keys, part), bulk(*arguments)])
            for bucket, count in told.items():  # others may have been noted meanwhile
                if left := acknowledged.pop(bucket, [])[count:]:
                    acknowledged[bucket] = left

    def arrive(self, bucket: Bucket, copies: Mapping[str, int], doubts: int = 0) -> set[str]:
        """These copies have come from the broker. Which of them must not run, because another does?

        ``doubts``: how often they were sent anew, for it was not known whether they were parked.
        """
        threes = [value for id, copy in copies.items() for value in (id, copy, doubts)]
        reply = self._run("arrive", bucket, self._memory, *threes)
        return {id for id, may in zip(copies, reply, strict=True) if int(may) != 1}

    # -- Which tasks are where -------------------------------------------------------------------------------------

    def find(self, names: Sequence[str], tasks: Sequence[str]) -> Iterator[dict[Bucket, dict[str, str]]]:
        """Where tasks are parked: of each that is, what the store knows it by, and its own id. One script a step.

        Those that a version before this one has parked are not found.
        """
        several = [names] if not self._limiter.is_cluster else [[name] for name in names]
        for part in [those[i : i + FOUND] for those in several for i in range(0, len(those), FOUND)]:
            keys = [all_lots_keys(self._limiter.prefix, name, self._fleet)[2] for name in part]
            size = max(1, FOUND // len(part))
            for first in range(0, len(tasks), size):
                asked = tasks[first : first + size]
                reply = self._call("find", (), len(keys), len(keys) + len(asked), [bulk(*keys, *asked)])
                found: dict[Bucket, dict[str, str]] = {}
                for name, places in zip(part, reply, strict=True):
                    for place in places:
                        task, id, key = _text(place).split("\0", 2)
                        found.setdefault((name, key), {})[id] = task
                yield found

    def scan(self, bucket: Bucket, tasks: Sequence[str]) -> Iterator[list[Parked]]:
        """Those that a version before this one has parked, and that may be one of these tasks. One script a step."""
        first = 0
        while True:
            last = first + max(1, 2 * PAGE // max(1, len(tasks))) - 1
            looked, *found = self._run("scan", bucket, first, last, BYTES, *tasks)
            if not int(looked):
                return
            yield _several(found)
            first += int(looked)

    def pick(self, bucket: Bucket, ids: Sequence[str], *, purge: bool) -> tuple[int, list[Parked], Sequence[str]]:
        """Take tasks out before their turn: to be published by whoever calls, or (``purge``) never.

        Returns:
            How many were parked, their messages unless they are thrown away, and the ids to which it did not come.
        """
        _, came, taken, _, _, *leaving = self._pick(bucket, purge, 0, "", 0, "", *ids[:PAGE])
        return int(taken), _several(leaving), ids[int(came) :]

    def pick_all(self, bucket: Bucket, *, purge: bool) -> Iterator[tuple[int, list[Parked]]]:
        """The same with all that are parked now, in their order, one script a step."""
        until, since, last = 0, "0", ""
        while since:
            now, _, taken, following, last_id, *leaving = self._pick(bucket, purge, PAGE, since, until, last)
            yield int(taken), _several(leaving)
            until, since, last = until or int(now), _text(following), _text(last_id)

    def hand_back(
        self, bucket: Bucket, queues: Sequence[str] = (), until: int = 0, *, overdue: float = 0.0
    ) -> tuple[int, list[Parked]]:
        """Let some out to the queues that they were sent to. Whoever calls publishes them, as they were sent.

        Args:
            bucket: whose lot.
            queues: only those that are aside for one of them; none: all, in their order.
            until: microseconds since 1970, the store's clock: those who were parked by then; 0: now.
            overdue: seconds; with all, those that have left and would be let out once more by then.

        Returns:
            The store's clock, and those who leave; none: there are no more.
        """
        numbers = (microseconds(AGAIN), self._memory, bucket[1], BYTES, PAGE, until, microseconds(overdue))
        now, *leaving = self._run("hand_back", bucket, *numbers, *queues)
        return int(now), _several(leaving)

    def _pick(self, bucket: Bucket, purge: bool, *which: str | int) -> Any:
        numbers = (int(purge), microseconds(AGAIN), self._memory, bucket[1], BYTES)
        return self._run("pick", bucket, *numbers, *which)

    # -- For people ------------------------------------------------------------------------------------------------

    def lots(self, names: Iterable[str]) -> Iterator[Lot]:
        """The lots of these limits that are not empty, without their tasks. One script for some of them."""
        for name in names:
            for keys in self.keys(name):
                for first in range(0, len(keys), LOTS):
                    yield from self._lots(name, keys[first : first + LOTS], None)

    def keys(self, name: str, *, aside: bool = False) -> Iterator[list[str]]:
        """Keys of the buckets of a limit that have lots, some at a time; ``aside``: in which somebody is aside."""
        lots, _, _, asides, *_ = all_lots_keys(self._limiter.prefix, name, self._fleet)
        seen, cursor, client = set[str](), None, self._limiter.client
        while cursor != 0:
            cursor, page = self._limiter._store(client.zscan, asides if aside else lots, cursor or 0, None, LOTS)
            keys = [key for key in dict.fromkeys([_text(key) for key, _ in page]) if key not in seen]
            seen.update(keys)
            yield keys

    def lot(self, bucket: Bucket, first: int, last: int) -> Lot:
        """The lot of one bucket, with its tasks from ``first`` to ``last``, counted from 0; -1: the last one.

        As many of them as one reply may hold.
        """
        return self._lots(bucket[0], [bucket[1]], (first, last))[0]

    def _lots(self, name: str, keys: Sequence[str], which: tuple[int, int] | None) -> list[Lot]:
        of_all = all_lots_keys(self._limiter.prefix, name, self._fleet)
        asked = [of_all[0], of_all[4]]
        for key in keys:
            parked, messages, leaving, _, _, _, aside, *_ = lot_keys(self._limiter.prefix, name, key, self._fleet)
            asked += [parked, leaving, messages, aside]
        arguments = (*(which or ("", "")), BYTES, *keys)
        _, *found = self._call("parked", (), len(asked), len(asked) + len(arguments), [bulk(*asked, *arguments)])
        return [
            Lot(name, key, int(parked), int(leaving), int(float(oldest)) / 1e6, int(cost), tuple(_several(tasks)))
            for key, (parked, leaving, oldest, cost, *tasks) in zip(keys, found, strict=True)
        ]


def _read(id: Any, wait: Any, message: Any) -> Parked:
    _, copy, since, text = _text(message).split(" ", 3)
    return Parked(_text(id), int(copy), int(since), int(wait) / 1e6, text)


def _several(reply: Sequence[Any]) -> list[Parked]:
    return [_read(*each) for each in zip(reply[::3], reply[1::3], reply[2::3], strict=True)]


def _text(value: bytes | str) -> str:
    return value.decode(errors="surrogatepass") if isinstance(value, bytes) else value
