"""The fleet's app in a worker that kills itself, with SIGKILL, at one step of the throttle path, once."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kombu.transport.redis import Channel

from celery_ratelimit.backlog import backlog as parking
from celery_ratelimit.backlog import return_scheduler, tuning
from tests.apps.fleet import app
from tests.apps.steps import STEPS, TOGETHER

__all__ = ["app"]


def _die_once(function: Callable[..., Any], when: str, mark: Path) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            _die(mark)
        result = function(*args, **kwargs)
        if when == "after":
            _die(mark)
        return result

    return run


def _die(mark: Path) -> None:
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    for channel in [each for each in gc.get_objects() if isinstance(each, Channel)]:
        if channel._in_poll:
            _end_poll(channel)
    os.killpg(os.getpid(), signal.SIGKILL)


def _end_poll(channel: Channel) -> None:
    """Put back the message that Redis has handed out, and kombu has not read: kombu loses it at any kill."""
    connection = channel.client.connection
    host, port = connection._sock.getsockname()[:2]
    with channel._create_client() as other:
        for client in other.client_list():
            if client["addr"] == f"{host}:{port}":
                other.client_unblock(int(client["id"]))
        # Nothing comes if this is called while the message that came is handled.
        if connection.can_read(2 * channel.brpop_timeout) and (answer := connection.read_response()):
            other.rpush(*answer)


if step := os.environ.get("TEST_DIES"):
    tuning.PUBLISH_TIMEOUT = 1.0
    tuning.REPORT_DELAY = 0.2
    owner, name, when = {**STEPS, **TOGETHER}[step]
    setattr(owner, name, _die_once(getattr(owner, name), when, Path(os.environ["TEST_RECORDS"], "died")))
    assert return_scheduler.Backlog is parking.Backlog
