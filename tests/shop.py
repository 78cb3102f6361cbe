"""An app with limits of several kinds, what a worker of it has parked, and its command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from celery import Celery
from click.testing import CliRunner, Result

from celery_ratelimit import Limit, RateLimitedTask
from celery_ratelimit.backlog.backlog import ToPark, backlog_of
from celery_ratelimit.cli import ratelimit
from celery_ratelimit.operations.bucket_status import standings_of
from tests.conftest import PATIENT

__all__ = ["Run", "command_line", "make_app", "park"]

Run = Callable[..., Result]


def make_app(url: str, **conf: Any) -> Celery:
    app = Celery("shop", broker=url, backend="cache+memory://", set_as_current=False)
    app.conf.update(
        ratelimit_url=url + PATIENT,
        ratelimit_quotas={"stripe": {"rate": "100/s", "burst": 5}, "gpu": {"limit": 4}},
        ratelimit_queues={"e\nmails": "14/s"},
        **conf,
    )

    @app.task(name="shop.charge", base=RateLimitedTask, limits="stripe", shared=False)
    def charge() -> None: ...

    @app.task(
        name="shop.sync", base=RateLimitedTask, limits=Limit("5/s", name="tenant", key="tenant:{tenant}"), shared=False
    )
    def sync(tenant: str) -> None: ...

    @app.task(name="shop.train", base=RateLimitedTask, limits="gpu", shared=False)
    def train() -> None: ...

    return app


def command_line(app: Celery) -> Run:
    """``celery -A shop ratelimit …``, as a function of its arguments; ``of``: another app."""

    def run(*arguments: str, of: Celery = app, **how: Any) -> Result:
        return CliRunner().invoke(ratelimit, list(arguments), obj=SimpleNamespace(app=of), prog_name="ratelimit", **how)

    return run


def now_of(app: Celery) -> float:
    """The store's clock, in microseconds since 1970; a test may have stopped it."""
    return next(iter(standings_of(app, {"": None}))).now * 1e6


def park(
    app: Celery,
    name: str,
    number: int,
    *,
    key: str = "",
    task: str = "shop.charge",
    cost: int = 1,
    share: str | None = None,
    queue: str = "celery",
    ids: Sequence[str] = (),
    worker: bool = True,
    ago: float = 0.0,
) -> list[str]:
    """Messages as a worker parks them, which has just reported its queue and limit; ``worker``: else there is none.

    ``ago``: seconds since when they are throttled.
    """
    since = round(now_of(app) - ago * 1e6) if ago else 0
    parking, ids = backlog_of(app), list(ids) or [f"{name}-{share or key}-{n}" for n in range(number)]
    messages = []
    for n, id in enumerate(ids):
        marker = {"queue": queue, "eta": None, "exchange": "", "routing_key": queue, "id": f"{id}~0@{queue}"}
        headers = {"id": id, "task": task, "argsrepr": f"({n},)", "kwargsrepr": "{}", "celery-ratelimit-return": marker}
        parcel = {
            "id": id,
            "to": f"{queue}.throttled",
            "body": "W1tdLCB7fSwge31d",
            "content_type": "application/json",
            "content_encoding": "utf-8",
            "compression": None,
            "headers": headers,
            "priority": None,
            "delivery_mode": 2,
            "expires": None,
            "properties": {},
        }
        messages.append(
            ToPark(
                f"{id}~0@{queue}",
                cost,
                json.dumps(parcel),
                1,
                "t",
                since and since + n,
                task=id,
                queue=queue,
                share=share,
            )
        )
    if worker:
        parking.register.attend("w1", [queue], [], 3600.0)
        parking.register.seen([name])
    parking.park({(name, key): messages})
    return ids
