"""The leases of running tasks and of ``with`` blocks: renewed while they run, given back when they end."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import STORE_TROUBLES
from ..limits.concurrency import Concurrency
from .calls import Ended
from .demand import Demand, leased

__all__ = ["RENEWALS", "UNKNOWN", "Leases", "renewal_pause"]

logger = logging.getLogger("celery_ratelimit")

#: How often a lease is renewed in its time: two renewals may fail before it is lost.
RENEWALS = 3
#: Seconds after which places that could not be given back are tried again, at the latest.
LONGEST_PAUSE = 5.0
#: Later than any permit, in microseconds: a place whose time is not known counts as held for no time.
UNKNOWN = 2**53
#: Seconds that :meth:`Leases.close` waits for its thread, which may wait for the store.
_LAST_LOOK = 5.0


def renewal_pause(demands: Sequence[Demand]) -> float:
    """Seconds after which the leases of ``demands`` are to be renewed."""
    return min(demand.limit.lease for demand in demands if isinstance(demand.limit, Concurrency)) / RENEWALS


class _Asker(Protocol):
    """What is used of :class:`~celery_ratelimit.limiter.asker.Asker`."""

    def release(self, demands: Sequence[Demand], *, id: str, granted_at: int) -> bool: ...

    def renew(self, leases: Sequence[tuple[Demand, str]]) -> list[bool]: ...


@dataclass(frozen=True, slots=True)
class _Held:
    demands: tuple[Demand, ...]
    granted_at: int


class Leases:
    """Places under :class:`~celery_ratelimit.Concurrency` that this process holds, by holder.

    A thread renews them, so that a worker whose event loop waits for its broker keeps what its tasks hold. What could
    not be given back, because the store did not answer, it tries again. It ends when there is nothing left to do.

    Args:
        asker: the way to the store.
    """

    def __init__(self, asker: _Asker) -> None:
        self._asker = asker
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._ended: dict[str, _Held] = {}
        self._pause = LONGEST_PAUSE
        self._pid = 0
        self._wake: threading.Event | None = None
        self._thread: threading.Thread | None = None
        self._said = ""

    def begin(self, holder: str, demands: Sequence[Demand], granted_at: int) -> None:
        """``holder`` has got its places."""
        places = tuple(leased(demands))
        if not places:
            return
        pause = renewal_pause(places)
        with self._lock:
            if self._pid != os.getpid():  # the first, here or after a fork, which carries no threads across
                self._pid, self._wake = os.getpid(), None
                self._held.clear()
                self._ended.clear()
            self._ended.pop(holder, None)
            self._held[holder] = _Held(places, granted_at)
            sooner, self._pause = pause < self._pause, min(pause, self._pause)
            if self._wake is None:
                self._start()
            elif sooner:
                self._wake.set()

    def end(self, holder: str, *, later: bool = False) -> None:
        """``holder`` has ended, however it did: its places are free, now or when the thread comes to it (``later``).

        Raises:
            StoreUnavailable, ConfigurationError: the store did not answer, or refused; it is done later.
        """
        with self._lock:
            held = self._held.pop(holder, None)
            if held is not None:
                self._ended[holder] = held
        if held is not None and not later:
            self._release(holder, held)

    def give_back(self, holder: str) -> None:
        """What was left to the thread, now. Raises what :meth:`end` does."""
        held = self._ended.get(holder)
        if held is not None:
            self._release(holder, held)

    def ended(self, holder: str) -> Ended | None:
        """The places that ``holder`` held, whose giving back is left to the thread; ``None``: none are."""
        held = self._ended.get(holder)
        return None if held is None else Ended(holder, held.demands, held.granted_at)

    def given_back(self, ended: Ended) -> None:
        """Somebody has done it: there is nothing left to do for the thread."""
        with self._lock:
            held = self._ended.get(ended.id)
            if held is not None and held.demands is ended.places:
                del self._ended[ended.id]

    def close(self) -> None:
        """End the thread, which first gives back what has ended. What is still held is held until its lease is over."""
        with self._lock:
            wake, thread = self._wake, self._thread
            self._wake = self._thread = None
        if wake is not None and thread is not None and self._pid == os.getpid():
            wake.set()
            thread.join(_LAST_LOOK)

    def here(self, demand: Demand) -> int:
        """How many places of a limit this process holds."""
        with self._lock:
            return sum(demand in held.demands for held in self._held.values())

    def _release(self, holder: str, held: _Held) -> None:
        if self._ended.get(holder) is not held:
            return  # it has begun again meanwhile
        self._asker.release(held.demands, id=holder, granted_at=held.granted_at)
        with self._lock:
            if self._ended.get(holder) is held:
                del self._ended[holder]

    def _start(self) -> None:
        self._wake = wake = threading.Event()
        self._thread = threading.Thread(
            target=self._look_after, args=(wake,), name="celery_ratelimit-leases", daemon=True
        )
        self._thread.start()

    def _look_after(self, wake: threading.Event) -> None:
        while True:
            wake.wait(self._pause)
            wake.clear()
            for step in (self._renew, self._release_ended):
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

    def _release_ended(self) -> None:
        with self._lock:
            ended = list(self._ended.items())
        for holder, held in ended:
            self._release(holder, held)

    def _renew(self) -> None:
        with self._lock:
            leases = [(demand, holder, held) for holder, held in self._held.items() for demand in held.demands]
        kept = self._asker.renew([(demand, holder) for demand, holder, _ in leases])
        for (demand, holder, held), is_kept in zip(leases, kept, strict=True):
            with self._lock:
                lost = not is_kept and self._held.get(holder) is held
                if lost:
                    del self._held[holder]
            if lost:
                logger.warning(
                    "The lease of %s under %r was lost while it runs: the store was out of reach for longer than %g s",
                    *(holder, demand.name, getattr(demand.limit, "lease", 0.0)),
                )
