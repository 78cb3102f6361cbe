"""The names of our keys in the store, all made here: ``<prefix>:v1:{<name>}:<key>:<kind>``.

The limit's name is the hash tag, so that the keys of one limit live on one node of a cluster. What comes from
users is escaped, and hashed where it is long: a key is never ambiguous and never without bounds.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

__all__ = ["DEFAULT_PREFIX", "SCHEMA", "bucket_key", "bucket_keys", "escape"]

DEFAULT_PREFIX = "ratelimit"

#: Goes up when keys of an older version can no longer be read; see ``lua/README.md``.
SCHEMA = "v1"

_LONGEST = 80


def escape(text: str) -> str:
    """User text as part of a key: percent-encoded but for harmless characters; beyond 80, cut and hashed."""
    safe = quote(text, safe="@/.-_~+=,", errors="surrogatepass")
    if len(safe) <= _LONGEST:
        return safe
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{safe[:40]}#{digest}"


#: What the key of a bucket's state is called, by the file in ``lua/include/`` that reads it. Algorithms that keep their
#: state differently have keys of their own, so that a limit may change its algorithm.
_STATE = {
    "token_bucket": "tat",
    "leaky_bucket": "tat",
    "stepped_bucket": "tokens",
    "warm_up": "warmth",
    "fixed_window": "window",
    "sliding_window": "counters",
    "sliding_log": "log",
    "concurrency": "leases",
}


def bucket_keys(prefix: str, name: str, key: str, method: str = "token_bucket") -> tuple[str, str]:
    """The two keys of a bucket: its state, and the slots that waiting tasks have reserved."""
    return bucket_key(prefix, name, key, _STATE[method]), bucket_key(prefix, name, key, "slots")


def bucket_key(prefix: str, name: str, key: str, kind: str) -> str:
    """One key of a bucket."""
    return f"{prefix}:{SCHEMA}:{{{escape(name)}}}:{escape(key)}:{kind}"
