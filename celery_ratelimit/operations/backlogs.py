"""Reads what is parked for limits, and what may hold it up; in round trips that do not grow with their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain

from celery import Celery

from ..app.app_store import limiter_of
from ..backlog.backlog import Backlog, backlog_of
from ..backlog.backlog_contents import LotCounts
from ..backlog.fleet_registry import UnattendedLimitsAndQueues
from ..backlog.messages import Bucket, LotSnapshot, decoded
from ..backlog.tuning import READ_AT_ONCE, SCANNED_AT_ONCE
from ..limiter.operation import Operation, RunScript, batches, run_all
from ..limiter.script_calls import call_of
from ..limiter.setting_operations import read_weights
from ..limits.any_limit import AnyLimit
from ..store.keys import escape, key_settings_key, short, weights_key
from ..store.resp import text
from .forecast import no_worker

__all__ = [
    *("KeySettings", "asking_held_up", "asking_key_settings", "asking_weights", "count_tasks", "held_back"),
    *("readable", "weights_of"),
]

#: Settings of keys that are read of one limit.
MAX_KEYS = 20_000

#: ``"p"`` or ``"r"``, the key, and until when, in seconds since 1970.
KeySettings = list[tuple[str, str, float]]


def readable(counts: Mapping[str, LotCounts], most: float) -> dict[str, LotCounts]:
    """The limits whose lots are read: the ones with the fewest, up to so many lots in all."""
    fewest = sorted(counts, key=lambda name: counts[name].lots)
    total = accumulate(counts[name].lots for name in fewest)
    return {name: counts[name] for name, lots in zip(fewest, total, strict=True) if lots <= most}


def asking_key_settings(backlog: Backlog, names: Sequence[str]) -> Operation[dict[str, KeySettings]]:
    """Keys with a pause (``"p"``) or a rate (``"r"``) of their own, and until when, in seconds since 1970."""
    parts = batches(backlog.scripts.asker.is_cluster, names, READ_AT_ONCE)
    prefix = backlog.scripts.prefix
    calls = [([key_settings_key(prefix, name) for name in part], [MAX_KEYS]) for part in parts]
    replies = chain.from_iterable((yield from backlog.scripts.asking("keys_with_settings", *calls)))
    pairs = [(name, zip(reply[::2], reply[1::2], strict=True)) for name, reply in zip(names, replies, strict=True)]
    return {name: [(text(key)[0], text(key)[1:], float(us) / 1e6) for key, us in each] for name, each in pairs}


def asking_held_up(
    backlog: Backlog,
    queues: Mapping[str, Sequence[str]],
    lots: Mapping[str, Sequence[LotSnapshot]],
    seen: UnattendedLimitsAndQueues,
) -> Operation[dict[str, str]]:
    """Why the tasks of limits cannot start. Where no worker consumes their usual queues, the first parked task says."""
    found = {name: no_worker(some, seen.queues) for name, some in queues.items()} if backlog.can_park else {}
    unsure = [some[0] for name, some in lots.items() if some and (found[name] or not queues[name])]
    for lot in (yield from backlog.contents.asking_lots([(lot.name, lot.key) for lot in unsure], (0, 0))):
        found[lot.name] = no_worker([task.queue for task in lot.tasks if task.queue], seen.queues)
    unattended = [name for name in lots if not found[name] and not seen.attends(name)]
    return {**found, **dict.fromkeys(unattended, "no worker runs this limit")}


def held_back(
    app: Celery, weights: Mapping[str, Mapping[str, float]], lots: Mapping[str, Sequence[LotSnapshot]]
) -> dict[str, dict[str, str]]:
    """By limit and key, why tasks have no turn: their share has weight 0."""
    of_lots = [(lot, each) for name, each in weights.items() for lot in lots.get(name, ())]
    held = [((lot.name, lot.key), share) for lot, each in of_lots for share, weight in each.items() if not weight]
    found: dict[str, dict[str, str]] = {}
    for ((name, key), share), tasks in zip(held, count_tasks(app, held), strict=True):
        if tasks:
            found.setdefault(name, {})[key] = f"share {decoded(share)!r} has weight 0: its tasks are held back"
    return found


def weights_of(app: Celery, limits: Mapping[str, AnyLimit | None]) -> dict[str, dict[str, float]]:
    """By limit, the weights of shares that are set in code or store."""
    return limiter_of(app)._asker.drive(asking_weights(app, limits))


def asking_weights(app: Celery, limits: Mapping[str, AnyLimit | None]) -> Operation[dict[str, dict[str, float]]]:
    """:func:`weights_of` as an operation."""
    core = limiter_of(app)._asker.core
    keys = [weights_key(core.calls.prefix, name) for name in limits]
    replies = yield from run_all([RunScript(core.scripts.weights, call_of([key], ())) for key in keys])
    return {
        name: {escape(short(share)): each.weight for share, each in read_weights(code, reply).items()}
        for (name, code), reply in zip(limits.items(), replies, strict=True)
    }


def count_tasks(app: Celery, shares: Sequence[tuple[Bucket, str]]) -> list[int]:
    """How many tasks of each of these shares are parked."""
    scripts = backlog_of(app).scripts
    calls = [(scripts.lot_keys(bucket)[13], f"[{share}\0", f"({share}\1") for bucket, share in shares]
    pages = [calls[first : first + SCANNED_AT_ONCE] for first in range(0, len(calls), SCANNED_AT_ONCE)]
    return [int(number) for page in pages for number in scripts.commands("zlexcount", page)]
