"""Asks for permits: one core, with a face for callers who wait and one for those who await."""

from .limiter import Limiter

__all__ = ["Limiter"]
