"""Checks at start-up that a store can hold limits: its version, its role, and what it evicts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from redis.exceptions import ResponseError

from ..errors import ConfigurationError

__all__ = ["check_fitness"]

#: Scripts write with ``EVALSHA`` and read the time within them: 5. ACLs as they are tested here: 6.2.
_OLDEST = (6, 2)


def check_fitness(info: Callable[[str], Any]) -> list[str]:
    """Check by ``INFO`` that a store can hold limits; sections that are forbidden are skipped.

    Args:
        info: returns a section of ``INFO`` as a mapping.

    Returns:
        Warnings, one sentence each.

    Raises:
        ConfigurationError: the store is too old, or a read-only replica.
    """
    version = str(_ask(info, "server").get("redis_version", ""))
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers and numbers < _OLDEST:
        raise ConfigurationError(f"the store is Redis {version}: it has to be Redis 6.2 or later, or Valkey")
    replication = _ask(info, "replication")
    if replication.get("role") == "slave" and str(replication.get("slave_read_only", 1)) == "1":
        raise ConfigurationError(
            "the store is a read-only replica of "
            f"{replication.get('master_host')}:{replication.get('master_port')}: limits have to be written, so name "
            "the master, or the Sentinels that know it (sentinel://)"
        )
    policy = str(_ask(info, "memory").get("maxmemory_policy", "noeviction"))
    if policy == "noeviction":
        return []
    lost = ", and parked tasks that are evicted are lost" if policy.startswith("allkeys") else ""
    return [
        f"the limiter's store may evict keys when it is full (maxmemory-policy {policy}): an evicted bucket is full "
        f"again, and lets a burst through{lost}. Set it to noeviction, or give the limits a store of their own "
        "(ratelimit_url)"
    ]


def _ask(info: Callable[[str], Any], section: str) -> dict[str, Any]:
    try:
        said = info(section)
    except ResponseError:  # forbidden, or unknown to this store
        return {}
    return said if isinstance(said, dict) else {}
