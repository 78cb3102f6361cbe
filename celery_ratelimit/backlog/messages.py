"""Parked messages: the values that workers use, and the text that the store keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from kombu.utils.json import dumps, loads

from .._celery.saved_message import Parcel, marker_in_headers, with_survivor
from ..limits.share_weights import USUAL
from ..store.resp import text

__all__ = [
    "Bucket",
    "LotSnapshot",
    "ParkResult",
    "Parked",
    "PollResult",
    "Position",
    "ToPark",
    "decoded",
    "encoded",
    "marker_of",
    "read_parcel",
    "record_of",
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
        task: the task's id.
        share: the task's share of the limit; empty: the limit was not fair when it was parked.
        survivor: the id of the task that waits in its place, if one does.
        queue: to which the task was sent.
    """

    id: str
    copy: int
    since: int
    wait: float
    message: str
    task: str = ""
    share: str = ""
    survivor: str = ""
    queue: str = ""


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
    """A message that is to be parked.

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
        task: the task's id.
        queue: that the task was sent to.
        order, leaves, unique: see ``lua/include/task_record.lua``.
        share: the task's share of a fair limit, see ``lua/include/shares.lua``; ``None``: the limit is not fair.
        weight: of its share, in the code.
        max_parked: park it only if fewer tasks are parked, unless it was parked before; ``None``: no bound.
    """

    id: str
    cost: int
    message: str
    copy: int
    token: str
    since: int = 0
    expires: float = 0.0
    attempt: int = 0
    task: str = ""
    queue: str = ""
    order: int = 0
    leaves: int | None = None
    unique: str = ""
    share: str | None = None
    weight: float = USUAL
    max_parked: int | None = None


class ParkResult(NamedTuple):
    """The reply of ``lua/park.lua`` for one message.

    Attributes:
        outcome: ``parked``; ``empty``: no task is parked there, or a later attempt to park the message was made;
            ``full``: ``ahead`` has reached the bound; ``no_room``: as many tasks are parked as its ``max_parked``;
            ``replaced``: another task waits in its place.
        ahead: permits that the tasks ahead cost.
        survivor: the id of the task that waits in its place.
    """

    outcome: str
    ahead: int = 0
    survivor: str = ""

    @property
    def is_parked(self) -> bool:
        return self.outcome == "parked"


class Position(NamedTuple):
    """The position of a task in a parking lot.

    Attributes:
        now: microseconds since 1970, the store's clock.
        where: ``parked``; ``aside``: no worker consumes its queue; ``leaving``: returned, and not confirmed to be at
            the broker; ``""``: not known here.
        before: number of tasks parked before it; an estimate if the limit is fair; -1: it is not parked.
        number: of parked tasks.
        cost: permits that all of these cost.
        parked: the task.
        weight: of the task's share; 0.0: the share is held back; ``None``: the limit is not fair.
        in_share: number of tasks of its share before it.
    """

    now: int
    where: str
    before: int
    number: int
    cost: int
    parked: Parked
    weight: float | None = None
    in_share: int = 0


def marker_of(bucket: Bucket, parked: Parked, now_us: int | None = None) -> dict[str, Any]:
    """The marker of a returned message: its parking lot, id and copy number, and since when the task waits.

    The marker has the task's slot, too, if ``now_us`` (microseconds since 1970, the store's clock) is given.
    """
    marker = {"lot": bucket, "id": parked.id, "copy": parked.copy, "since": parked.since}
    return marker if now_us is None else {**marker, "slot": now_us + round(parked.wait * 1e6)}


class LotSnapshot(NamedTuple):
    """The parking lot of one bucket, as it was read.

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


def encoded(of_user: str) -> str:
    """A task's id, or a queue's name, as a field of a record: percent-encoded but for harmless characters."""
    return quote(of_user, safe="@/.-_~+=,", errors="surrogatepass")


def decoded(field: str) -> str:
    return unquote(field, errors="surrogatepass")


def record_of(each: ToPark) -> str:
    """The record of a task that is to be parked, from its field ``order`` on, and the message."""
    leaves = "" if each.leaves is None else each.leaves
    texts = f"{each.share or ''} {each.unique}  {encoded(each.queue)} {encoded(each.task)}"
    return f"{each.order} {leaves} {texts} {each.message}"


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
    """The parked parcel, with the id of the task that waits in its place, if one does; empty if it cannot be read."""
    try:
        parcel = loads(parked.message)
    except ValueError:
        return {}
    is_whole = isinstance(parcel, dict) and parcel.keys() >= _FIELDS and marker_in_headers(parcel["headers"])
    return with_survivor(parcel, parked.survivor) if is_whole else {}


def several(reply: Sequence[Any]) -> list[Parked]:
    """The tasks of a script's reply: for each its id, microseconds until its turn, and its stored text."""
    return [_read(*each) for each in zip(reply[::3], reply[1::3], reply[2::3], strict=True)]


def _read(id: Any, wait: Any, stored: Any) -> Parked:
    fields = text(stored).split(" ", 10)
    if len(fields) < 11 or not (fields[1].isdecimal() and fields[2].isdecimal()):
        return Parked(text(id), 0, 0, int(wait) / 1e6, "")
    _, copy, since, _, _, share, _, survivor, queue, task, message = fields
    texts = decoded(task), share, decoded(survivor), decoded(queue)
    return Parked(text(id), int(copy), int(since), int(wait) / 1e6, message, *texts)
