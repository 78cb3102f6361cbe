"""One look at the store for all browsers, and none while no page is open."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from ..errors import STORE_TROUBLES, RateLimitError
from ..operations.wording import store_lost
from ..words import clock
from .connections import MOST_CONNECTIONS

__all__ = ["BUSY", "MOST_VIEWERS", "PAUSE", "Poller"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Seconds between two looks; and how many times as long as this process has worked for a look, if that is longer:
#: no more than a twentieth of a core is used, however many limits there are. (A broker that lets it wait is no work.)
PAUSE, BUSY = 2.5, 20.0
#: Pages that may be open at once, and seconds after which each has to ask anew, with its identity.
MOST_VIEWERS, LASTS = min(200, MOST_CONNECTIONS // 2), 3600.0
#: Seconds after which something is said, so that it is noticed if a browser is gone.
_SILENCE = 15.0
#: Events that a browser may be behind, before it has to ask anew.
_BEHIND = 8

#: What is shown, in parts by name; only changed parts are sent.
Parts = Mapping[str, Any]


class _Subject:
    """What some pages show: its last parts, and the open pages."""

    def __init__(self) -> None:
        self.parts: Parts | None = None
        self.viewers: set[asyncio.Queue[bytes | None]] = set()


class Poller:
    """PageData at subjects, as long as a page shows them: ``""`` are all limits, else one by its name.

    Args:
        look: at a subject, on a thread; raises what asking the store may raise.
        store: the store's address, for people.
    """

    def __init__(self, look: Callable[[str], Parts], store: str) -> None:
        self._look, self._store = look, store
        self._subjects: dict[str, _Subject] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_new = asyncio.Event()
        self._trouble: str | None = None
        self._worked = 0.0

    async def events(self, name: str) -> AsyncGenerator[bytes, None]:
        """What is to be shown of a subject, and each change of it."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(_BEHIND)
        subject = self._subjects.setdefault(name, _Subject())
        subject.viewers.add(queue)
        if subject.parts is not None and self._trouble is None:
            queue.put_nowait(self._event(subject.parts, whole=True))
        else:
            self._is_new.set()
        if self._task is None:
            self._task = asyncio.ensure_future(self._poll())
        ends = time.monotonic() + LASTS
        try:
            yield b"retry: 2000\n\n"
            while time.monotonic() < ends:
                try:
                    event = await asyncio.wait_for(queue.get(), _SILENCE)
                except asyncio.TimeoutError:
                    event = b": \n\n"
                if event is None:
                    return
                yield event
        finally:
            subject.viewers.discard(queue)
            if not subject.viewers and self._subjects.get(name) is subject:
                del self._subjects[name]

    def close(self) -> None:
        """End all streams: the server ends."""
        for subject in self._subjects.values():
            for queue in subject.viewers:
                _leave(queue)

    async def _poll(self) -> None:
        try:
            again = 0.0
            while self._subjects:
                self._is_new.clear()
                began = time.monotonic()
                is_time = began >= again
                for name, subject in list(self._subjects.items()):
                    if is_time or subject.parts is None:
                        await self._look_at(name)
                if is_time:
                    again = began + max(PAUSE, BUSY * self._worked)
                    self._worked = 0.0
                try:  # the first page of a subject need not wait for the next look
                    await asyncio.wait_for(self._is_new.wait(), max(0.0, again - time.monotonic()))
                except asyncio.TimeoutError:
                    pass
        finally:
            self._task = None

    async def _look_at(self, name: str) -> None:
        try:
            parts = await asyncio.to_thread(self._timed, name)
        except STORE_TROUBLES as error:
            self._tell_of(store_lost(self._store, error))
        except RateLimitError as error:
            self._tell_of(str(error), name)
        except Exception:
            logger.exception("What the page shows of %r cannot be read", name)
            self._tell_of("what is to be shown cannot be read: see the log of this server", name)
        else:
            self._trouble = None
            subject = self._subjects.get(name)
            if subject is not None:
                before, subject.parts = subject.parts, parts
                self._send(subject, self._event(parts, before))

    def _timed(self, name: str) -> Parts:
        began = time.thread_time()
        try:
            return self._look(name)
        finally:
            self._worked += time.thread_time() - began

    def _tell_of(self, trouble: str, name: str | None = None) -> None:
        """Report trouble to the pages that it concerns; afterwards all parts are sent again."""
        if name is None:
            self._trouble = trouble
        for each, subject in self._subjects.items():
            if name in (None, each):
                subject.parts = None
                self._send(subject, _wire({"trouble": trouble}))

    def _event(self, parts: Parts, before: Parts | None = None, *, whole: bool = False) -> bytes:
        before = {} if whole or before is None else before
        changed = {name: part for name, part in parts.items() if part != before.get(name)}
        gone = [name for name in before if name not in parts]
        return _wire({"whole": not before, "at": clock(time.time()), "parts": changed, "gone": gone})

    def _send(self, subject: _Subject, event: bytes) -> None:
        for queue in list(subject.viewers):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:  # it asks anew, and is told all
                subject.viewers.discard(queue)
                _leave(queue)


def _leave(queue: asyncio.Queue[bytes | None]) -> None:
    while not queue.empty():
        queue.get_nowait()
    queue.put_nowait(None)


def _wire(said: Mapping[str, Any]) -> bytes:
    """An event. Nothing but ASCII: a text cannot end it, whatever is in it."""
    return b"data: " + json.dumps(said, separators=(",", ":")).encode() + b"\n\n"
