"""What there is to be seen: asked of the store, on threads, by the functions on which the command line stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery

from ..app.plan import limits_of_app
from ..app.settings import settings_of
from ..app.state import limiter_of
from ..errors import ConfigurationError, StoreUnavailable
from .table import table

__all__ = ["Looks"]


class Looks:
    """Looks at an app's limits.

    Args:
        app: the app; its tasks have to be imported.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._names: set[str] = {*settings_of(app).quotas, *limits_of_app(app)}
        self._registry: Any = None

    def knows(self, name: str) -> bool:
        """Whether there is a limit of that name. While the store does not answer any may be one."""
        if name in self._names:
            return True
        if not name:
            return False
        try:
            limiter_of(self._app).config(name)
        except StoreUnavailable:
            return True
        except ConfigurationError:
            return False
        return True

    def at(self, name: str) -> Mapping[str, Any]:
        """All limits (``""``), or one: what :class:`~celery_ratelimit.web.poller.Poller` is to show."""
        parts = table(self._app)
        self._names.update(part.partition(" ")[2] for part in parts if part.startswith("limit "))
        return parts

    def metrics(self) -> bytes:
        """The same as ``ratelimit metrics`` serves.

        Raises:
            ConfigurationError: prometheus-client is not installed.
        """
        from .. import prometheus

        if self._registry is None:
            from prometheus_client import CollectorRegistry

            self._registry = CollectorRegistry()
            self._registry.register(prometheus.collector(self._app))
        from prometheus_client import generate_latest

        text: bytes = generate_latest(self._registry)
        return text
