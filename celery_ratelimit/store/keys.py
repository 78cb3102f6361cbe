"""The names of our keys in the store, all made here: ``<prefix>:v1:{<name>}:<key>:<kind>``.

The limit's name is the hash tag, so that the keys of one limit live in one slot of a cluster. A name that has a hash
tag in it, as in ``{stripe}.daily``, keeps it: such limits share a slot with each other and with the limit ``stripe``.
What comes from users is escaped, and hashed where it is long: a key is never ambiguous and never without bounds.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote

__all__ = [
    "DEFAULT_PREFIX",
    "SCHEMA",
    "all_lots_keys",
    "attendance_keys",
    "bell_channel",
    "bucket_key",
    "bucket_keys",
    "changes_key",
    "config_keys",
    "count_keys",
    "declared_key",
    "escape",
    "failures_key",
    "hash_tag",
    "history_key",
    "lot_keys",
    "lots_key",
    "seen_keys",
    "shadow_key",
    "shadow_keys",
    "short",
    "touched_key",
    "weights_key",
]

DEFAULT_PREFIX = "ratelimit"

#: Goes up when keys of an older version can no longer be read; see ``lua/README.md``.
SCHEMA = "v1"

_LONGEST = 80

#: Characters of a key; one that is longer is cut and hashed before anything keeps it, here or in the store.
LONGEST_KEY = 1000


def short(key: str) -> str:
    """A bucket's key as it is kept and shown."""
    if len(key) <= LONGEST_KEY:
        return key
    return f"{key[:40]}#{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()[:32]}"


def escape(text: str) -> str:
    """User text as part of a key: percent-encoded but for harmless characters; beyond 80, cut and hashed."""
    safe = quote(text, safe="@/.-_~+=,", errors="surrogatepass")
    if len(safe) <= _LONGEST:
        return safe
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{safe[:40]}#{digest}"


def bucket_keys(prefix: str, name: str, key: str, method: str = "token_bucket") -> tuple[str, str]:
    """The two keys of a bucket: its state, and the slots that waiting tasks have reserved.

    All algorithms have one key for their state, so that a limit may change its algorithm and keep its tokens.
    """
    state = "leases" if method == "concurrency" else "state"
    return bucket_key(prefix, name, key, state), bucket_key(prefix, name, key, "slots")


def changes_key(prefix: str, name: str) -> str:
    """Where it is told that something stored has changed, for the whole limit or one of its keys."""
    return bucket_key(prefix, name, "", "changes")


def history_key(prefix: str, name: str) -> str:
    """What people have changed of a limit and its keys; see ``lua/include/history.lua``."""
    return bucket_key(prefix, name, "", "history")


def touched_key(prefix: str, name: str) -> str:
    """Where it is noted in which buckets of a limit something was given back; see ``lua/include/touch.lua``."""
    return bucket_key(prefix, name, "", "touched")


def config_keys(prefix: str, name: str, key: str) -> tuple[str, str]:
    """Where a rate or a pause is stored: for the whole limit, and for one key of it; the same where there is none."""
    return bucket_key(prefix, name, "", "config"), bucket_key(prefix, name, key, "config")


def count_keys(prefix: str, name: str) -> tuple[str, str, str, str]:
    """What is counted of a limit: totals; the last minutes by the second, the last day by the minute; who uses it."""
    counted, seconds, minutes, users = [
        bucket_key(prefix, name, "", kind) for kind in ("counted", "seconds", "minutes", "users")
    ]
    return counted, seconds, minutes, users


def shadow_key(prefix: str, name: str) -> str:
    """Whether a limit is in shadow, if that is not as in the code; see ``lua/set_shadow.lua``."""
    return bucket_key(prefix, name, "", "shadow")


def shadow_keys(prefix: str, name: str) -> tuple[str, ...]:
    """What is reckoned of a limit in shadow, in the order of ``lua/shadow.lua``; with what is stored for it."""
    kinds = ("config", "shadow", "arrivals", "queues", "ends", "would")
    return tuple([bucket_key(prefix, name, "", kind) for kind in kinds])


#: What a parking lot consists of, in the order of ``lua/include/lot.lua``.
_LOT = ("parked", "payloads", "in_flight", "ack_unconfirmed", "valid_copy", "expiring", "suspended")
_ALL_LOTS = ("due", "code", "task_index", "suspended_lots", "costs")
_UNIQUE = "unique"


