"""Parking lots, and the shares of fair limits in them: what is parked, and in which order its turns come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from math import ceil, inf
from typing import NamedTuple

from celery import Celery

from ..backlog.backlog import backlog_of
from ..backlog.messages import Bucket, LotSnapshot, Parked, decoded, several
from ..limits.any_limit import AnyLimit
from ..limits.share_weights import USUAL
from ..store.resp import text
from .backlogs import count_tasks, weights_of
from .bucket_status import BucketStatus, standings_of
from .forecast import Forecast, forecast
from .limit_status import LimitStatus
from .overview import overview

__all__ = ["ParkingLot", "longest", "lots_of", "rank", "read_lots", "shares_of", "tasks_in_order"]

#: Tags of shares that are held back begin here, see ``lua/include/shares.lua``.
_HELD = 2.0**52


@dataclass(frozen=True, slots=True)
class ParkingLot:
    """What is parked for one bucket, or for one share of a fair limit.

    Attributes:
        name: of the limit.
        key: of the bucket; ``""``: the limit has only one.
        parked: tasks.
        oldest: when the first of them was throttled, in seconds since 1970.
        cost: permits that the tasks cost; 0: not known, as of a share.
        forecast: when all have had their turn.
        next_turn: when the first of them starts.
        attended: whether a worker has this limit. Else its tasks return to the queues that they were sent to,
            ``ratelimit_orphans_after`` seconds after the last worker had it.
        share: of a fair limit; ``None``: all tasks of the bucket.
    """

    name: str
    key: str
    parked: int
    oldest: float
    cost: int
    forecast: Forecast
    next_turn: Forecast
    attended: bool = True
    share: str | None = None

    @property
    def drains_in(self) -> float | None:
        """Seconds until all have had their turn; ``None``: not known."""
        return self.forecast.seconds


class Lot(NamedTuple):
    """One parking lot, the status of its limit, and that of its bucket."""

    limit: LimitStatus
    parked: LotSnapshot
    standing: BucketStatus

    def turn(self, place: float) -> Forecast:
        """The forecast for the task at that place, counted from 0."""
        permits = place * self.parked.cost / self.parked.parked
        return forecast(permits, self.standing, self.limit.throughput, self.limit.held_up)

    def turns(self) -> Iterator[tuple[float, str, int]]:
        """Of each place its turn in seconds (``inf``: not known), with the key of the lot."""
        seconds = (self.turn(place).seconds for place in range(self.parked.parked))
        return ((inf if each is None else each, self.parked.key, place) for place, each in enumerate(seconds))

    def shown(self) -> ParkingLot:
        """The lot without its tasks."""
        name, key, parked, _, oldest, cost, _ = self.parked
        last = self.limit.last_turn(self.parked, self.standing)
        return ParkingLot(name, key, parked, oldest, cost, last, self.turn(0), self.limit.attended)


class Share(NamedTuple):
    """A share in a parking lot, its name escaped as in the store; its turns are in virtual time.

    Attributes:
        first: turn of its first task; ``inf``: it has none.
        step: from one turn to the next.
        tasks: how many are parked.
    """

    name: str
    first: float
    step: float
    tasks: int

    def turns(self) -> Iterator[tuple[float, str, int]]:
        """The turn of each of its tasks, with the share and the place of the task in it."""
        return ((self.first + place * self.step, self.name, place) for place in range(self.tasks))


def read_lots(app: Celery, found: Sequence[LimitStatus], most: int | None = None) -> list[Lot]:
    """All parking lots of these limits, or those with the most tasks."""
    lots = [(each, lot) for each in found for lot in each.parking_lots or ()]
    if most is not None:
        lots = sorted(lots, key=lambda each: -each[1].parked)[:most]
    limits = {each.name: each.standing.config.code for each in found}
    standings = standings_of(app, limits, [(lot.name, lot.key) for _, lot in lots])
    return [Lot(*each, standing) for each, standing in zip(lots, standings, strict=True)]


def lots_of(app: Celery, names: Sequence[str] = ()) -> list[ParkingLot]:
    """The lots in which tasks are parked; default: of all limits that are known."""
    found = overview(app, *names, force=True, ask_broker=False, max_lots=inf)
    return [lot.shown() for lot in read_lots(app, found)]


def longest(app: Celery, limit: LimitStatus, number: int = 5) -> list[ParkingLot]:
    """The longest backlogs of a limit, by key; where the limit has no keys and is fair, by share."""
    lots = read_lots(app, [limit], number)
    shares = shares_of(app, limit.standing.config.code, lots[0].parked) if lots and not limit.by_key else []
    if not shares:
        return [lot.shown() for lot in lots if lot.parked.key]
    lot, found = lots[0], []
    for share in sorted(shares, key=lambda share: -share.tasks)[:number]:
        held = Forecast(None, reason="its weight is 0") if share.first == inf else None
        first, last = [held or lot.turn(rank(shares, share.name, place)) for place in (0, share.tasks - 1)]
        for task in tasks_of(app, (limit.name, ""), share.name, 0, 1):
            since, name = task.since / 1e6, decoded(share.name)
            found.append(ParkingLot(limit.name, "", share.tasks, since, 0, last, first, limit.attended, name))
    return found


def shares_of(app: Celery, limit: AnyLimit | None, lot: LotSnapshot) -> list[Share]:
    """The shares that have tasks in a lot; empty: the limit is not fair."""
    if limit is None or limit.fair is None:
        return []
    scripts, bucket, mean = backlog_of(app).scripts, (lot.name, lot.key), lot.cost / max(1, lot.parked)
    members = scripts.command("zrange", scripts.lot_keys(bucket)[14], 0, -1, False, True)
    tags = {text(name): abs(float(tag)) for name, tag in members}
    names = [name for name in tags if name[:1] != "\0"]
    weights, found = weights_of(app, {lot.name: limit})[lot.name], []
    for name, tasks in zip(names, count_tasks(app, [(bucket, name) for name in names]), strict=True):
        weight, tag = weights.get(name, USUAL), tags[name] if tags[name] < _HELD else tags.get("\0", 0.0)
        found.append(Share(name, tag if weight else inf, mean / (weight or USUAL), tasks))
    return [share for share in found if share.tasks]


def tasks_of(app: Celery, bucket: Bucket, share: str, first: int, number: int) -> list[Parked]:
    """Some tasks of a share, in their order."""
    scripts = backlog_of(app).scripts
    keys = scripts.lot_keys(bucket)
    entries = scripts.command("zrangebylex", keys[13], f"[{share}\0", f"({share}\1", first, number)
    ids = [text(entry).split("\0", 2)[2] for entry in entries]
    stored = scripts.commands("hget", [(keys[1], id.encode(errors="surrogatepass")) for id in ids])
    return [parked for id, each in zip(ids, stored, strict=True) for parked in several([id, 0, each or ""])]


def rank(shares: Sequence[Share], name: str, place: int) -> int:
    """The number of tasks that have their turns before the one at that place of its share, counted from 0."""
    turn = next((share.first + place * share.step for share in shares if share.name == name), 0.0)
    others = [share for share in shares if share.name != name and share.first < turn]
    return place + sum(min(share.tasks, ceil((turn - share.first) / share.step)) for share in others)


def tasks_in_order(app: Celery, limit: AnyLimit | None, lot: LotSnapshot, first: int, number: int) -> list[Parked]:
    """Some of the tasks in a lot, in the order of their turns. Tasks that are set aside come last."""
    shares, tasks = shares_of(app, limit, lot), dict[str, list[Parked]]()
    turns = merge(*[share.turns() for share in shares])
    places = [(share, place) for _, share, place in islice(turns, first, first + number)]
    for share, place in places:
        if share not in tasks:
            of_share = sum(each == share for each, _ in places)
            tasks[share] = tasks_of(app, (lot.name, lot.key), share, place, of_share)
    found = [tasks[share].pop(0) for share, _ in places if tasks[share]]
    rest, start = number - len(places), max(first, sum(share.tasks for share in shares))
    contents = backlog_of(app).contents
    return [*found, *(contents.lot((lot.name, lot.key), start, start + rest - 1).tasks if rest else ())]
