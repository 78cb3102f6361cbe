"""When one worker asks the store for tasks that are due, and how it makes buckets due earlier after a change.

A poll follows a poll after a pause: the worker that finds tasks polls again soon, the others ever more seldom, so that
a fleet of any size asks about as often as one worker (:class:`DueBuckets`). A notification ends the pause
(:class:`PollTimer`). A changed limit, and a queue that is consumed again, make buckets due earlier
(:class:`Rescheduler`).
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from .._celery import Worker
from ..app.app_limits import AppLimits
from ..limiter.limit_request import LimitRequest
from ..store_calls.outage import Outage
from ..store_calls.store_calls import Asks, CallGeneratorRunner, Reply, StoreCalls
from . import tuning
from .backlog import Backlog
from .messages import Bucket, PollResult

__all__ = ["DueBuckets", "PollTimer", "Rescheduler"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


class DueBuckets:
    """The buckets of one worker's limits that are due, as far as the worker has heard.

    ``any_parked``: tasks are parked, as far as it is known.
    """

    def __init__(self, backlog: Backlog, limits: AppLimits) -> None:
        self._backlog, self._limits = backlog, limits
        self._due: dict[Bucket, None] = {}
        self._asks_again = 0.0
        self._are_more = False
        self._pause = tuning.POLL_INTERVAL
        self.any_parked: bool = True  # until the first poll

    def __bool__(self) -> bool:
        return bool(self._due)

    def pause(self) -> float:
        """Seconds until the next poll: for a worker that finds nothing, so many that the fleet asks often enough."""
        pause = min(self._pause, tuning.POLL_INTERVAL * self._backlog.register.workers)
        return max(tuning.POLL_INTERVAL, pause * _jitter())

    @property
    def must_ask(self) -> bool:
        """Whether it is time to ask though nothing is parked."""
        return time.monotonic() >= self._asks_again

    def find(self) -> Asks[None]:
        """Ask the store which buckets are due."""
        self._asks_again = 0.0  # until there is an answer
        due = yield partial(self._backlog.due, list(self._limits.names))
        self._asks_again = time.monotonic() + tuning.REST_INTERVAL * _jitter()
        self.any_parked = due is not None
        self._due.update(dict.fromkeys(due or ()))
        self._are_more = len(self._due) >= tuning.READ_AT_ONCE
        if not self._due:
            self._back_off(found=False)

    def find_more(self) -> Asks[None]:
        """Ask again if the last reply was full."""
        if not self._due and self._are_more:
            yield from self.find()

    def first(self) -> Sequence[Bucket]:
        return list(itertools.islice(self._due, tuning.READ_AT_ONCE))

    def note(self, looked: Sequence[PollResult]) -> None:
        """Note what left some of these buckets, and which of them are due again at once."""
        self._back_off(found=any(each.leaving or each.again == 0 for each in looked))
        for each in looked:
            self._due.pop(each.bucket, None)
            if each.again is not None and each.again <= 0:
                self._due[each.bucket] = None  # behind the others

    def clear(self) -> None:
        self._due.clear()

    def _back_off(self, *, found: bool) -> None:
        self._pause = tuning.POLL_INTERVAL if found else min(2 * self._pause, tuning.MAX_POLL_INTERVAL)


def _jitter() -> float:
    return random.uniform(1 - tuning.JITTER, 1 + tuning.JITTER)


class PollTimer:
    """Runs the polls of one worker, one after the other.

    Args:
        poll: gets a time to end at; its result is False if there is more to do after that.
        pause: seconds until the next poll, if there is not.
        may_poll: whether a poll may begin now.
    """

    def __init__(
        self,
        worker: Worker,
        outage: Outage,
        calls: StoreCalls,
        poll: Callable[[float], Asks[bool]],
        pause: Callable[[], float],
        may_poll: Callable[[float], bool],
    ) -> None:
        self._worker, self._outage, self._calls = worker, outage, calls
        self._poll, self._pause, self._may_poll = poll, pause, may_poll
        self._cancel: Callable[[], None] | None = None
        self._soon = self._again = self._is_polling = False
        self._run: CallGeneratorRunner[bool] | None = None

    @property
    def is_running(self) -> bool:
        """Whether there are polls, now and then."""
        return self._cancel is not None

    def begin(self, seconds: float) -> None:
        """The next poll begins in so many seconds."""
        if self._cancel is not None:
            self._cancel()
        self._cancel = self._worker.timers.call_after(seconds, self._now)

    def soon(self, seconds: float) -> None:
        """The next poll begins in so many seconds, if there are polls and none was to begin soon."""
        if self._cancel is not None and not self._soon:
            self._soon = True
            self.begin(seconds)

    def end(self) -> None:
        """No poll begins any more. A reply that is on its way is heard: tasks may have left the backlog."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        run, self._run, self._is_polling = self._run, None, False
        if run is not None:
            run.end()

    def _now(self) -> None:
        self._cancel, self._soon = self._worker.timers.call_after(tuning.QUIET_POLL_INTERVAL, self._now), False
        if self._is_polling:  # the last one waits for a reply
            self._again = True
            return
        now = time.monotonic()
        if self._outage or not self._may_poll(now):
            self._go_on(done=True)
            return
        self._is_polling = True
        run = self._calls.run(self._poll(now + tuning.TURN), self._on_end)
        self._run = run if self._is_polling else None

    def _on_end(self, reply: Reply[bool]) -> None:
        self._run, self._is_polling = None, False
        self._go_on(done=self._outage.read(reply.get, True))

    def _go_on(self, *, done: bool) -> None:
        """If there is more to do, the rest of the worker has a turn, and then this goes on."""
        again, self._again = self._again or not done, False
        if self._cancel is not None and not self._soon:  # else it was ended, or a task was parked meanwhile
            self.begin(tuning.NEXT_TURN if again else self._pause())


