"""``set``, ``unset``, ``pause``, ``resume``, ``reset``: change a limit while the fleet runs; ``history``: who has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from .group import NAME, app_of, as_json
from .shown import Duration, plain, show_json, table_of, tell

__all__ = ["change_commands"]

_KEY = click.option("--key", help="Only this bucket of a limit that is kept by key, as in tenant:7.")
_REASON = click.option("--reason", default="", help="Why: stands in status and history.")
_BY = click.option("--by", help="Who: default is user@host.")
_FORCE = click.option("--force", is_flag=True, help="Also for a name that nobody knows.")


def _changes(command: Callable[..., None]) -> Callable[..., None]:
    """The options of each command that changes something."""
    for option in (click.pass_context, as_json, _FORCE, _BY, _REASON, _KEY, NAME):
        command = option(command)
    return command


def _change(
    ctx: click.Context, name: str, key: str | None, force: bool, as_json: bool, do: Callable[[Any], Any]
) -> None:
    """Do it, and print what was there before and what is there now."""
    from ..app.state import limiter_of
    from ..parking.in_words import in_force_now

    limiter = limiter_of(app_of(ctx))
    before = limiter.config(name, key=key, force=force)
    done = do(limiter)
    after = limiter.config(name, key=key, force=True)
    if as_json:
        show_json({"name": name, "key": key, "done": done is not False, "before": before, "after": after})
        return
    of = plain(name) + (f", key {key!r}" if key else "")
    if done is False:
        click.echo(f"{of}: nothing to change: {in_force_now(after)}")
    else:
        click.echo(f"{of}: was {in_force_now(before)}\n{of}: now {in_force_now(after)}")


@click.command("set")
@_changes
@click.argument("rate")
@click.option("--burst", type=click.IntRange(min=1), help="Default: what the code says.")
@click.option("--for", "for_", type=Duration(), help="Then the code's rate holds again: 90, 10m, 1h30m.")
def set_(
    ctx: click.Context,
    name: str,
    rate: str,
    burst: int | None,
    for_: float | None,
    key: str | None,
    reason: str,
    by: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Put RATE ("20/s"; a number for places) in the place of the code's, for the whole fleet and at once."""
    from ..parking.by_hand import limit_meant

    said: dict[str, Any] = {"key": key, "for_": for_, "by": by, "reason": reason, "force": force}
    _change(
        ctx,
        name,
        key,
        force,
        as_json,
        lambda limiter: limiter.set_rate(name, limit_meant(limiter, name, rate, burst), **said),
    )


@click.command()
@_changes
def unset(
    ctx: click.Context, name: str, key: str | None, reason: str, by: str | None, force: bool, as_json: bool
) -> None:
    """Take the stored rate away: the code's holds again."""
    said: dict[str, Any] = {"key": key, "by": by, "reason": reason, "force": force}
    _change(ctx, name, key, force, as_json, lambda limiter: limiter.delete(name, **said))


@click.command()
@_changes
@click.option("--for", "for_", type=Duration(), help="90, 10m, 1h30m. Default: until it is resumed.")
def pause(
    ctx: click.Context,
    name: str,
    for_: float | None,
    key: str | None,
    reason: str,
    by: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Let nothing through, in the whole fleet. A shorter pause never shortens one that is there."""
    said: dict[str, Any] = {"key": key, "by": by, "reason": reason, "force": force}
    _change(ctx, name, key, force, as_json, lambda limiter: limiter.pause(name, for_ or 1e9, **said))


@click.command()
@_changes
def resume(
    ctx: click.Context, name: str, key: str | None, reason: str, by: str | None, force: bool, as_json: bool
) -> None:
    """End a pause."""
    said: dict[str, Any] = {"key": key, "by": by, "reason": reason, "force": force}
    _change(ctx, name, key, force, as_json, lambda limiter: limiter.resume(name, **said))


@click.command()
@_changes
def reset(
    ctx: click.Context, name: str, key: str | None, reason: str, by: str | None, force: bool, as_json: bool
) -> None:
    """Forget what was taken: the bucket is full again, and those who wait ask anew."""
    from ..app.plan import limits_of_app
    from ..app.state import limiter_of
    from ..parking.overview import standings_of

    app = app_of(ctx)
    code = limits_of_app(app).get(name) or limiter_of(app).quotas.get(name)
    (before,) = standings_of(app, {name: code}, key or "")
    limiter_of(app).reset(name, key=key, by=by, reason=reason, force=force)
    (after,) = standings_of(app, {name: code}, key or "")
    if as_json:
        show_json({"name": name, "key": key, "before": before, "after": after})
        return
    of = plain(name) + (f", key {key!r}" if key else "")
    for when, standing in (("was", before), ("now", after)):
        click.echo(f"{of}: {when} {standing.remaining} of {standing.size} left, {standing.waiting} with a slot")


@click.command()
@NAME
@_FORCE
@as_json
@click.pass_context
def history(ctx: click.Context, name: str, force: bool, as_json: bool) -> None:
    """Show who has changed a limit, when and why: the last hundred changes of it and its keys."""
    from ..app.state import limiter_of
    from ..parking.in_words import HISTORY_HEADS, history_rows

    found = limiter_of(app_of(ctx)).history(name, force=force)
    if as_json:
        show_json(found)
    elif not found:
        click.echo("Nobody has changed it. (Versions before this one kept no history.)")
    else:
        tell(table_of(HISTORY_HEADS, history_rows(found)))


change_commands = (set_, unset, pause, resume, reset, history)
