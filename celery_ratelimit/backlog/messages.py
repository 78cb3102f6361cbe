"""Parked messages: the values that workers use, and the text that the store keeps."""

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
    """One message in a parking lot, or on its return.

    Attributes:
        id: the store's id of the task.
        copy: number of this copy of the message; the user's own message is 0.
        since: microseconds since 1970, the store's clock: when the task was first throttled.
        wait: seconds until its turn; 0.0: not known.
        message: the text that was parked.
    """

    id: str
    copy: int
    since: int
    wait: float
    message: str


class PollResult(NamedTuple):
    """The result of a poll of one parking lot.

    Attributes:
        bucket: of the parking lot.
        again: seconds until the next poll; 0.0: at once, as more tasks may return; ``None``: the parking lot is empty.
        another: whether the worker that last polled a parking lot of this limit had another limit in its code.
        leaving: returned tasks. The worker that polled publishes them.
    """

    bucket: Bucket
    again: float | None
    another: bool
    leaving: tuple[Parked, ...]


class ToPark(NamedTuple):
    """A message that is to be parked. The message itself contains ``order``, ``alone`` and ``share``, too.

    Attributes:
        id: the store's id of the task.
        cost: permits that the task costs.
        message: the message.
        copy: number of this copy when the task returns.
        token: names this delivery of the message.
        since: microseconds since 1970, the store's clock: when the task was first throttled; 0: the task goes behind
            tasks of equal priority.
        expires: seconds since 1970 at which the task expires; 0.0: never.
        attempt: 0; more: the replies to earlier attempts to park this delivery were lost.
        order: steps by which the task stands behind tasks without a priority, see ``lua/include/order.lua``.
        alone: identifies duplicates, of which only one is to wait, see ``lua/park.lua``. Empty: all may wait.
        share: the task's share of a fair limit, see ``lua/include/shares.lua``; ``None``: the limit is not fair.
        weight: of its share, in the code.
    """

    id: str
    cost: int
    message: str
    copy: int
    token: str
    since: int = 0
    expires: float = 0.0
    attempt: int = 0
    order: int = 0
    alone: str = ""
    share: str | None = None
    weight: float = USUAL


class FairPosition(NamedTuple):
    """An estimate of the tasks that have their turns before a parked task of a fair limit.

    Attributes:
        tasks: number of tasks.
        permits: that these tasks cost; ``None``: the task's share is held back, so the task has no turn.
        weight: of the task's share.
    """

    tasks: int
    permits: float | None
    weight: float


def marker_of(bucket: Bucket, parked: Parked, now_us: int | None = None) -> dict[str, Any]:
    """The marker of a returned message: its parking lot, id and copy number, and since when the task waits.

    The marker has the task's slot, too, if ``now_us`` (microseconds since 1970, the store's clock) is given.
    """
    marker = {"lot": bucket, "id": parked.id, "copy": parked.copy, "since": parked.since}
    return marker if now_us is None else {**marker, "slot": now_us + round(parked.wait * 1e6)}


class Lot(NamedTuple):
    """The parking lot of one bucket.

    Attributes:
        name: of the limit.
        key: of the bucket.
        parked: number of parked tasks.
        leaving: number of returned tasks that are not confirmed to be at the broker.
        oldest: seconds since 1970 at which the oldest parked task was throttled; 0.0: no task is parked.
        cost: permits that the parked tasks cost.
        tasks: the tasks that the caller requested, in their order.
    """

    name: str
    key: str
    parked: int
    leaving: int
    oldest: float
    cost: int
    tasks: tuple[Parked, ...]


def written(parcel: Parcel) -> str:
    """The text that is parked for a parcel.

    Raises:
        ValueError: its headers look like kombu's own encoding of types that JSON lacks, and would be read as such.
    """
    text: str = dumps(parcel)
    expected = int(isinstance(parcel["body"], bytes))
    if text.count('"__type__"') > expected and loads(text) != parcel:
        raise ValueError("its headers cannot be parked: they have '__type__' and '__value__' in them")
    return text


def read_parcel(parked: Parked) -> Parcel:
    """The parked parcel, with the id of the task that replaces it, if one does; empty if it cannot be read."""
    try:
        parcel = loads(parked.message)
    except ValueError:
        return {}
    is_whole = isinstance(parcel, dict) and parcel.keys() >= _FIELDS and marker_in_headers(parcel["headers"])
    return with_survivor(parcel) if is_whole else {}


def several(reply: Sequence[Any]) -> list[Parked]:
    """The tasks of a script's reply: for each its id, microseconds until its turn, and its stored text."""
    return [_read(*each) for each in zip(reply[::3], reply[1::3], reply[2::3], strict=True)]


def _read(id: Any, wait: Any, stored: Any) -> Parked:
    found = re.fullmatch(r"\d+ (\d+) (\d+) (.*)", text(stored), re.DOTALL)
    copy, since, message = found.groups() if found else ("0", "0", "")
    return Parked(text(id), int(copy), int(since), int(wait) / 1e6, message)
