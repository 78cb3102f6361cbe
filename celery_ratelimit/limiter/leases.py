"""The leases of running tasks and of ``with`` blocks: renewed while they run, given back when they end."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from ..errors import STORE_TROUBLES
from ..forks import begin_anew_after_fork
from ..limits.concurrency import Concurrency
from ..limits.decision import Decision
from .limit_request import LimitRequest, leased
from .script_calls import Ended
from .script_operations import Ids

if TYPE_CHECKING:
    from .async_store import AsyncStoreRunner

__all__ = ["RENEWALS", "UNKNOWN", "AsyncLeaseKeeper", "LeaseKeeper", "run_id"]

logger = logging.getLogger("celery_ratelimit")

#: How often a lease is renewed in its time: two renewals may fail before it is lost.
RENEWALS = 3
#: Seconds after which places that could not be given back are tried again, at the latest.
LONGEST_PAUSE = 5.0
#: Runs whose leases are released by one script.
AT_ONCE = 100
#: Later than any permit, in microseconds: a place whose time is not known counts as held for no time.
UNKNOWN = 2**53
#: Seconds that :meth:`LeaseKeeper.close` waits for its thread, which may wait for the store.
_LAST_LOOK = 5.0


def renewal_pause(demands: Sequence[LimitRequest]) -> float:
    """Seconds after which the leases of ``demands`` are to be renewed."""
    return min(demand.limit.lease for demand in demands if isinstance(demand.limit, Concurrency)) / RENEWALS


_run_ids = Ids(8)


def run_id(task_id: str) -> str:
    """Names one run of a task. Its leases and permits are its own: another copy of the task has other ones."""
    return f"{task_id}#{_run_ids()}"


class _Asker(Protocol):
    """What is used of :class:`~celery_ratelimit.limiter.sync_store.StoreRunner`."""

    def release(self, ended: Sequence[Ended]) -> int: ...

    def renew(self, leases: Sequence[tuple[LimitRequest, str]]) -> list[bool]: ...


class LeaseKeeper:
    """Leases under :class:`~celery_ratelimit.Concurrency` that this process holds, by their ids: one id for each run.

    A thread renews them, so that a worker whose event loop waits for its broker keeps what its tasks hold. What could
    not be released, because the store did not answer, it tries again. It ends when there is nothing left to do.

    Args:
        asker: the way to the store.
    """

    def __init__(self, asker: _Asker) -> None:
        self._asker = asker
        self._said = ""
        self.begin_anew()
        begin_anew_after_fork(self)

    def begin_anew(self) -> None:
        """After a fork, which carries no threads across: the leases are the parent process's."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: dict[str, Ended] = {}
        self._ended: dict[str, Ended] = {}
        self._pause = LONGEST_PAUSE
        self._wake: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def begin(self, id: str, demands: Sequence[LimitRequest], granted_at: int) -> None:
        """The run ``id`` has got its leases."""
        places = tuple(leased(demands))
        if not places:
            return
        self._check_process()
        with self._lock:
            self._held[id] = Ended(id, places, granted_at)
            if self._wake is None:
                self._start()
            elif renewal_pause(places) < self._pause:
                self._wake.set()

    def end(self, id: str, *, later: bool = False, unconfirmed: Sequence[LimitRequest] = ()) -> None:
        """The run ``id`` has ended, however it did: its leases are released now, or soon (``later``).

        Args:
            id: names the run.
            later: leave it to :meth:`release_ended`, and if that is not called, to the thread.
            unconfirmed: demands whose answer was lost: the run may hold leases of them.

        Raises:
            StoreUnavailable, ConfigurationError: the store did not answer, or refused; it is done later.
        """
        places = tuple(leased(unconfirmed))
        self._check_process()
        with self._lock:
            ended = self._held.pop(id, Ended(id, places, UNKNOWN) if places else None)
            if ended is None:
                return
            self._ended[id] = ended
            if self._wake is None:
                self._start()
        if not later:
            self._release([ended])

    def ended(self, demands: Sequence[LimitRequest]) -> list[Ended]:
        """What has ended and is not released yet, of runs that held a lease of one of these limits."""
        if not self._ended:
            return []
        buckets = {(demand.name, demand.key) for demand in demands}
        with self._lock:
            ended = list(self._ended.values())
        return [each for each in ended if any((place.name, place.key) in buckets for place in each.places)]

    @property
    def has_ended(self) -> bool:
        """Whether something has ended that is not released yet."""
        return bool(self._ended)

    def confirm(self, released: Sequence[Ended]) -> None:
        """The store has said that these are released: nothing is left to do."""
        with self._lock:
            for each in released:
                self._ended.pop(each.id, None)

    def release_ended(self) -> None:
        """Release what has ended, in one round trip. Raises what :meth:`end` does."""
        with self._lock:
            ended = list(self._ended.values())
        for first in range(0, len(ended), AT_ONCE):
            self._release(ended[first : first + AT_ONCE])

    def close(self) -> None:
        """End the thread, which first gives back what has ended. What is still held is held until its lease is over."""
        self._check_process()
        with self._lock:
            wake, thread = self._wake, self._thread
            self._wake = self._thread = None
        if wake is not None and thread is not None:
            wake.set()
            thread.join(_LAST_LOOK)

    def here(self, demand: LimitRequest) -> int:
        """How many leases of a limit this process holds."""
        with self._lock:
            return sum(demand in held.places for held in self._held.values())

    def _release(self, ended: Sequence[Ended]) -> None:
        try:
            self._asker.release(ended)
        except STORE_TROUBLES:
            raise
        except Exception:  # what the store cannot do for one of them it may do for the others
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
        """A server may fork without telling Python."""
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
                except Exception as error:  # without this thread, places would be lost while their tasks run
                    if self._said != repr(error):  # which may come at each look
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
        asker: the way to the store.
    """

    def __init__(self, asker: AsyncStoreRunner) -> None:
        self._asker = asker

    @asynccontextmanager
    async def held(self, decision: Decision) -> AsyncIterator[None]:
        """Its places are held for as long as the block runs."""
        pause = renewal_pause(decision.demands)
        renewing = self._asker.start(self._keep_renewing(decision, pause))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.shield(self._asker.start(self._end(decision, pause)))

    async def _renew(self, decision: Decision) -> bool:
        leases = [(demand, decision.id) for demand in leased(decision.demands)]
        return all(await self._asker.drive(self._asker.core.renew(leases)))

    async def _release(self, decision: Decision) -> None:
        core = self._asker.core
        await self._asker.drive(core.release(decision.demands, id=decision.id, granted_at=decision.granted_at))

    async def _keep_renewing(self, decision: Decision, pause: float) -> None:
        kept, said = True, ""
        while kept:
            await asyncio.sleep(pause)
            try:
                kept, said = await self._renew(decision), ""
            except STORE_TROUBLES as error:
                logger.debug("lease not renewed this time: %r", error)
            except Exception as error:  # see LeaseKeeper
                if said != repr(error):
                    said = repr(error)
                    logger.error("A lease was not renewed, and is tried again", exc_info=True)
        logger.warning(
            "The lease of %s under %s was lost while it is in use: the store was out of reach for too long",
            *(decision.id, ", ".join(repr(demand.name) for demand in leased(decision.demands))),
        )

    async def _end(self, decision: Decision, pause: float, tries: int = RENEWALS) -> None:
        """Give the places back; if the store does not answer, later, until they have expired by themselves."""
        try:
            await self._release(decision)
        except STORE_TROUBLES as error:
            logger.debug("places not given back this time: %r", error)
            if tries:
                self._asker.start(self._end_later(decision, pause, tries - 1))

    async def _end_later(self, decision: Decision, pause: float, tries: int) -> None:
        await asyncio.sleep(pause)
        await self._end(decision, pause, tries)
