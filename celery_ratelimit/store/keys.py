"""Makes the names of all keys in the store: ``<prefix>:v1:{<name>}:<key>:<kind>``.

The limit's name is the hash tag, so that the keys of one limit share a hash slot of a cluster. A name that contains a
hash tag, as ``{stripe}.daily``, keeps it: such limits share a slot with each other and with the limit ``stripe``. Text
from users is escaped, and hashed if it is long, so that keys are unambiguous and bounded.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from urllib.parse import quote

__all__ = [
    "DEFAULT_PREFIX",
    "SCHEMA",
    "all_lots_keys",
    "attendance_keys",
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
    "notification_channel",
    "seen_keys",
    "shadow_key",
    "shadow_keys",
    "short",
    "touched_key",
    "weights_key",
]

DEFAULT_PREFIX = "ratelimit"

#: Raised when keys of an older version can no longer be read; see ``lua/README.md``.
SCHEMA = "v1"

_LONGEST = 80

#: Most characters of a key; a longer key is cut and hashed before it is used here or in the store.
LONGEST_KEY = 1000


def short(key: str) -> str:
    """A bucket's key as it is stored and shown."""
    if len(key) <= LONGEST_KEY:
        return key
    return f"{key[:40]}#{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()[:32]}"


def escape(text: str) -> str:
    """User text as part of a key: percent-encoded except harmless characters; beyond 80, cut and hashed."""
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
    """The key that shows that stored settings have changed, of the whole limit or one of its keys."""
    return bucket_key(prefix, name, "", "changes")


def history_key(prefix: str, name: str) -> str:
    """The key of the history of changes of a limit and its keys; see ``lua/include/keep_change.lua``."""
    return bucket_key(prefix, name, "", "history")


def key_settings_key(prefix: str, name: str) -> str:
    """The key that lists the keys of a limit with a pause or a rate of their own."""
    return bucket_key(prefix, name, "", "key_settings")


def touched_key(prefix: str, name: str) -> str:
    """The key that lists the buckets to which permits came back; see ``lua/include/mark_for_recheck.lua``."""
    return bucket_key(prefix, name, "", "touched")


def config_keys(prefix: str, name: str, key: str) -> tuple[str, str]:
    """The keys of a stored rate or pause: for the whole limit, and for ``key``; twice the same without ``key``."""
    return bucket_key(prefix, name, "", "config"), bucket_key(prefix, name, key, "config")


def count_keys(prefix: str, name: str) -> tuple[str, str, str, str]:
    """The keys of a limit's counts: totals; the last minutes by second; the last day by minute; its users."""
    counted, seconds, minutes, users = [
        bucket_key(prefix, name, "", kind) for kind in ("counted", "seconds", "minutes", "users")
    ]
    return counted, seconds, minutes, users


def shadow_key(prefix: str, name: str) -> str:
    """The key of a limit's stored shadow setting; see ``lua/set_shadow.lua``."""
    return bucket_key(prefix, name, "", "shadow")


def shadow_keys(prefix: str, name: str) -> tuple[str, ...]:
    """The keys of ``lua/simulate_shadow.lua``, in its order; the first is of the limit's stored settings."""
    kinds = ("config", "shadow", "arrivals", "queues", "ends", "shadow_report")
    return tuple([bucket_key(prefix, name, "", kind) for kind in kinds])


#: The kinds of a parking lot's keys, in the order of ``lua/include/lot.lua``.
_LOT = ("parked", "payloads", "in_flight", "ack_unconfirmed", "valid_copy", "expiring", "suspended")
_ALL_LOTS = ("due", "code", "task_index", "suspended_lots", "costs")
_UNIQUE = "unique"


def lot_keys(prefix: str, name: str, key: str, fleet: str) -> tuple[str, ...]:
    """The keys of one bucket's parking lot; all lots of the limit share the keys of :data:`_ALL_LOTS`. The last three
    hold the shares of a fair limit.
    """
    own, of_all = [f"{prefix}:{SCHEMA}:{_name(name)}:{escaped}:" for escaped in (escape(key), "")]
    of_lot = [f"{own}{kind}@{fleet}" for kind in _LOT]
    shared = [f"{of_all}{kind}@{fleet}" for kind in _ALL_LOTS]
    of_shares = [f"{own}{kind}@{fleet}" for kind in ("shares", "turns")]
    return *of_lot, *shared, f"{own}{_UNIQUE}@{fleet}", *of_shares, f"{of_all}weights"


def all_lots_keys(prefix: str, name: str, fleet: str) -> tuple[str, ...]:
    """The keys that a limit's lots share: due times, the code's limits, the tasks' lots, suspended lots, costs."""
    return tuple([bucket_key(prefix, name, "", f"{kind}@{fleet}") for kind in _ALL_LOTS])


def weights_key(prefix: str, name: str) -> str:
    """The key of a fair limit's stored weights."""
    return bucket_key(prefix, name, "", "weights")


def attendance_keys(prefix: str, fleet: str) -> tuple[str, ...]:
    """The keys of a fleet's workers, of the queues that each consumes, and of all queues: see
    ``lua/heartbeat_queues.lua``."""
    return tuple([bucket_key(prefix, "fleet", "", f"{kind}@{fleet}") for kind in ("alive", "workers", "queues")])


def failures_key(prefix: str, fleet: str) -> str:
    """The key of tasks of a fleet that could not be published: see ``lua/report_publish_failures.lua``."""
    return bucket_key(prefix, "fleet", "", f"failures@{fleet}")


def seen_keys(prefix: str, fleet: str) -> tuple[str, ...]:
    """The keys of the workers' last reports in a fleet: limits, return queues, and consumers of queues."""
    return tuple([bucket_key(prefix, "fleet", "", f"{kind}@{fleet}") for kind in ("limits", "returns", "queues")])


def declared_key(prefix: str) -> str:
    """The key of the limits that apps with this prefix declare, as of the last start of a worker."""
    return bucket_key(prefix, "fleet", "", "declared")


def notification_channel(prefix: str, worker: str = "") -> str:
    """The channel on which scripts wake idle workers (``lua/include/wake_idle_workers.lua`` derives it from a key).

    With a ``worker``: the channel of one worker that waits for leases (``lua/include/concurrency_waiters.lua``).
    """
    channel = re.sub(r"(?s)(:v\d+:).*", r"\1wake", f"{prefix}:{SCHEMA}:", count=1)
    return f"{channel}:{worker}" if worker else channel


def lots_key(prefix: str, name: str, fleet: str) -> str:
    """The key that lists the buckets of a limit with parked tasks."""
    return bucket_key(prefix, name, "", f"due@{fleet}")


def bucket_key(prefix: str, name: str, key: str, kind: str) -> str:
    """One key of a bucket."""
    return f"{prefix}:{SCHEMA}:{_name(name)}:{escape(key)}:{kind}"


#: A name with a hash tag, as Redis reads it: from the first brace to the next one that closes it, if it is not empty.
_TAGGED = re.compile(r"([^{}]*)\{([^{}]+)\}(.*)", re.DOTALL)


def hash_tag(name: str) -> str:
    """The text between the braces of a limit's keys, which decides its hash slot in a cluster."""
    tagged = _TAGGED.fullmatch(name)
    return escape(tagged[2] if tagged else name)


@lru_cache(maxsize=4096)  # one look at a limit makes some twenty keys
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
