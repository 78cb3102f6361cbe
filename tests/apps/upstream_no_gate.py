"""The tasks of :mod:`tests.apps.upstream` on a worker without the gate."""

from __future__ import annotations

from tests.apps.no_gate import app
from tests.apps.upstream import app as same

assert app is same

__all__ = ["app"]