class Rescheduler:
    """Makes the buckets of limits due earlier, in steps: some in each turn of the worker's loop.

    The limits take turns. Of two states of a step the lesser asks for more. A step is taken out before the store is
    asked, and put back if the store does not answer. So a change that comes meanwhile is kept: greenlets switch, and
    Celery's loop may be nested.
    """

    def __init__(self, worker: Worker, parking: Backlog, limits: AppLimits, outage: Outage) -> None:
        self._worker, self._parking, self._limits, self._outage = worker, parking, limits, outage
        self._to_do: dict[tuple[Callable[[str, Any], Any], str], Any] = {}  # a step and a limit's name -> the state
        self._woken_at: dict[str, int] = {}
        self._known = 0  # limits that were woken and recalled when this worker came to have them
        self._cancel: Callable[[], None] | None = None

    def begin(self) -> None:
        """Wake and recall limits that this worker has come to have: other workers' code may have other limits."""
        if len(self._limits) > self._known:
            self._known = len(self._limits)
            self._add(self._find, "", False)

    def wake(self, names: Iterable[str]) -> None:
        """What is stored for these limits has changed: their buckets may be due earlier than was foreseen."""
        for name in names:
            if name in self._limits:
                self._add(self._wake, name, self._woken_at.get(name, 0))

    def has_another_code(self, name: str) -> None:
        """The worker that polled buckets of this limit last had another limit in its code."""
        self._add(self._wake, name, -1)

    def recall(self) -> None:
        """Queues are consumed again: tasks that are aside for them are due."""
        self._add(self._find, "", True)

    def close(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        self._to_do.clear()
        self._known = 0

    def _add(self, step: Callable[[str, Any], Any], name: str, state: Any) -> None:
        if self._parking.can_park:
            self._to_do[step, name] = min(state, self._to_do.get((step, name), state))
            if self._cancel is None:
                self._cancel = self._worker.timers.call_after(tuning.NEXT_TURN, self._in_steps)

    def _in_steps(self) -> None:
        self._cancel = None
        self._outage.ask(lambda: self._some_steps(time.monotonic() + tuning.TURN), None)
        if self._to_do and self._cancel is None:
            pause = tuning.POLL_INTERVAL if self._outage else tuning.NEXT_TURN
            self._cancel = self._worker.timers.call_after(pause, self._in_steps)

    def _some_steps(self, until: float) -> None:
        while self._to_do and not self._outage and time.monotonic() < until:
            step, name = next(iter(self._to_do))
            state = self._to_do.pop((step, name))
            try:
                state = step(name, state)
            except BaseException:
                self._add(step, name, state)
                raise
            if state is not None:
                self._add(step, name, state)

    # -- Steps: each returns the state for the next step, or None ---------------------------------------------------

    def _find(self, _: str, only_recall: bool) -> None:
        """Find the limits with parked tasks."""
        names = list(self._parking.contents.counts(self._limits.names))
        for name in () if only_recall else names:
            self._add(self._wake, name, 0)
        for name in names:
            self._add(self._recall, name, ("", 0))

    def _wake(self, name: str, since: int) -> int | None:
        now, more = self._parking.wake(LimitRequest(self._limits[name], name), since)
        if more:
            return -1  # it has changed, and not all buckets are due yet
        self._woken_at[name] = now
        return None

    def _recall(self, name: str, reached: tuple[str, int]) -> tuple[str, int] | None:
        key, offset = reached
        after, offset = self._parking.register.recall(name, key or None, offset)
        return None if after is None else (after, offset)
