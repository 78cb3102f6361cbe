"""Limits: frozen data without I/O, checked when they are made."""

from .any_limit import AnyLimit
from .concurrency import Concurrency
from .rate_limit import Limit

__all__ = ["AnyLimit", "Concurrency", "Limit"]
