"""What a store needs for its limits, and whether it answers."""

from __future__ import annotations

import re
from pathlib import Path

from celery_ratelimit import Limiter, StoreUnavailable

ROOT = Path(__file__).parents[3]
ACL = re.search(r"^ACL SETUSER limiter (.*?)\n```", (ROOT / "docs/stores.md").read_text(), re.MULTILINE | re.DOTALL)


def rights() -> list[str]:
    """The rights that the documentation says are enough."""
    assert ACL is not None
    return [word for word in ACL[1].replace("\\\n", " ").split() if not word.startswith(">")]


def answers(limiter: Limiter) -> bool:
    try:
        limiter.ping()
    except StoreUnavailable:
        return False
    return True
