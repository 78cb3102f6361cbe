"""Looks for changed rates in the store, so that waiting requests ask at their new time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from .._celery import Worker
from ..limiter.shadow import ask_shadow_reports
from ..limiter.sync_store import StoreRunner
from ..limits.any_limit import AnyLimit
from ..store.keys import changes_key
from ..store.resp import text
from ..store_calls.outage import Outage
from ..store_calls.store_calls import Reply, StoreCalls

__all__ = ["LimitWatcher", "read_changes"]

#: Seconds between two looks, of one of few workers and of one of many: one small command each. A decision needs none,
#: it reads what is stored.
POLL_INTERVAL, SELDOM = 0.5, 2.0
#: Workers of which each looks as often.
FEW = 8


class LimitWatcher:
    """Calls ``on_change`` with the names of the limits that were changed, in the worker's event loop.

    Args:
        limits: by name; there may be more of them later.
        outage: of the store; nothing is asked while it lasts.
        is_idle: whether no request waits that a change could concern: then nothing is asked.
    """

    def __init__(
        self,
        worker: Worker,
        asker: StoreRunner,
        limits: Mapping[str, AnyLimit],
        outage: Outage,
        store_calls: StoreCalls,
        is_idle: Callable[[], bool],
        on_change: Callable[[set[str]], None],
        workers: Callable[[], int],
    ) -> None:
        self._worker, self._asker, self._outage, self._store_calls = worker, asker, outage, store_calls
        self._limits, self._is_idle, self._on_change, self._workers = limits, is_idle, on_change, workers
        self._known: dict[str, str] = {}
        self._polled_at = time.time()
        self._cancel: Callable[[], None] | None = None

    def watch(self) -> None:
        """Look from now on."""
        if self._cancel is None:
            self._known = self._outage.ask(self._query(), {}, quietly=True)
            self._read_shadow(self._limits)
            self._cancel = self._worker.timers.call_after(POLL_INTERVAL, self._poll)

    def close(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _query(self) -> Callable[[], dict[str, str]]:
        """A call that reads the changes of each limit."""
        names = sorted(self._limits)

        def read() -> dict[str, str]:
            return {name: text(told or "") for name, told in zip(names, read_changes(self._asker, names), strict=True)}

        return read if names else dict

    def _poll(self) -> None:
        self._cancel = _nothing
        if self._is_idle():
            self._on_reply(Reply(self._known))
        else:
            self._store_calls.submit(self._query(), self._on_reply)

    def _on_reply(self, reply: Reply[dict[str, str]]) -> None:
        try:
            told = self._outage.read(reply.get, {}, quietly=True)
        finally:
            # Only now: a store that hangs takes as long as the pause, and all that the loop did would be to look.
            if self._cancel is _nothing:  # else a greenlet has closed it meanwhile
                pause = min(SELDOM, POLL_INTERVAL * max(1.0, self._workers() / FEW))
                self._cancel = self._worker.timers.call_after(pause, self._poll)
        if not told:
            return
        before, self._known = self._known, told
        since, self._polled_at = self._polled_at, time.time()
        changed = {name for name in told if _is_new(told[name], before.get(name, ""), since, self._polled_at)}
        if changed:
            self._read_shadow(changed)
            self._on_change(changed)

    def _read_shadow(self, names: Iterable[str]) -> None:
        """Which of these are in shadow now."""
        limits = {name: self._limits[name] for name in names}
        if limits:
            asker = self._asker
            self._outage.ask(lambda: asker.drive(ask_shadow_reports(asker.core, limits)), None, quietly=True)


def read_changes(asker: StoreRunner, names: Sequence[str]) -> list[bytes | str | None]:
    """For each limit, a text that differs after a stored rate was changed or a pause was ended."""
    keys = [changes_key(asker.prefix, name) for name in names]
    if asker.is_cluster:
        return [asker.command("GET", key) for key in keys]
    return list(asker.command("MGET", *keys))


def _nothing() -> None:
    """Cancels a look that is under way."""


def _is_new(text: str, before: str, since: float, now: float) -> bool:
    """Something was stored since the last look, or what is stored has ended (by this machine's clock: only a look)."""
    return text != before or any(since < float(end) / 1e6 <= now for end in text.split()[1:])
