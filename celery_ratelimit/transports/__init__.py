"""HTTP clients that take a permit for every call: httpx, httpx with asyncio, and requests.

>>> import httpx
>>> from celery_ratelimit.transports import LimitedTransport
>>> client = httpx.Client(transport=LimitedTransport(limiter, "stripe"))

A client's library is imported when its transport is asked for: ``pip install celery-ratelimit[httpx]``,
``celery-ratelimit[requests]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._httpx import AsyncLimitedTransport, LimitedTransport
    from ._requests import LimitedAdapter

__all__ = ["AsyncLimitedTransport", "LimitedAdapter", "LimitedTransport"]

_NEEDS = {"AsyncLimitedTransport": "httpx", "LimitedTransport": "httpx", "LimitedAdapter": "requests"}


def __getattr__(name: str) -> Any:
    if name not in _NEEDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    library = _NEEDS[name]
    try:
        import_module(library)
    except ImportError as error:
        raise ImportError(f"{name} needs {library}: pip install 'celery-ratelimit[{library}]'") from error
    return getattr(import_module(f"{__package__}._{library}"), name)
