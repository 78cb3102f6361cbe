"""Acquires permits. ``Limiter`` blocks, ``AsyncLimiter`` awaits; both run the same operations."""

from .limiter import Limiter

__all__ = ["Limiter"]
