"""The names of our keys in the store, all made here: ``<prefix>:v1:{<name>}:<key>:<kind>``.

The limit's name is the hash tag, so that the keys of one limit live on one node of a cluster. What comes from
users is escaped, and hashed where it is long: a key is never ambiguous and never without bounds.
"""

from __future__ import annotations

import hashlib
from urllib.parse import quote

__all__ = ["DEFAULT_PREFIX", "SCHEMA", "bucket_keys", "escape"]

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


def bucket_keys(prefix: str, name: str, key: str) -> tuple[str, str]:
    """The two keys of a bucket: its state, and the slots that waiting tasks have reserved."""
    stem = f"{prefix}:{SCHEMA}:{{{escape(name)}}}:{escape(key)}"
    return f"{stem}:tat", f"{stem}:slots"
