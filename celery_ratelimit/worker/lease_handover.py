"""Places of tasks that have ended go on to those that wait: they are given back in the step in which the next ones ask.

So a place is not empty between two tasks, and two round trips are one.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from ..limiter.calls import Ended
from ..limiter.demand import Demand
from ..limiter.leases import Leases
from ..limiter.outage import Outage

__all__ = ["LeaseHandover"]

logger = logging.getLogger("celery_ratelimit")


class LeaseHandover:
    """What one worker's tasks have held, until it is given back.

    Args:
        leases: keeps the places; what is not given back by anybody, its thread gives back.
        outage: of their store.
    """

    def __init__(self, leases: Leases, outage: Outage) -> None:
        self._leases, self._outage = leases, outage
        self._ended: dict[str, None] = {}

    def add(self, id: str) -> None:
        """A task has ended. Raises nothing: the others go their way."""
        try:
            self._leases.end(id, later=True)
        except Exception as error:
            _say(id, error)
        if not self._outage:  # else the leases' thread comes to it
            self._ended[id] = None

    def releases_for(self, demands: Sequence[Demand]) -> list[Ended]:
        """What is given back with a question for these."""
        if not self._ended:
            return []
        buckets = {(demand.name, demand.key) for demand in demands}
        ended = [each for id in self._ended if (each := self._leases.ended(id)) is not None]
        return [each for each in ended if any((place.name, place.key) in buckets for place in each.places)]

    def confirm(self, ended: Sequence[Ended]) -> None:
        """The store has said so."""
        for each in ended:
            self._leases.given_back(each)
            self._ended.pop(each.id, None)

    def release_remaining(self) -> None:
        """Nobody here has asked for these places: they are free."""
        while self._ended:
            id, _ = self._ended.popitem()
            try:
                self._outage.ask(partial(self._leases.give_back, id), None)
            except Exception as error:
                _say(id, error)


def _say(id: str, error: Exception) -> None:
    logger.error("Places of %s are given back later: %r", id, error, exc_info=error)
