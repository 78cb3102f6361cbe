"""What the pages read from the store, on threads, by the same functions as the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery import Celery

from ..app.app_limits import names_of_app
from ..app.app_store import limiter_of
from ..errors import ConfigurationError, StoreUnavailable
from ..operations.parked_tasks import ParkingLots
from .changes import change
from .one import limit, parked
from .table import table

__all__ = ["PageData"]


class PageData:
    """Reads an app's limits from the store for the pages, and changes them.

    Args:
        app: the app; its tasks have to be imported.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._known: set[str] = names_of_app(app)
        self._registry: Any = None

    def knows(self, name: str) -> bool:
        """Whether there is a limit of that name. While the store does not answer any may be one."""
        if name in self._known:
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
        if name:
            return limit(self._app, name)
        parts = table(self._app)
        self._known.update(part.partition(" ")[2] for part in parts if part.startswith("limit "))
        return parts

    def parked(self, name: str, key: str | None, page: int) -> dict[str, Any]:
        """Tasks that are parked for a limit."""
        return parked(self._app, name, key, page)

    def explain(self, id: str) -> tuple[str, str]:
        """Where a task is, as the command line says it; and the limit that it waits for, ``""``: none."""
        found = ParkingLots(self._app).explain(id)
        return str(found), found.limit

    def change(self, name: str, fields: Mapping[str, str]) -> tuple[str, str]:
        """See :func:`~celery_ratelimit.web.changes.change`."""
        return change(self._app, name, fields)

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
