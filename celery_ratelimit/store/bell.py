"""A bell in the store: idle workers wait for it, and do not ask again and again whether there is something to do.

Scripts ring it (``lua/include/bell.lua``). What is published while nobody listens is lost, so each new subscription
counts as a ring; and who waits for it asks from time to time all the same.
"""

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

logger = logging.getLogger("celery_ratelimit")

#: Seconds after which the thread looks whether anybody needs it, and after which it subscribes again.
LOOK = 1.0


class Bell:
    """The bell of one store, heard by a thread of its own: with one connection more. The thread ends with the object.

    Args:
        client: a ``redis.Redis`` or a ``redis.RedisCluster``. A store in memory has no bell: nothing is saved there.
        prefix: what every key in the store begins with.
        ear: of one worker, if it is rung for it alone.
        on_ring: called at each ring with what is said, in the thread; ``None``: it is heard from now on.

    Attributes:
        channel: its name.
        is_up: whether a ring would be heard now. Not if the user may not subscribe, or the connection is lost.
        rings: counted up; also when it is heard again, for nobody knows what was missed.
    """

    def __init__(
        self, client: Any, prefix: str, ear: str = "", on_ring: Callable[[str | None], None] | None = None
    ) -> None:
        self.channel, self.on_ring = bell_channel(prefix, ear), on_ring
        self.client = None if hasattr(client, "clock") else client
        self.is_up = False
        self.rings = 0
        self.watch_number = 0
        self._heard = 0

    def has_rung(self) -> bool:
        """Whether it has rung since this was asked last; or might have, as it is not heard."""
        heard, self._heard = self._heard, self.rings
        return not self.is_up or heard != self._heard

    def listen(self) -> None:
        """From now on, in this process."""
        self.watch_number += 1
        self.is_up = False
        if self.client is not None:
            args = (weakref.ref(self), self.watch_number, self.client, self.channel)
            threading.Thread(target=_listen, args=args, name="celery_ratelimit-bell", daemon=True).start()

    def close(self) -> None:
        """The thread ends within a second."""
        self.watch_number += 1
        self.is_up = False


def _listen(bell_of: weakref.ref[Bell], watch: int, client: Any, channel: str) -> None:
    """Hear what is published, until nobody needs it any more."""
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
            bell = None  # nobody's, while this waits
            said = heard.get_message(timeout=LOOK)
            if said and (bell := bell_of()) is not None and bell.watch_number == watch:
                bell.rings += 1
                bell.is_up = True
                if bell.on_ring is not None:
                    bell.on_ring(text(said["data"]) if said["type"] == "message" else None)
        except NoPermissionError as error:
            not_heard(error)
            return
        except Exception as error:  # somebody closes its connections, and it has AttributeErrors
            not_heard(error)
            heard = bell = None
            time.sleep(LOOK)
    _end(heard)


def _end(heard: Any) -> None:
    if heard is not None:
        with suppress(RedisError, OSError, ValueError, AttributeError):
            heard.close()
