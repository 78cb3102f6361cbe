"""Which server is the master: asked of its Sentinels beside the calls, and heard from them as soon as it changes.

Sentinel does not stop the old master when it makes another one: after an orderly failover the old one serves on for ten
seconds whoever is connected to it, and all of that is thrown away then.
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

logger = logging.getLogger("celery_ratelimit")

#: Seconds after which a Sentinel is asked again, where somebody uses the store.
LOOK = 1.0
#: Seconds that a failover which was announced may take, before callers go on where they are.
LONGEST_MOVE = 5.0

#: What a Sentinel says when the choice of the new master begins, a tenth of a second before the old one has none that
#: follows it; and when it is over.
_BEGINS = "+failover-state-select-slave"
_ENDS = ("+switch-master", "+failover-end", "+failover-end-for-timeout", "-failover-abort-*")


class _View(NamedTuple):
    """What one Sentinel holds to be the master, since which of its epochs, and whether it is alive."""

    epoch: int
    address: tuple[str, int]
    is_alive: bool


class Master:
    """The master that the Sentinels of a pool name.

    A thread for each of them asks it once a second, if the store is used, and listens: nobody who wants a decision
    waits for a Sentinel. The answer of the newest epoch counts: after a failover some Sentinels name the old master
    for a while yet. The threads also end when the object is gone; a fork has none before :meth:`watch`.

    Args:
        pool: a ``redis.sentinel.SentinelConnectionPool``.

    Attributes:
        address: host and port; ``None`` if no Sentinel that is reached has a master that is alive.
        uses: counted up by whoever uses the store.
        watch_number: which watch it is; the threads of those before it end.
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
        self.watch_number = 0

    @property
    def is_moving(self) -> bool:
        """Whether another server is being made the master: what is written now may be lost with the old one."""
        return bool(self._moves_until) and time.monotonic() < self._moves_until

    def watch(self) -> None:
        """Look from now on, in this process."""
        self._lock = threading.Lock()  # a fork may have come while another thread had it
        self._views, self._asked = {}, {}
        self.address, self._moves_until = None, 0.0
        self.watch_number += 1
        for number, sentinel in enumerate(self._sentinels):
            args = (weakref.ref(self), self.watch_number, number, sentinel)
            threading.Thread(target=_follow, args=args, name="celery_ratelimit-sentinel", daemon=True).start()

    def watch_no_more(self) -> None:
        """The threads end within a second."""
        self.watch_number += 1

    def ask_if_used(self, number: int) -> None:
        """Ask one of the Sentinels, if somebody has used the store since it was asked last."""
        uses = self.uses
        if self._asked.get(number) != uses:
            self.ask(number)
            self._asked[number] = uses

    def ask(self, number: int) -> None:
        """Ask one of the Sentinels. Raises what it raises; then nothing is known of it."""
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
        # Who has an older epoch has not heard yet of the new master, also where that one is held to be down.
        return max(views, key=lambda each: (each.epoch, each.is_alive, each.address == self.address)).address

    def hear(self, number: int, event: str, words: list[str]) -> None:
        """One of the Sentinels says something; perhaps of another master. Raises what asking it raises."""
        if self.name not in words:
            return
        if event == _BEGINS:
            self._moves_until = time.monotonic() + LONGEST_MOVE
        else:
            self.ask(number)  # before anybody goes on
            self._moves_until = 0.0


def _follow(master_of: weakref.ref[Master], watch: int, number: int, sentinel: Redis) -> None:
    """Ask and hear one Sentinel, until nobody needs it any more."""
    events: Any = None
    may_listen = True
    while (master := master_of()) is not None and master.watch_number == watch:
        try:
            if events is None and may_listen:
                events = sentinel.pubsub(ignore_subscribe_messages=True)
                events.psubscribe(_BEGINS, *_ENDS)
            master.ask_if_used(number)
            master = None  # nobody's, while this waits
            if events is None:
                time.sleep(LOOK)
                continue
            said = events.get_message(timeout=LOOK)
            if said and (master := master_of()) is not None:
                master.hear(number, text(said["channel"], "replace"), text(said["data"], "replace").split())
            continue
        except ResponseError:  # its user may not listen: then it is asked alone
            may_listen = False
        except (RedisError, OSError, ValueError, AttributeError) as error:  # the last: somebody closes its connections
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
    """The same for a pool of ``redis.asyncio``, as far as those who take no tasks with them need it: it is asked.

    Args:
        pool: a ``redis.asyncio.sentinel.SentinelConnectionPool``, which asks its Sentinels one after the other.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._next = 0.0
        self._changed = False

    def is_due(self) -> bool:
        """Whether :meth:`look` is to be called now, beside whatever else is done: once a second."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + LOOK
        return True

    def doubt(self) -> None:
        """The store has not served a request: it is due."""
        self._next = 0.0

    async def look(self) -> None:
        """Ask who is the master, and close idle connections that lead elsewhere."""
        before, again = self._pool.master_address, self._changed
        with suppress(RedisError, OSError):
            self._changed = await self._pool.get_master_address() != before and before is not None
            if self._changed or again:  # once more for those that were in use
                await self._pool.disconnect(inuse_connections=False)
