"""Splits a decision by a cluster's hash slots, and joins the replies of the parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..limits.decision import GrantedAt
from ..store.cluster import slot_of
from ..store.keys import hash_tag
from .limit_request import LimitRequest

__all__ = ["Part", "Reply", "joint", "parts_of"]


class Part(NamedTuple):
    """The limit requests of one hash slot, and their positions among all."""

    places: tuple[int, ...]
    demands: tuple[LimitRequest, ...]


def parts_of(demands: Sequence[LimitRequest]) -> tuple[Part, ...]:
    """The parts of a decision, in the order of their calls; none where one script sees all limits."""
    slots: dict[int, list[int]] = {}
    for place, demand in enumerate(demands):
        slots.setdefault(slot_of(hash_tag(demand.name)), []).append(place)
    if len(slots) < 2:
        return ()
    return tuple(Part(tuple(slots[slot]), tuple([demands[place] for place in slots[slot]])) for slot in sorted(slots))


class Reply:
    """A script's reply about one part; see ``lua/include/reply.lua``."""

    def __init__(self, reply: Sequence[int], number: int) -> None:
        self.allowed, self.wait, self.binding, self.at = reply[:4]
        states, stored = reply[4 : 4 + 2 * number], reply[4 + 2 * number :]
        self.states = [states[2 * i : 2 * i + 2] for i in range(number)]
        self.stored = [stored[4 * i : 4 * i + 4] for i in range(number)] if stored else []


def joint(parts: Sequence[Part], replies: Sequence[Reply], said_no: int | None = None) -> list[int]:
    """Join the parts' replies into one, in the order of the limit requests."""
    allowed, wait, binding = 1, max(reply.wait for reply in replies), 0
    if said_no is None and any(reply.allowed != 1 for reply in replies):
        said_no = max(range(len(replies)), key=lambda i: (replies[i].binding > 0, replies[i].wait))
    if said_no is not None:
        allowed = min(0, replies[said_no].allowed)
        if replies[said_no].binding or wait:
            binding = 1 + parts[said_no].places[max(0, replies[said_no].binding - 1)]
    number = sum(len(part.places) for part in parts)
    states: list[Sequence[int]] = [()] * number
    stored: list[Sequence[int]] = [()] * number
    for part, reply in zip(parts, replies, strict=True):
        for i, place in enumerate(part.places):
            states[place] = reply.states[i]
            stored[place] = reply.stored[i] if reply.stored else _as_written(part.demands[i])
    tail = stored if any(reply.stored for reply in replies) else []
    at = {demand.name: reply.at for part, reply in zip(parts, replies, strict=True) for demand in part.demands}
    head = [allowed, wait, binding, GrantedAt(at)]
    return head + [value for each in (*states, *tail) for value in each]


def _as_written(demand: LimitRequest) -> tuple[int, int, int, int]:
    """Burst, count, period and 0, as the code has them: nothing is stored for the limit."""
    _, count, period, burst, _, _ = demand.limit.wire(demand.cost)
    return int(burst), int(count), int(period), 0
