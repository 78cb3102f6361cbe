"""Selects the link for a client."""

from __future__ import annotations

from typing import Any

from redis.cluster import RedisCluster
from redis.sentinel import SentinelConnectionPool

from .cluster import ClusterLink
from .link import Link, SentinelLink

__all__ = ["link_to"]


def link_to(client: Any) -> Link:
    """The link to the store for a client."""
    if isinstance(client, RedisCluster):
        return ClusterLink(client)
    pool: Any = getattr(client, "connection_pool", None)
    return SentinelLink(client) if type(pool) is SentinelConnectionPool and pool.is_master else Link(client)
