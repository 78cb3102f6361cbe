"""Translates errors of the store into this package's."""

from __future__ import annotations

import re

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    InvalidResponse,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from ..errors import RateLimitError, StoreFull, StoreMisconfigured, StoreUnavailable
from .connection_diagnosis import clean, mend_of

__all__ = ["STORE_ERRORS", "is_full", "is_no_store", "out_of_reach", "trouble"]

#: The errors that a call to the store may raise. (Some of a cluster's errors are no RedisError.)
STORE_ERRORS = (RedisError, RedisClusterException)

#: Replies of a store that cannot serve at the moment. Waiting helps.
_OUTAGES = frozenset(
    {
        *("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "MISCONF", "OOM", "BUSY"),
        *("NOMASTERLINK", "UNBLOCKED"),
    }
)

#: Replies of a store that will never serve as it is set up: what to do about each.
_MENDS = {
    "NOPERM": "give its user the rights that docs/stores.md lists",
    "NOAUTH": "it wants a password: put it into the URL, redis://:password@host or redis://user:password@host",
    "WRONGPASS": "the user or the password in the URL is wrong",
    "DENIED": "it serves local clients only: set a password there, or bind it (protected-mode)",
    "MOVED": "this is a node of a cluster: begin the URL with redis+cluster://",
    "ASK": "this is a node of a cluster: begin the URL with redis+cluster://",
    "SINGLE": "this is a plain server: begin the URL with redis://",
    "CROSSSLOT": "this is a cluster behind something that hides it: use a redis+cluster:// URL, or give limits that "
    "are asked together one hash tag, as in name='{stripe}.daily'",
    "WRONGTYPE": "something else has written to one of our keys: use a database or ratelimit_prefix of its own",
}
_OTHERWISE = "see docs/stores.md for what the store has to be"

#: Redis before 7 wraps the error of a command in a script.
_WRAPPED = re.compile(r"@user_script: ?\d+: -?(?P<code>[A-Z]+) ")
_NO_PERMISSION = re.compile(r"no permissions to|can't run this command|can't access at least one of the keys")


def trouble(error: Exception) -> RateLimitError:
    """The exception to raise for an error of the store's client.

    :class:`~celery_ratelimit.StoreUnavailable` if the error may be over in a moment: no connection, no reply in time, a
    store that is loading, failing over, full or busy. Else :class:`~celery_ratelimit.errors.StoreMisconfigured`, which
    says what to do.
    """
    clean(error)
    mend = mend_of(error)
    if mend is not None:
        return out_of_reach(error, mend)
    code = _code(error)
    if code is None or code in _OUTAGES:
        kind = StoreFull if code == "OOM" else StoreUnavailable
        return kind(f"the limiter's store did not serve a request: {error}")
    text = str(error)
    shown = text if text.startswith(code) or code in ("ERR", "SINGLE") else f"{code} {text}"
    return StoreMisconfigured(f"the limiter's store refuses to serve ({shown}): {_MENDS.get(code, _OTHERWISE)}")


def is_full(error: Exception) -> bool:
    """Whether the store has refused a write because it has reached its ``maxmemory``."""
    return _code(error) == "OOM"


def is_no_store(error: BaseException | None) -> bool:
    """Whether the server speaks another protocol. If the store has served before, its reply may be cut instead."""
    return isinstance(error, InvalidResponse)


def out_of_reach(error: Exception, mend: str) -> StoreMisconfigured:
    """The exception for a connection that no waiting would make possible."""
    return StoreMisconfigured(f"the limiter's store cannot be reached as it is set up ({error}): {mend}")


def _code(error: Exception) -> str | None:
    """The code at the start of the store's error reply; None: there is none, or the store was not reached."""
    text = str(error)
    if isinstance(error, RedisClusterException):
        if "Cluster mode is not enabled" in text:
            return "SINGLE"
        if _NO_PERMISSION.search(text):
            return "NOPERM"
        if "Authentication required" in text:
            return "NOAUTH"
        if "username-password" in text:
            return "WRONGPASS"
        if "must map to the same key slot" in text:
            return "CROSSSLOT"
        return None
    known = getattr(error, "status_code", None) or _BY_CLASS.get(type(error).__name__)
    if isinstance(error, (AuthenticationError, AuthorizationError)):
        return known if known in _MENDS else ("NOAUTH" if "required" in text else "WRONGPASS")
    if not isinstance(error, ResponseError):
        return None
    wrapped = _WRAPPED.search(text)
    if wrapped is not None:
        return wrapped["code"]
    if known is None or known == "ERR":
        if _NO_PERMISSION.search(text):
            return "NOPERM"
        first = text.partition(" ")[0]
        known = first if first.isupper() else "ERR"
    return known


#: redis-py turns some codes of replies into classes.
_BY_CLASS = {
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "OutOfMemoryError": "OOM",
    "NoPermissionError": "NOPERM",
    "ClusterCrossSlotError": "CROSSSLOT",
    "MovedError": "MOVED",
    "AskError": "ASK",
}
