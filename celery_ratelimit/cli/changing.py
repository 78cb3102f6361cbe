"""Change a limit while the fleet runs: ``set``, ``unset``, ``pause``, ``resume``, ``reset``; and its ``history``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from .command_errors import app_of
from .options import FORCE, JSON, NAME, Change, changes
from .shown import Duration, number_of, plain, show_json, table_of, tell

__all__ = ["change_commands"]


def _change(change: Change, do: Callable[[Any], Any]) -> None:
    """Do it, and print what was there before and what is there now."""
    from ..app.app_store import limiter_of
    from ..operations.wording import in_force_now

    name, key = change.name, change.key
    limiter = limiter_of(app_of(change.ctx))
    before = limiter.config(name, key=key, force=change.force)
    done = do(limiter)
    after = limiter.config(name, key=key, force=True)
    if change.as_json:
        show_json({"name": name, "key": key, "done": done is not False, "before": before, "after": after})
        return
    of = _of(change)
    if done is False:
        click.echo(f"{of}: nothing to change: {in_force_now(after)}")
    else:
        click.echo(f"{of}: was {in_force_now(before)}\n{of}: now {in_force_now(after)}")


def _of(change: Change) -> str:
    return plain(change.name) + (f", key {change.key!r}" if change.key else "")


@click.command("set")
@changes()
@click.argument("rate", required=False)
@click.option(
    "--shadow/--no-shadow", default=None, help="It throttles no task, and reports what it would do; or in force."
)
@click.option("--burst", type=click.IntRange(min=1), help="Default: as in the code.")
@click.option("--for", "for_", type=Duration(), help="Then the code's rate holds again: 90, 10m, 1h30m.")
def set_(change: Change, rate: str | None, shadow: bool | None, burst: int | None, for_: float | None) -> None:
    """Replace the code's rate in the whole fleet, at once.

    RATE is a text such as "20/s", or a number for a concurrency limit. Or put the whole limit into shadow, and in force
    again.
    """
    from ..operations.requested_limit import requested_limit

    name, key = change.name, change.key
    if rate is None and shadow is None:
        raise click.UsageError("set what? A RATE, --shadow or --no-shadow")
    if rate is None and (burst is not None or for_ is not None or key is not None):
        raise click.UsageError("--burst, --for and --key are about a RATE, and none is given")

    def do(limiter: Any) -> bool:
        done = rate is not None and limiter.set_rate(
            name, requested_limit(limiter, name, rate, burst), key=key, for_=for_, **change.said
        )
        return (shadow is not None and limiter.set_shadow(name, shadow, **change.said)) or bool(done)

    _change(change, do)


@click.command()
@changes()
@click.option("--shadow", is_flag=True, help="Remove the stored shadow, and not the rate.")
def unset(change: Change, shadow: bool) -> None:
    """Remove the stored rate: the rate of the code holds again.

    A pause stays (see resume), and so does a stored shadow without --shadow.
    """
    if shadow and change.key is not None:
        raise click.UsageError("--shadow is about the whole limit: leave --key out")

    def do(limiter: Any) -> object:
        if shadow:
            return limiter.set_shadow(change.name, None, **change.said)
        return limiter.unset_rate(change.name, key=change.key, **change.said)

    _change(change, do)


@click.command()
@changes()
@click.option("--for", "for_", type=Duration(), help="90, 10m, 1h30m. Default: until resumed.")
def pause(change: Change, for_: float | None) -> None:
    """Start no task of the limit in the whole fleet.

    Running tasks go on. Waiting tasks and new tasks wait until the pause ends; a new task with a max_wait may be given
    up. A shorter pause does not shorten a longer one.
    """
    _change(change, lambda limiter: limiter.pause(change.name, for_ or 1e9, key=change.key, **change.said))


@click.command()
@changes()
def resume(change: Change) -> None:
    """End a pause."""
    _change(change, lambda limiter: limiter.resume(change.name, key=change.key, **change.said))


@click.command()
@changes()
def reset(change: Change) -> None:
    """Fill the bucket again, and forget the slots of waiting tasks.

    Waiting tasks ask for permits again: parked tasks soon and in their order, tasks in workers at the time of their old
    slots at the latest. Running tasks go on; under a concurrency limit they no longer count. A stored rate and a
    pause stay.
    """
    from ..app.app_limits import limits_of_app
    from ..app.app_store import limiter_of
    from ..operations.bucket_status import standings_of

    app, name, key = app_of(change.ctx), change.name, change.key
    code = limits_of_app(app).get(name) or limiter_of(app).quotas.get(name)
    (before,) = standings_of(app, {name: code}, [(name, key or "")])
    limiter_of(app).reset(name, key=key, **change.said)
    (after,) = standings_of(app, {name: code}, [(name, key or "")])
    if change.as_json:
        show_json({"name": name, "key": key, "before": before, "after": after})
        return
    for when, standing in (("was", before), ("now", after)):
        free = f"{standing.remaining} of {standing.size} permits free"
        click.echo(f"{_of(change)}: {when} {free}, {number_of(standing.waiting)} starting soon")


@click.command()
@NAME
@FORCE
@JSON
@click.pass_context
def history(ctx: click.Context, name: str, force: bool, as_json: bool) -> None:
    """Show the last hundred changes of a limit and its keys.

    Each with its author, time and reason.
    """
    from ..app.app_store import limiter_of
    from ..operations.wording import HISTORY_HEADS, history_row

    found = limiter_of(app_of(ctx)).history(name, force=force)
    if as_json:
        show_json(found)
    elif not found:
        click.echo("The limit was never changed.")
    else:
        tell(table_of(HISTORY_HEADS, [history_row(each) for each in found]))


change_commands: tuple[click.Command, ...] = (set_, unset, pause, resume, reset, history)
