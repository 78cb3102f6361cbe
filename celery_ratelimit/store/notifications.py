"""Notifications from the store, by a pub/sub channel: they wake idle workers, which then need not poll often.

Scripts publish them (``lua/include/wake_idle_workers.lua``). A notification without a subscriber is lost, so each new
subscription counts as one; and waiting workers still poll from time to time."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from .keys import notification_channel
from .resp import text

__all__ = ["NotificationListener"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Seconds after which the thread checks that its listener still exists, and after which it subscribes again.
LOOK = 1.0


class NotificationListener:
    """Listens to one channel of a store. A thread has a connection of its own, and ends with the object.

    Args:
        client: a ``redis.Redis`` or a ``redis.RedisCluster``. A store in memory has no channels, and needs none.
        prefix: the start of every key in the store.
        worker: names the channel of one worker; empty: the channel of all.
        on_notification: called in the thread with the text of each notification; ``None``: the thread has subscribed.

    Attributes:
        channel: its name.
        is_up: whether the thread is subscribed. False if the user may not subscribe, or the connection is lost.
        notifications: their number; a new subscription counts, since some may have been missed.
    """

    def __init__(
        self, client: Any, prefix: str, worker: str = "", on_notification: Callable[[str | None], None] | None = None
    ) -> None:
        self.channel: str = notification_channel(prefix, worker)
        self.on_notification = on_notification
        self.client: Any = None if hasattr(client, "clock") else client
        self.is_up: bool = False
        self.notifications = 0
        self.watch_number: int = 0
        self._seen = 0

    def was_notified(self) -> bool:
        """Whether a notification came since the last call, or may have been missed without a subscription."""
        seen, self._seen = self._seen, self.notifications
        return not self.is_up or seen != self._seen

    def listen(self) -> None:
        """Start listening in this process."""
        self.watch_number += 1
        self.is_up = False
        if self.client is not None:
            args = (weakref.ref(self), self.watch_number, self.client, self.channel)
            threading.Thread(target=_listen, args=args, name="celery_ratelimit-notifications", daemon=True).start()

    def close(self) -> None:
        """End the thread within a second."""
        self.watch_number += 1
        self.is_up = False


def _listen(listener_of: weakref.ref[NotificationListener], watch: int, client: Any, channel: str) -> None:
    """Listen until the listener is gone or closed."""
    pubsub: Any = None

    def not_subscribed(error: Exception) -> None:
        logger.debug("no notifications from the store, idle workers ask every second: %r", error)
        listener = listener_of()
        if listener is not None and listener.watch_number == watch:
            listener.is_up = False
        _end(pubsub)

    while (listener := listener_of()) is not None and listener.watch_number == watch:
        try:
            if pubsub is None:
                pubsub = client.pubsub()
                pubsub.subscribe(channel)
            listener = None  # this thread must not keep the listener alive while it waits
            said = pubsub.get_message(timeout=LOOK)
            if said and (listener := listener_of()) is not None and listener.watch_number == watch:
                listener.notifications += 1
                listener.is_up = True
                if listener.on_notification is not None:
                    listener.on_notification(text(said["data"]) if said["type"] == "message" else None)
        except NoPermissionError as error:
            not_subscribed(error)
            return
        except Exception as error:  # connections that are closed meanwhile raise AttributeErrors
            not_subscribed(error)
            pubsub = listener = None
            time.sleep(LOOK)
    _end(pubsub)


def _end(pubsub: Any) -> None:
    if pubsub is not None:
        with suppress(RedisError, OSError, ValueError, AttributeError):
            pubsub.close()
