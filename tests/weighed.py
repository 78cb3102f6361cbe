"""What fifty tenants weigh that share a limit, and what a call of theirs costs at the most."""

from __future__ import annotations

__all__ = ["DEAREST", "WEIGHTS"]

DEAREST = 20
WEIGHTS = {f"t{number:02}": 1 + number % 8 for number in range(50)}
