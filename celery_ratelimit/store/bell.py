"""A bell in the store, a pub/sub channel: it wakes idle workers, which then need not poll often.

Scripts ring it (``lua/include/wake_idle_workers.lua``). A ring without a subscriber is lost, so each new subscription
counts as a ring; and waiting workers still poll from time to time."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from .keys import bell_channel
from .resp import text

__all__ = ["Bell"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Seconds after which the thread checks that its bell still exists, and after which it subscribes again.
LOOK = 1.0


class Bell:
    """The bell of one store. A thread listens on a connection of its own, and ends with the object.

    Args:
        client: a ``redis.Redis`` or a ``redis.RedisCluster``. A store in memory has no bell, and needs none.
        prefix: the start of every key in the store.
        ear: names the channel of one worker; empty: the channel of all.
        on_ring: called in the thread with the message of each ring; ``None``: the thread has subscribed.

    Attributes:
        channel: its name.
        is_up: whether the thread is subscribed. False if the user may not subscribe, or the connection is lost.
        rings: number of rings; a new subscription counts, since rings may have been missed.
    """

    def __init__(
        self, client: Any, prefix: str, ear: str = "", on_ring: Callable[[str | None], None] | None = None
    ) -> None:
        self.channel: str = bell_channel(prefix, ear)
        self.on_ring = on_ring
        self.client: Any = None if hasattr(client, "clock") else client
        self.is_up: bool = False
        self.rings = 0
        self.watch_number: int = 0
        self._heard = 0

    def has_rung(self) -> bool:
        """Whether the bell has rung since the last call, or may have while there was no subscription."""
        heard, self._heard = self._heard, self.rings
        return not self.is_up or heard != self._heard

    def listen(self) -> None:
        """Start listening in this process."""
        self.watch_number += 1
        self.is_up = False
        if self.client is not None:
            args = (weakref.ref(self), self.watch_number, self.client, self.channel)
            threading.Thread(target=_listen, args=args, name="celery_ratelimit-bell", daemon=True).start()

    def close(self) -> None:
        """End the thread within a second."""
        self.watch_number += 1
        self.is_up = False


def _listen(bell_of: weakref.ref[Bell], watch: int, client: Any, channel: str) -> None:
    """Listen until the bell is gone."""
    heard: Any = None

    def not_heard(error: Exception) -> None:
        logger.debug("the store's bell is not heard, idle workers ask every second: %r", error)
        bell = bell_of()
        if bell is not None and bell.watch_number == watch:
            bell.is_up = False
        _end(heard)

    while (bell := bell_of()) is not None and bell.watch_number == watch:
        try:
            if heard is None:
                heard = client.pubsub()
                heard.subscribe(channel)
            bell = None  # this thread must not keep the bell alive while it waits
            said = heard.get_message(timeout=LOOK)
            if said and (bell := bell_of()) is not None and bell.watch_number == watch:
                bell.rings += 1
                bell.is_up = True
                if bell.on_ring is not None:
                    bell.on_ring(text(said["data"]) if said["type"] == "message" else None)
        except NoPermissionError as error:
            not_heard(error)
            return
        except Exception as error:  # connections that are closed meanwhile raise AttributeErrors
            not_heard(error)
            heard = bell = None
            time.sleep(LOOK)
    _end(heard)


def _end(heard: Any) -> None:
    if heard is not None:
        with suppress(RedisError, OSError, ValueError, AttributeError):
            heard.close()
