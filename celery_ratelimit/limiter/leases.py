"""The leases of running tasks and of ``with`` blocks: renewed while they run, released at their end."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ..errors import STORE_TROUBLES
from ..forks import Ids, begin_anew_after_fork
from ..limits.concurrency import Concurrency
from ..limits.decision import Decision
from .limit_request import LimitRequest, leased
from .script_calls import LeasesToRelease

if TYPE_CHECKING:
    from .async_store import AsyncStoreRunner
    from .sync_store import StoreRunner

__all__ = ["RENEWALS", "UNKNOWN", "AsyncLeaseKeeper", "LeaseKeeper", "run_id"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Renewals of a lease during its time: two may fail before the lease is lost.
RENEWALS = 3
#: Most seconds until a failed release is tried again.
LONGEST_PAUSE = 5.0
#: Runs whose leases are released by one script.
AT_ONCE = 100
#: Later than any permit, in microseconds: a lease of unknown age counts as held for no time.
UNKNOWN = 2**53
#: Seconds that :meth:`LeaseKeeper.close` waits for its thread, which may wait for the store.
_LAST_LOOK = 5.0


def renewal_pause(demands: Sequence[LimitRequest]) -> float:
    """Seconds between two renewals of the leases of ``demands``."""
    return min(demand.limit.lease for demand in demands if isinstance(demand.limit, Concurrency)) / RENEWALS


_run_ids = Ids(8)


def run_id(task_id: str) -> str:
    """An id for one run of a task: each copy of the task has leases and permits of its own."""
    return f"{task_id}#{_run_ids()}"


class LeaseKeeper:
    """The :class:`~celery_ratelimit.Concurrency` leases of this process, by run id.

    A thread renews them, also while the worker's event loop waits for its broker. It repeats a release that failed
    because the store did not answer. The thread ends when no lease is left.

    Args:
        asker: calls the store.
    """

    def __init__(self, asker: StoreRunner) -> None:
        self._asker = asker
        self._said = ""
        self.begin_anew()
        begin_anew_after_fork(self)

    def begin_anew(self) -> None:
        """Start empty after a fork: threads do not survive it, and the leases are the parent process's."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: dict[str, LeasesToRelease] = {}
        self._ended: dict[str, LeasesToRelease] = {}
        self._pause = LONGEST_PAUSE
        self._wake: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def begin(self, id: str, demands: Sequence[LimitRequest], granted_at: int) -> None:
        """Hold and renew the leases of the run ``id``."""
        places = tuple(leased(demands))
        if not places:
            return
        self._check_process()
        with self._lock:
            self._held[id] = LeasesToRelease(id, places, granted_at)
            if self._wake is None:
                self._start()
            elif renewal_pause(places) < self._pause:
                self._wake.set()

    def end(self, id: str, *, later: bool = False, unconfirmed: Sequence[LimitRequest] = ()) -> None:
        """Release the leases of the run ``id``, which has ended, now or soon (``later``).

        Args:
            id: names the run.
            later: leave the release to :meth:`release_ended`, or to the thread.
            unconfirmed: limit requests whose reply was lost: the run may hold leases of them.

        Raises:
            StoreUnavailable, ConfigurationError: the store did not answer, or refused; the thread tries again.
        """
        places = tuple(leased(unconfirmed))
        self._check_process()
        with self._lock:
            ended = self._held.pop(id, LeasesToRelease(id, places, UNKNOWN) if places else None)
            if ended is None:
                return
            self._ended[id] = ended
            if self._wake is None:
                self._start()
        if not later:
            self._release([ended])

    def ended(self, demands: Sequence[LimitRequest]) -> list[LeasesToRelease]:
        """Ended runs that held a lease of one of these limits, and are not released yet."""
        if not self._ended:
            return []
        buckets = {(demand.name, demand.key) for demand in demands}
        with self._lock:
            ended = list(self._ended.values())
        return [each for each in ended if any((place.name, place.key) in buckets for place in each.places)]

    @property
    def has_ended(self) -> bool:
        """Whether an ended run is not released yet."""
        return bool(self._ended)

    def confirm(self, released: Sequence[LeasesToRelease]) -> None:
        """Forget these runs: the store has released their leases."""
        with self._lock:
            for each in released:
                self._ended.pop(each.id, None)

    def release_ended(self) -> None:
        """Release the leases of ended runs, in one round trip. Raises what :meth:`end` does."""
        with self._lock:
            ended = list(self._ended.values())
        for first in range(0, len(ended), AT_ONCE):
            self._release(ended[first : first + AT_ONCE])

    def close(self) -> None:
        """End the thread, which first releases ended runs. Leases of other runs last until they expire."""
        self._check_process()
        with self._lock:
            wake, thread = self._wake, self._thread
            self._wake = self._thread = None
        if wake is not None and thread is not None:
            wake.set()
            thread.join(_LAST_LOOK)

    def here(self, demand: LimitRequest) -> int:
        """The number of permits of a limit that this process holds."""
        with self._lock:
            places = [place for held in self._held.values() for place in held.places]
        return sum(place.cost for place in places if (place.name, place.key) == (demand.name, demand.key))

    def _release(self, ended: Sequence[LeasesToRelease]) -> None:
        try:
            self._asker.release(ended)
        except STORE_TROUBLES:
            raise
        except Exception:  # the store may fail at one run and succeed at the others
            if len(ended) == 1:
                raise
            errors = []
            for each in ended:
                try:
                    self._release([each])
                except Exception as error:
                    errors.append(error)
            if errors:
                raise errors[0] from None
        else:
            self.confirm(ended)

    def _check_process(self) -> None:
        """Detect a fork that ran no fork hooks of Python: some servers fork in C."""
        if self._pid != os.getpid():
            self.begin_anew()

    def _start(self) -> None:
        self._wake = wake = threading.Event()
        self._thread = threading.Thread(
            target=self._look_after, args=(wake,), name="celery_ratelimit-leases", daemon=True
        )
        self._thread.start()

    def _look_after(self, wake: threading.Event) -> None:
        while True:
            with self._lock:  # while the shortest lease is held, and no longer
                pauses = [renewal_pause(held.places) for held in self._held.values()]
                self._pause = min([LONGEST_PAUSE, *pauses])
            wake.wait(self._pause)
            wake.clear()
            for step in (self._renew, self.release_ended):
                try:
                    step()
                except STORE_TROUBLES as error:
                    logger.debug("leases not renewed or given back this time: %r", error)
                except Exception as error:  # without this thread, leases would be lost while their tasks run
                    if self._said != repr(error):  # the same error may come at each look
                        self._said = repr(error)
                        logger.error("Leases were not renewed or given back, and are tried again", exc_info=True)
            with self._lock:
                if self._wake is not wake:
                    return
                if not self._held and not self._ended:
                    self._wake = self._thread = None
                    return

    def _renew(self) -> None:
        with self._lock:
            leases = [(demand, held) for held in self._held.values() for demand in held.places]
        kept = self._asker.renew([(demand, held.id) for demand, held in leases])
        for (demand, held), is_kept in zip(leases, kept, strict=True):
            with self._lock:
                lost = not is_kept and self._held.pop(held.id, None) is not None
            if lost:
                logger.warning(
                    "The lease of %s under %r was lost while it runs: the store was out of reach for longer than %g s",
                    *(held.id, demand.name, getattr(demand.limit, "lease", 0.0)),
                )


