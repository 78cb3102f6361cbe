"""What is parked: a message, as the store has it and as workers have it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from kombu.utils.json import dumps, loads

from .._celery.saved_message import Parcel, marker_in_headers, with_survivor
from ..limits.weights import USUAL
from ..store.resp import text

__all__ = [
    "Bucket",
    "FairPosition",
    "Lot",
    "Parked",
    "PollResult",
    "ToPark",
    "marker_of",
    "read_parcel",
    "several",
    "written",
]

#: Without these a message cannot be published.
_FIELDS = {"to", "body", "headers", "priority", "expires", "properties"}
#: A limit's name, and the key of one of its buckets.
Bucket = tuple[str, str]


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


class PollResult(NamedTuple):
    """What came of a look at one lot.

    Attributes:
        bucket: whose lot.
        again: seconds until a worker has to look again; 0.0: at once, since not all tasks have left that may; ``None``:
            never, the lot is empty.
        another: the worker that looked at a lot of this limit last had another limit in its code.
        leaving: tasks that have left: the worker that has looked publishes them.
    """

    bucket: Bucket
    again: float | None
    another: bool
    leaving: tuple[Parked, ...]


class ToPark(NamedTuple):
    """A message that is to be parked.

    Attributes:
        id: what the store knows the task by.
        cost: permits that it costs.
        message: the message.
        copy: which copy of it this will be, when it leaves.
        since: microseconds since 1970, the store's clock: when it was throttled first; 0: it stands
            behind its equals.
        expires: seconds since 1970 at which the task expires; 0.0: never.
        doubts: how often it was sent anew, for it was not known whether it was parked.
        order: how far it stands behind tasks without a priority, see ``lua/include/order.lua``: the message says so,
            too.
        alone: what is the same of tasks of which one is to wait, see ``lua/park.lua``; the message says so, too. Empty:
            all may.
        share: whose it is, of those who share the limit, see ``lua/include/shares.lua``: the message says so, too;
            ``None``: nobody shares it.
        weight: of its share, in the code.
    """

    id: str
    cost: int
    message: str
    copy: int
    since: int = 0
    expires: float = 0.0
    doubts: int = 0
    order: int = 0
    alone: str = ""
    share: str | None = None
    weight: float = USUAL


class FairPosition(NamedTuple):
    """About how much comes before a task whose limit is shared.

    Attributes:
        tasks: how many.
        permits: that they cost; ``None``: its share is held back, and it has no turn.
        weight: of its share.
    """

    tasks: int
    permits: float | None
    weight: float


def marker_of(bucket: Bucket, parked: Parked, now_us: int | None = None) -> dict[str, Any]:
    """What a message says of itself when it comes back: where it was parked, which copy it is, since when it waits; and
    its slot, where ``now_us``, the store's time, is known.
    """
    marker = {"lot": bucket, "id": parked.id, "copy": parked.copy, "since": parked.since}
    return marker if now_us is None else {**marker, "slot": now_us + round(parked.wait * 1e6)}


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


def written(parcel: Parcel) -> str:
    """As it is parked. What looks like kombu's own way to write other types than JSON's would not be read again."""
    text: str = dumps(parcel)
    expected = int(isinstance(parcel["body"], bytes))
    if text.count('"__type__"') > expected and loads(text) != parcel:
        raise ValueError("its headers cannot be parked: they have '__type__' and '__value__' in them")
    return text


def read_parcel(parked: Parked) -> Parcel:
    """What was parked, with the task in whose favour it ends, if it does; nothing if it cannot be read."""
    try:
        parcel = loads(parked.message)
    except ValueError:
        return {}
    is_whole = isinstance(parcel, dict) and parcel.keys() >= _FIELDS and marker_in_headers(parcel["headers"])
    return with_survivor(parcel) if is_whole else {}


def several(reply: Sequence[Any]) -> list[Parked]:
    """Those of a script's reply that are told by id, microseconds until their turn, and what is stored of them."""
    return [_read(*each) for each in zip(reply[::3], reply[1::3], reply[2::3], strict=True)]


def _read(id: Any, wait: Any, stored: Any) -> Parked:
    found = re.fullmatch(r"\d+ (\d+) (\d+) (.*)", text(stored), re.DOTALL)
    copy, since, message = found.groups() if found else ("0", "0", "")
    return Parked(text(id), int(copy), int(since), int(wait) / 1e6, message)
