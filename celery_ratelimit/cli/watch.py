"""``watch``: what becomes of throttled tasks, as it happens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ..name_suggestions import near
from ..words import NO_END
from .command_errors import app_of
from .options import JSON, NAMES
from .shown import clock, plain

__all__ = ["watch"]


@click.command()
@NAMES
@click.option("--enable", is_flag=True, help="Tell the workers to send events first, as with -E.")
@click.option("--most", type=click.IntRange(min=1), help="End after so many.")
@JSON
@click.pass_context
def watch(ctx: click.Context, names: tuple[str, ...], enable: bool, most: int | None, as_json: bool) -> None:
    """Show each throttled task as it happens, until Ctrl-C.

    With the limit that throttled it, and what becomes of it. By Celery's events: of workers that send them (-E), or
    that run when --enable tells them to.
    """
    app, seen = app_of(ctx), 0
    for warning in _unknown(app, names):
        click.echo(warning, err=True)

    def show(event: dict[str, Any]) -> None:
        nonlocal seen
        if (names and event.get("limit") not in names) or receiver.should_stop:
            return  # several may come at once
        click.echo(json.dumps(event, default=str) if as_json else _line(event))
        seen += 1
        if most is not None and seen >= most:
            receiver.should_stop = True

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"task-throttled": show})
        if enable:
            app.control.enable_events()
        of = ", ".join(map(plain, names)) or "all limits"
        workers = "all running workers" if enable else "workers that run with -E (--enable: from all)"
        click.echo(f"Waiting for throttled tasks of {of}, from {workers}. Ctrl-C ends.", err=True)
        try:
            receiver.capture(limit=None, timeout=None, wakeup=False)
        except KeyboardInterrupt:
            pass


def _unknown(app: Any, names: Sequence[str]) -> list[str]:
    """A warning for each name of no limit of the app. Workers with other code may have such a limit."""
    from ..app.app_limits import names_of_app

    known = names_of_app(app)
    hints = {name: near(name, known) or "workers with other code may have it." for name in names if name not in known}
    return [plain(f"Warning: this app has no limit {name!r}: {hint}") for name, hint in hints.items()]


def _line(event: dict[str, Any]) -> str:
    key = f", key {event['key']!r}" if event.get("key") else ""
    outcome = event.get("outcome", "?")
    said = f"{event.get('limit') or 'the store'} ({event.get('rate', '?')}{key}): {outcome}{_when(event)}"
    return plain(f"{clock(event.get('timestamp'))} {event.get('hostname', '?')} {event.get('uuid', '?')} {said}")


def _when(event: Mapping[str, Any]) -> str:
    """When the task starts; of one that does not wait, when it could have."""
    wait = event.get("retry_after")
    if not isinstance(wait, (int, float)):
        return ""
    if not event.get("limit"):
        return f" for {wait:.2f} s"
    if wait > NO_END:
        return ", until the limit is resumed"
    waits = event.get("outcome") in ("waiting", "parked", "returned")
    return f", {'its turn is' if waits else 'a permit is free'} in {wait:.2f} s"
