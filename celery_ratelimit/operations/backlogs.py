"""Reads what is parked for limits, and what may hold it up; in round trips that do not grow with their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from celery import Celery

from ..app.state import limiter_of
from ..backlog.backlog import Backlog, backlog_of
from ..backlog.fleet_registry import UnattendedLimitsAndQueues
from ..backlog.messages import Bucket, LotSnapshot, decoded
from ..backlog.tuning import SCANNED_AT_ONCE
from ..limiter.operation import RunScript, run_all
from ..limiter.script_calls import call_of
from ..limiter.stored_settings import read_weights
from ..limits.any_limit import AnyLimit
from ..store.keys import escape, key_settings_key, short, weights_key
from ..store.resp import text
from .forecast import no_worker

__all__ = ["count_tasks", "held_back", "held_up", "key_settings", "parking_lots", "weights_of"]

#: Settings of keys that are read of one limit.
MAX_KEYS = 20_000


def parking_lots(backlog: Backlog, counts: Mapping[str, tuple[int, int]], left: float) -> dict[str, list[LotSnapshot]]:
    """The lots of these limits that have tasks: of as many limits as may be read."""
    found: dict[str, list[LotSnapshot]] = {}
    for name, (number, _) in sorted(counts.items(), key=lambda each: each[1]):
        left -= number
        if left >= 0:
            found[name] = []
    for lot in backlog.contents.lots(list(found)):
        if lot.parked:
            found[lot.name].append(lot)
    return found


def key_settings(backlog: Backlog, names: Sequence[str]) -> dict[str, list[tuple[str, str, float]]]:
    """Keys with a pause (``"p"``) or a rate (``"r"``) of their own, and until when, in seconds since 1970."""
    if not names or not backlog.can_park:
        return {}
    calls = [(key_settings_key(backlog.scripts.prefix, name), 0, MAX_KEYS, False, True) for name in names]
    replies = zip(names, backlog.scripts.commands("zrange", calls), strict=True)
    return {name: [(text(each)[0], text(each)[1:], float(us) / 1e6) for each, us in reply] for name, reply in replies}


def held_up(
    backlog: Backlog,
    queues: Mapping[str, Sequence[str]],
    lots: Mapping[str, Sequence[LotSnapshot]],
    seen: UnattendedLimitsAndQueues,
) -> dict[str, str]:
    """Why the tasks of limits cannot start. Where no worker consumes their usual queues, the first parked task says."""
    found = {name: no_worker(some, seen.queues) for name, some in queues.items()} if backlog.can_park else {}
    unsure = [some[0] for name, some in lots.items() if some and (found[name] or not queues[name])]
    for lot in backlog.contents.first_tasks([(lot.name, lot.key) for lot in unsure]):
        found[lot.name] = no_worker([task.queue for task in lot.tasks if task.queue], seen.queues)
    unattended = [name for name in lots if not found[name] and not seen.attends(name)]
    return {**found, **dict.fromkeys(unattended, "no worker runs this limit")}


def held_back(
    app: Celery, limits: Mapping[str, AnyLimit | None], lots: Mapping[str, Sequence[LotSnapshot]]
) -> dict[str, dict[str, str]]:
    """By limit and key, why tasks have no turn: their share has weight 0."""
    fair = {name: limits[name] for name, some in lots.items() if some and getattr(limits[name], "fair", None)}
    weights = [(lot, each) for name, each in weights_of(app, fair).items() for lot in lots[name]]
    held = [((lot.name, lot.key), share) for lot, each in weights for share, weight in each.items() if not weight]
    found: dict[str, dict[str, str]] = {}
    for ((name, key), share), tasks in zip(held, count_tasks(app, held), strict=True):
        if tasks:
            found.setdefault(name, {})[key] = f"share {decoded(share)!r} has weight 0: its tasks are held back"
    return found


def weights_of(app: Celery, limits: Mapping[str, AnyLimit | None]) -> dict[str, dict[str, float]]:
    """By limit, the weights of shares that are set in code or store."""
    asker = limiter_of(app)._asker
    keys = [weights_key(asker.prefix, name) for name in limits]
    replies = asker.drive(run_all([RunScript(asker.core.scripts.weights, call_of([key], ())) for key in keys]))
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