class AsyncLeaseKeeper:
    """As :class:`~celery_ratelimit.limiter.leases.LeaseKeeper`, with a task of the event loop for each block.

    Args:
        asker: calls the store.
    """

    def __init__(self, asker: AsyncStoreRunner) -> None:
        self._asker = asker

    @asynccontextmanager
    async def held(self, decision: Decision) -> AsyncIterator[None]:
        """Hold the decision's leases while the block runs."""
        pause = renewal_pause(decision._demands)
        renewing = self._asker.start(self._keep_renewing(decision, pause))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.shield(self._asker.start(self._end(decision, pause)))

    async def _keep_renewing(self, decision: Decision, pause: float) -> None:
        leases = [(demand, decision.id) for demand in leased(decision._demands)]
        kept, said = True, ""
        while kept:
            await asyncio.sleep(pause)
            try:
                kept, said = all(await self._asker.drive(self._asker.core.renew(leases))), ""
            except STORE_TROUBLES as error:
                logger.debug("lease not renewed this time: %r", error)
            except Exception as error:  # see LeaseKeeper
                if said != repr(error):
                    said = repr(error)
                    logger.error("A lease was not renewed, and is tried again", exc_info=True)
        logger.warning(
            "The lease of %s under %s was lost while it is in use: the store was out of reach for too long",
            *(decision.id, ", ".join(repr(demand.name) for demand, _ in leases)),
        )

    async def _end(self, decision: Decision, pause: float, tries: int = RENEWALS, after: float = 0.0) -> None:
        """Release the leases, ``after`` seconds. If the store does not answer, try again until they have expired."""
        if after:
            await asyncio.sleep(after)
        core = self._asker.core
        try:
            await self._asker.drive(core.release(decision._demands, id=decision.id, granted_at=decision._granted_at))
        except STORE_TROUBLES as error:
            logger.debug("places not given back this time: %r", error)
            if tries:
                self._asker.start(self._end(decision, pause, tries - 1, pause))
