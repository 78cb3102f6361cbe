"""Learns from Sentinels which server is the master: threads ask them, and subscribe to changes.

Sentinel does not stop the old master when it promotes another one: after an orderly failover the old master serves its
connections for ten more seconds, and all writes of that time are lost.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from .resp import text

__all__ = ["AsyncMaster", "Master"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Seconds after which a Sentinel is asked again, if the store is used.
LOOK = 1.0
#: Seconds that an announced failover may take, before callers go on with the old master.
LONGEST_MOVE = 5.0

#: A Sentinel's event when the choice of the new master begins, a tenth of a second before the old master loses its
#: replicas; and the events when the failover is over.
_BEGINS = "+failover-state-select-slave"
_ENDS = ("+switch-master", "+failover-end", "+failover-end-for-timeout", "-failover-abort-*")


class _View(NamedTuple):
    """A Sentinel's view: the master, the epoch of its choice, and whether it is alive."""

    epoch: int
    address: tuple[str, int]
    is_alive: bool


class Master:
    """The master that the Sentinels of a pool name.

    A thread for each Sentinel asks it once a second, if the store is used, and subscribes to its events: no decision
    waits for a Sentinel. The answer of the newest epoch counts, since some Sentinels still name the old master for a
    while after a failover. The threads also end with the object. A fork has none before :meth:`watch`.

    Args:
        pool: a ``redis.sentinel.SentinelConnectionPool``.

    Attributes:
        address: host and port; ``None``: no Sentinel within reach knows a master that is alive.
        uses: counts the calls of the store.
        watch_number: number of the current watch; threads of earlier watches end.
    """

    def __init__(self, pool: Any) -> None:
        manager = pool.sentinel_manager
        self.name: str = pool.service_name
        self.address: tuple[str, int] | None = None
        self.uses = 0
        self._sentinels = list(manager.sentinels)
        self._is_good = manager.check_master_state
        self._host = getattr(manager, "_force_master_ip", None)
        self._views: dict[int, _View] = {}
        self._asked: dict[int, int] = {}
        self._lock = threading.Lock()
        self._moves_until = 0.0
        self.watch_number: int = 0

    @property
    def is_moving(self) -> bool:
        """Whether another server is becoming the master: a write may be lost with the old one."""
        return bool(self._moves_until) and time.monotonic() < self._moves_until

    def watch(self) -> None:
        """Start the threads, in this process."""
        self._lock = threading.Lock()  # a fork may have come while another thread had it
        self._views, self._asked = {}, {}
        self.address, self._moves_until = None, 0.0
        self.watch_number += 1
        for number, sentinel in enumerate(self._sentinels):
            args = (weakref.ref(self), self.watch_number, number, sentinel)
            threading.Thread(target=_follow, args=args, name="celery_ratelimit-sentinel", daemon=True).start()

    def watch_no_more(self) -> None:
        """End the threads within a second."""
        self.watch_number += 1

    def ask_if_used(self, number: int) -> None:
        """Ask one of the Sentinels, if the store was used since the last time."""
        uses = self.uses
        if self._asked.get(number) != uses:
            self.ask(number)
            self._asked[number] = uses

    def ask(self, number: int) -> None:
        """Ask one of the Sentinels. An error is raised, and its view is forgotten."""
        view = None
        self._asked.pop(number, None)
        try:
            state = self._sentinels[number].sentinel_masters().get(self.name)
            if state is not None:
                address = (self._host or state["ip"], int(state["port"]))
                view = _View(int(state["config-epoch"]), address, bool(self._is_good(state, self.name)))
        finally:
            self._note(number, view)

    def _note(self, number: int, view: _View | None) -> None:
        with self._lock:
            self._views.pop(number, None)
            if view is not None:
                self._views[number] = view
            address = self._newest(list(self._views.values()))
            if self.address is not None and address not in (None, self.address):
                self._moves_until = 0.0
            self.address = address

    def _newest(self, views: Sequence[_View]) -> tuple[str, int] | None:
        if not any(each.is_alive for each in views):
            return None
        # A Sentinel with an older epoch does not know the new master yet, even if it holds that server to be down.
        return max(views, key=lambda each: (each.epoch, each.is_alive, each.address == self.address)).address

    def handle_event(self, number: int, event: str, words: list[str]) -> None:
        """Handle a Sentinel's event, perhaps of another master. Raises the errors of :meth:`ask`."""
        if self.name not in words:
            return
        if event == _BEGINS:
            self._moves_until = time.monotonic() + LONGEST_MOVE
        else:
            self.ask(number)  # before callers go on
            self._moves_until = 0.0


def _follow(master_of: weakref.ref[Master], watch: int, number: int, sentinel: Redis) -> None:
    """Ask one Sentinel and listen to it, until the :class:`Master` is gone."""
    events: Any = None
    may_listen = True
    while (master := master_of()) is not None and master.watch_number == watch:
        try:
            if events is None and may_listen:
                events = sentinel.pubsub(ignore_subscribe_messages=True)
                events.psubscribe(_BEGINS, *_ENDS)
            master.ask_if_used(number)
            master = None  # this thread must not keep it alive while it waits
            if events is None:
                time.sleep(LOOK)
                continue
            said = events.get_message(timeout=LOOK)
            if said and (master := master_of()) is not None:
                master.handle_event(number, text(said["channel"], "replace"), text(said["data"], "replace").split())
            continue
        except ResponseError:  # the user may not subscribe: this thread only asks
            may_listen = False
        except (RedisError, OSError, ValueError, AttributeError) as error:  # the last: connections are closed meanwhile
            logger.debug("a Sentinel does not answer: %r", error)
        if events is not None:
            with suppress(RedisError, OSError):
                events.close()
            events = None
        master = None
        time.sleep(LOOK)
    if events is not None:
        with suppress(RedisError, OSError):
            events.close()


class AsyncMaster:
    """The master of a ``redis.asyncio`` pool. It is only asked for: callers without tasks need no events.

    Args:
        pool: a ``redis.asyncio.sentinel.SentinelConnectionPool``, which asks its Sentinels one after the other.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._next = 0.0
        self._changed = False

    def is_due(self) -> bool:
        """Whether :meth:`look` is due, once a second; it runs beside the calls."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LOOK
        return True

    def doubt(self) -> None:
        """Make :meth:`look` due: the store has failed at a call."""
        self._next = 0.0

    async def look(self) -> None:
        """Ask for the master, and close idle connections to other servers."""
        before, again = self._pool.master_address, self._changed
        with suppress(RedisError, OSError):
            self._changed = await self._pool.get_master_address() != before and before is not None
            if self._changed or again:  # once more for connections that were in use
                await self._pool.disconnect(inuse_connections=False)
