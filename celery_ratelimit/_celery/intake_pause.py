"""A worker that is late with granted tasks stops receiving messages for a moment.

What is relied on; line numbers are of kombu 5.7.0:

* ``Channel._brpop_start`` (kombu/transport/redis.py 1459) asks for the next message of a channel's queues. It is called
  (727) at each turn of the event loop in which nothing is asked yet: what does not ask is called again.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

__all__ = ["MAX_PAUSE", "pause_while"]

#: Seconds after which something comes in, however late the worker is.
MAX_PAUSE = 0.15


def pause_while(channel: Any, is_late: Callable[[], bool]) -> None:
    """Ask for no message of a channel while the worker ``is_late``: of a Redis broker, others send what they like.

    For workers with an event loop: without one, a pause waits for as long as the broker may be silent.
    """
    ask = getattr(channel, "_brpop_start", None)
    if ask is None:
        return
    since = 0.0  # when the worker was found to be late; 0.0: it is not

    @functools.wraps(ask)
    def ask_if_on_time(*args: Any, **kwargs: Any) -> Any:
        nonlocal since
        if is_late():
            now = time.monotonic()
            since = since or now
            if now - since < MAX_PAUSE:
                return None
        since = 0.0
        return ask(*args, **kwargs)

    channel._brpop_start = ask_if_on_time
