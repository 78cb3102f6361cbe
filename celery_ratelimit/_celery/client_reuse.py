"""One client for a channel on Redis, where kombu makes one for each thing that it has to say.

What is relied on; line numbers are of kombu 5.7.0:

* ``Channel.conn_or_acquire`` (kombu/transport/redis.py 2085) makes a client with ``_create_client`` (2047) each time.
  All of them have the channel's pool of connections (``_pool``), which is made anew when the channel has lost them.
"""

from __future__ import annotations

from typing import Any

__all__ = ["reuse_client"]


def reuse_client(channel: Any) -> None:
    """From now on ``channel`` uses one client for all that it says and does not wait for, as long as it has the same
    connections. On other brokers nothing changes.
    """
    create = getattr(channel, "_create_client", None)
    if create is None or not hasattr(channel, "_pool"):
        return
    kept: Any = None

    def create_client(asynchronous: bool = False) -> Any:
        nonlocal kept
        if asynchronous:
            return create(asynchronous=True)
        if kept is None or kept.connection_pool is not channel._pool:
            kept = create()
        return kept

    channel._create_client = create_client