def lot_keys(prefix: str, name: str, key: str, fleet: str) -> tuple[str, ...]:
    """The keys of one bucket's parking lot; those of :data:`_ALL_LOTS` are shared by all lots of the limit. The last
    three are about those who share the limit.
    """
    own, of_all = [f"{prefix}:{SCHEMA}:{_name(name)}:{escaped}:" for escaped in (escape(key), "")]
    of_lot = [f"{own}{kind}@{fleet}" for kind in _LOT]
    shared = [f"{of_all}{kind}@{fleet}" for kind in _ALL_LOTS]
    of_shares = [f"{own}{kind}@{fleet}" for kind in ("shares", "turns")]
    return *of_lot, *shared, f"{own}{_UNIQUE}@{fleet}", *of_shares, f"{of_all}weights"


def all_lots_keys(prefix: str, name: str, fleet: str) -> tuple[str, ...]:
    """What the lots of a limit share: when each is due, in whose code the limit is what, who is where, who is aside."""
    return tuple([bucket_key(prefix, name, "", f"{kind}@{fleet}") for kind in _ALL_LOTS])


def weights_key(prefix: str, name: str) -> str:
    """Which weights are stored for those who share a limit."""
    return bucket_key(prefix, name, "", "weights")


def attendance_keys(prefix: str, fleet: str) -> tuple[str, ...]:
    """The workers of a fleet, which queues each of them consumes, and the queues: see ``lua/heartbeat_queues.lua``."""
    return tuple([bucket_key(prefix, "fleet", "", f"{kind}@{fleet}") for kind in ("alive", "workers", "queues")])


def failures_key(prefix: str, fleet: str) -> str:
    """Which tasks of a fleet could not be published: see ``lua/publish_failures.lua``."""
    return bucket_key(prefix, "fleet", "", f"failures@{fleet}")


def seen_keys(prefix: str, fleet: str) -> tuple[str, ...]:
    """What workers of a fleet have said last that they attend to: limits, return queues; and who consumes what."""
    return tuple([bucket_key(prefix, "fleet", "", f"{kind}@{fleet}") for kind in ("limits", "returns", "queues")])


def declared_key(prefix: str) -> str:
    """Which limits the apps with this prefix declare, as of the last start of a worker."""
    return bucket_key(prefix, "fleet", "", "declared")


def bell_channel(prefix: str, ear: str = "") -> str:
    """Where scripts ring for workers that have nothing to do (``lua/include/bell.lua`` reads it off a key).

    With an ``ear``: for one worker that waits for places (``lua/include/waiting_lines.lua``).
    """
    channel = re.sub(r"(?s)(:v\d+:).*", r"\1bell", f"{prefix}:{SCHEMA}:", count=1)
    return f"{channel}:{ear}" if ear else channel


def lots_key(prefix: str, name: str, fleet: str) -> str:
    """Which buckets of a limit have tasks in their parking lots."""
    return bucket_key(prefix, name, "", f"due@{fleet}")


def bucket_key(prefix: str, name: str, key: str, kind: str) -> str:
    """One key of a bucket."""
    return f"{prefix}:{SCHEMA}:{_name(name)}:{escape(key)}:{kind}"


#: A name with a hash tag, as Redis reads it: from the first brace to the next one that closes it, if it is not empty.
_TAGGED = re.compile(r"([^{}]*)\{([^{}]+)\}(.*)", re.DOTALL)


def hash_tag(name: str) -> str:
    """What decides in which slot of a cluster a limit is: what stands between the braces of its keys."""
    tagged = _TAGGED.fullmatch(name)
    return escape(tagged[2] if tagged else name)


def _name(name: str) -> str:
    tagged = _TAGGED.fullmatch(name)
    if tagged is None:
        return f"{{{escape(name)}}}"
    before, tag, after = [escape(part) for part in tagged.groups()]
    if before or after:
        written = f"{before}{{{tag}}}{after}"
        if len(written) <= _LONGEST:
            return written
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:32]
        return f"{{{tag}}}#{digest}"
    return f"{{{tag}}}!"  # the limit '{a}' is not the limit 'a'
