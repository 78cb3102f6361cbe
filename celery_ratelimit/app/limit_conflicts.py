"""Notices that another app declares a limit of the same name differently: both use one bucket of the store."""

from __future__ import annotations

from collections.abc import Mapping

from ..limiter.sync_store import StoreRunner
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..store.keys import declared_key, escape
from ..store.resp import text

__all__ = ["declare", "without_names"]

#: Milliseconds for which a declaration is remembered after the last start of a worker.
REMEMBERED_MS = 30 * 86_400_000


def declare(asker: StoreRunner, limits: Mapping[str, AnyLimit]) -> list[str]:
    """Declare the limits of an app that starts. The store remembers the app that started last.

    Returns:
        A sentence for each limit that was declared differently before.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    if not limits or asker.is_fake:
        return []
    key, client = declared_key(asker.prefix), asker.client
    now = {name: _told_apart(limits[name], shown) for name, shown in without_names(limits).items()}

    def exchange() -> Mapping[bytes | str, bytes | str]:
        with client.pipeline(transaction=False) as pipeline:
            pipeline.hgetall(key)
            # A name is escaped: it may be no UTF-8, and another app's client may use another encoding.
            pipeline.hset(key, mapping={escape(name): limit for name, limit in now.items()})
            pipeline.pexpire(key, REMEMBERED_MS)
            declared: Mapping[bytes | str, bytes | str] = pipeline.execute()[0]
            return declared

    before = {text(field, "replace"): text(limit, "replace") for field, limit in asker.store(exchange).items()}
    return [
        f"limit {name!r} is {limit} here and was {before[escape(name)]} when another worker started: apps with "
        f"ratelimit_prefix={asker.prefix!r} share its bucket. If this is another app, give the limit another name=, or "
        "this app another ratelimit_prefix. If the limit was changed, this is said once"
        for name, limit in now.items()
        if before.get(escape(name), limit) != limit
    ]


def without_names(limits: Mapping[str, AnyLimit]) -> dict[str, str]:
    """Each limit as text, without its name: ``{"api": "100/s"}``."""
    return {name: str(limit).removeprefix(f"{name}: ") for name, limit in sorted(limits.items())}


def _told_apart(limit: AnyLimit, shown: str) -> str:
    """``shown`` with the options that define the bucket: ``"100/s, sliding_log"``, ``"3 at once, lease 60 s"``."""
    if isinstance(limit, Concurrency):
        return f"{shown}, lease {limit.lease:g} s"
    return shown if limit.algorithm == "token_bucket" else f"{shown}, {limit.algorithm}"
