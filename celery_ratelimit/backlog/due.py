"""Which lots one worker has to look after now."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from functools import partial

from ..app.plan import AppLimits
from .backlog import Backlog
from .backlog_queries import LOTS
from .messages import Bucket, Looked
from .poll_backoff import Pace
from .store_calls import Asks

__all__ = ["LOOK", "DueLots"]

#: Seconds between two looks for lots that are due: of a worker that finds some, and of one of very many.
LOOK, SELDOM = 0.2, 2.0
#: Seconds between two such looks, on average, where nobody is parked at all: then the bell is rung for the first one.
IDLE = 20.0
#: Seconds for which a worker that lets tasks out of lots goes on with these, and does not ask which others are due.
OWN = 0.5


class DueLots:
    """The lots of one worker's limits that are due, as far as it has heard.

    Whoever lets tasks out of a lot goes on with it. Others find that it is not due, and look less often.

    Args:
        parking: the lots.
        limits: by name.

    Attributes:
        are_there_any: anybody is parked, as far as it is known.
    """

    def __init__(self, parking: Backlog, limits: AppLimits) -> None:
        self._parking, self._limits = parking, limits
        self._due: dict[Bucket, None] = {}
        self._own: dict[Bucket, float] = {}  # those that this worker lets tasks out of: when they are due
        self._asks_for_all = self._asks_again = 0.0
        self._are_more = False
        self._pace = Pace(LOOK, SELDOM)
        self.are_there_any = True  # as long as nobody has looked

    def __bool__(self) -> bool:
        return bool(self._due)

    def pause(self) -> float:
        """Seconds until the next look."""
        return self._pace.pause(self._parking.register.workers)

    @property
    def are_asked_for(self) -> bool:
        """Whether it is time to ask though nobody is parked."""
        return time.monotonic() >= self._asks_again

    def are_new(self) -> None:
        """There is a lot that was not there."""
        self._asks_for_all = 0.0

    def looks(self, *, are_seen_to: bool = False) -> Asks[bool]:
        """Those of which the worker knows that they are due; or, now and then, those of which the store says so.

        Args:
            are_seen_to: some worker lets tasks out of these lots. If it is another one, the store is not asked.

        Returns:
            Whether it has looked.
        """
        now = time.monotonic()
        own = [bucket for bucket, at in self._own.items() if at <= now]
        if own and now < self._asks_for_all:
            self._due.update(dict.fromkeys(own))
            return True
        if are_seen_to and not self._own and self._asks_for_all:
            self._pace.found(False)
            return False
        self._asks_again = 0.0  # until there is an answer
        yield from self._ask()
        if not self._due:
            self._pace.found(False)
        return True

    def looks_for_more(self) -> Asks[None]:
        """The store has not said all."""
        if not self._due and self._are_more:
            yield from self._ask()

    def first(self) -> Sequence[Bucket]:
        return list(itertools.islice(self._due, LOTS))

    def note(self, looked: Sequence[Looked]) -> None:
        """What came of a look at some of them."""
        self._pace.found(any(each.leaving or each.again == 0 for each in looked))
        for each in looked:
            self._due.pop(each.bucket, None)
            self._own.pop(each.bucket, None)
            if each.again is None:
                continue
            if each.again <= 0:
                self._due[each.bucket] = None  # behind the others
            elif each.leaving and len(self._own) < LOTS:
                self._own[each.bucket] = time.monotonic() + each.again

    def clear(self) -> None:
        self._due.clear()
        self._own.clear()

    def _ask(self) -> Asks[None]:
        before, self._asks_for_all = self._asks_for_all, time.monotonic() + OWN  # there may be a new lot meanwhile
        try:
            due = yield partial(self._parking.due, list(self._limits.names))
        except BaseException:
            self._asks_for_all = min(before, self._asks_for_all)  # or there is a new lot
            raise
        self._asks_again = time.monotonic() + random.uniform(0.75, 1.25) * IDLE
        self.are_there_any = due is not None
        self._due.update(dict.fromkeys(due or ()))
        self._are_more = len(self._due) >= LOTS
