"""``parked``, ``explain``, ``release``, ``purge``, ``drain``: tasks that wait in the parking lots."""

from __future__ import annotations

from typing import Any

import click

from .group import app_of
from .options import FORCE, JSON, KEY, NAME
from .shown import clock, length, number_of, plain, show_json, table_of, tell

__all__ = ["lot_commands"]

_IDS = click.argument("ids", nargs=-1, metavar="[ID]...")


@click.command()
@NAME
@KEY
@click.option("--page", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--number", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Tasks on a page.")
@FORCE
@JSON
@click.pass_context
def parked(ctx: click.Context, name: str, key: str | None, page: int, number: int, force: bool, as_json: bool) -> None:
    """Show the tasks that are parked for a limit, in the order of their turns, and when each is about to start."""
    from ..parking.overview import standings_of

    app = app_of(ctx)
    lots = _lots(app)
    rows: list[dict[str, Any]] = []
    skip, total = (page - 1) * number, 0
    for lot in lots.lots(name, force=force):
        if key is not None and lot.key != key:
            continue
        total += lot.parked
        if skip >= lot.parked or len(rows) == number:
            skip = max(0, skip - lot.parked)
            continue
        (standing,) = standings_of(app, {name: lots.limits.get(name)}, lot.key)
        each = lot.cost / lot.parked * standing.interval if standing.interval else None
        soonest = standing.now + max(standing.retry_after, standing.config.paused)
        for place, task in enumerate(
            lots.tasks(name, lot.key, first=skip, number=number - len(rows), force=True), skip
        ):
            turn = soonest + place * each if each is not None else None
            rows.append({"place": place + 1, "key": lot.key, "turn": turn, "task": task, "now": standing.now})
        skip = 0
    if as_json:
        show_json({"name": name, "parked": total, "page": page, "tasks": rows})
        return
    if rows:
        heads = ("PLACE", "KEY", "ID", "TASK", "QUEUE", "WAITS SINCE", "TURN IN")
        tell(table_of(heads, [_row(row) for row in rows], ("QUEUE", "WAITS SINCE", "TASK", "KEY")))
    pages = max(1, -(-total // number))
    click.echo(f"{total} parked" + (f", page {page} of {pages}" if pages > 1 else ""))


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    task, turn = row["task"], row["turn"]
    wait = length(max(0.0, turn - row["now"])) if turn is not None else "?"
    return (
        str(row["place"]),
        plain(row["key"]) or "-",
        plain(task.id),
        plain(task.task),
        plain(task.queue),
        clock(task.since),
        wait,
    )


@click.command()
@click.argument("task_id")
@JSON
@click.pass_context
def explain(ctx: click.Context, task_id: str, as_json: bool) -> None:
    """Say where a task is, what it waits for, and when it will start. Ends with 1 if nobody knows of it."""
    found = _lots(app_of(ctx)).explain(task_id)
    if as_json:
        show_json(found)
    else:
        click.echo("\n".join(plain(line) for line in str(found).splitlines()))
    if not found.found:
        ctx.exit(1)


@click.command()
@NAME
@_IDS
@KEY
@FORCE
@JSON
@click.pass_context
def release(ctx: click.Context, name: str, ids: tuple[str, ...], key: str | None, force: bool, as_json: bool) -> None:
    """Send parked tasks of a limit, or the task of an ID, back to the broker now. They still have to ask their limits.

    NAME may be the id of a task alone: it is looked for in all lots.
    """
    _take_out(ctx, "release", name, ids, key, force, as_json)


@click.command()
@NAME
@_IDS
@KEY
@click.option("--yes", is_flag=True, help="Do not ask.")
@FORCE
@JSON
@click.pass_context
def purge(
    ctx: click.Context, name: str, ids: tuple[str, ...], key: str | None, yes: bool, force: bool, as_json: bool
) -> None:
    """Throw parked tasks away, as celery purge does with those in a queue. Asks first."""
    if not yes:
        what = number_of(len(ids)) if ids else f"all tasks that are parked for {plain(name)}"
        click.confirm(f"Throw away {what}?", abort=True, err=True)
    _take_out(ctx, "purge", name, ids, key, force, as_json)


def _take_out(
    ctx: click.Context, verb: str, name: str, ids: tuple[str, ...], key: str | None, force: bool, as_json: bool
) -> None:
    lots = _lots(app_of(ctx))
    if not ids and verb == "release" and name not in lots.limits:
        found = lots.explain(name) if not force else None
        if found is not None and found.where in ("parked", "aside"):
            name, key, ids = found.limit, found.key, (name,)
    do = getattr(lots, verb)
    keys = [key] if key is not None else [lot.key for lot in lots.lots(name, force=force)]
    taken = sum(do(name, each, list(ids) or None, force=True) for each in keys)
    if as_json:
        show_json({"name": name, "tasks": taken})
    else:
        click.echo(f"{number_of(taken)} {'sent to the broker' if verb == 'release' else 'thrown away'}")
    if ids and taken < len(ids):
        raise click.ClickException(f"{len(ids) - taken} of {len(ids)} are not parked there")


@click.command()
@JSON
@click.pass_context
def drain(ctx: click.Context, as_json: bool) -> None:
    """Hand all that is parked, or on its way back, to the queues that it was sent to, before the package goes.

    Stop the workers first: they would park it again.
    """
    tasks = _lots(app_of(ctx)).drain()
    if as_json:
        show_json({"tasks": tasks})
    else:
        click.echo(f"{number_of(tasks)} handed back to where they were sent, as they were sent")


def _lots(app: Any) -> Any:
    from ..lots import ParkingLots

    return ParkingLots(app)


lot_commands = (parked, explain, release, purge, drain)
