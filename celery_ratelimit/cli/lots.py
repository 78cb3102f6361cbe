"""``parked``, ``explain``, ``release``, ``purge``, ``drain``: tasks that wait in the parking lots."""

from __future__ import annotations

from typing import Any

import click

from .command_errors import app_of
from .options import FORCE, JSON, KEY, NAME, force_option
from .shown import number_of, plain, show_json, table_of, tell

__all__ = ["lot_commands"]

_YES = click.option("--yes", is_flag=True, help="Do not ask.")
_IDS = click.argument("ids", nargs=-1, metavar="[ID]...")


@click.command()
@NAME
@KEY
@click.option("--page", type=click.IntRange(min=1), default=1, show_default=True, help="Which page to show.")
@click.option("--number", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Tasks on a page.")
@FORCE
@JSON
@click.pass_context
def parked(ctx: click.Context, name: str, key: str | None, page: int, number: int, force: bool, as_json: bool) -> None:
    """Show the parked tasks of a limit in the order of their turns.

    With the time until each starts, in pages.
    """
    from ..operations.parked_tasks import parked_page
    from ..operations.wording import PARKED_HEADS, parked_row

    total, rows = parked_page(app_of(ctx), name, key, (page - 1) * number, number, force=force)
    if as_json:
        show_json({"name": name, "parked": total, "page": page, "tasks": rows})
        return
    if rows:
        tell(
            table_of(PARKED_HEADS, [parked_row(row) for row in rows], ("QUEUE", "PARKED SINCE", "TASK", "SHARE", "KEY"))
        )
    pages = max(1, -(-total // number))
    following = f" (next: --page {page + 1})" if page < pages else ""
    click.echo(f"{total} parked" + (f", page {page} of {pages}{following}" if pages > 1 else ""))


@click.command()
@click.argument("task_id")
@JSON
@click.pass_context
def explain(ctx: click.Context, task_id: str, as_json: bool) -> None:
    """Say where a task is, what it waits for, and when it will start.

    Exits with status 1 if it is not found.
    """
    found = _lots(app_of(ctx)).explain(task_id)
    if as_json:
        show_json(found)
    else:
        click.echo(str(found))
    if not found.found:
        ctx.exit(1)


@click.command()
@NAME
@_IDS
@KEY
@_YES
@FORCE
@JSON
@click.pass_context
def release(
    ctx: click.Context, name: str, ids: tuple[str, ...], key: str | None, yes: bool, force: bool, as_json: bool
) -> None:
    """Send parked tasks of a limit back to their queue now.

    They still need permits, behind tasks that wait already. Use it after the code has given parked tasks another limit
    or key: a worker then decides about them anew.

    With IDs, only these tasks. NAME may also be the id of a task: it is searched among the parked tasks of all limits
    and keys. Asks first if neither an ID nor --key is given.
    """
    _take_out(ctx, "release", name, ids, key, yes, force, as_json)


@click.command()
@NAME
@_IDS
@KEY
@_YES
@FORCE
@JSON
@click.pass_context
def purge(
    ctx: click.Context, name: str, ids: tuple[str, ...], key: str | None, yes: bool, force: bool, as_json: bool
) -> None:
    """Delete parked tasks for good.

    As celery purge deletes messages in a queue. Asks first.
    """
    _take_out(ctx, "purge", name, ids, key, yes, force, as_json)


def _take_out(
    ctx: click.Context,
    verb: str,
    name: str,
    ids: tuple[str, ...],
    key: str | None,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    from ..operations.parked_tasks import take_out

    app = app_of(ctx)
    lots = _lots(app)
    if not ids and verb == "release" and name not in lots.limits:
        found = lots.explain(name) if not force else None
        if found is not None and found.where in ("parked", "aside"):
            name, key, ids = found.limit, found.key, (name,)
        elif found is not None and found.found:
            raise click.ClickException(f"nothing to release: {str(found).splitlines()[0]}")
    if not yes and (verb == "purge" or not (ids or key)):
        found = [lot.parked for lot in lots.lots(name, force=force) if key in (None, lot.key)] if not ids else []
        keys = f" of {len(found)} keys" if len(found) > 1 else ""
        what = number_of(len(ids)) if ids else f"all {number_of(sum(found), 'parked task')}{keys} of {plain(name)}"
        if ids or found:
            question = f"Send {what} back to the queue now?" if verb == "release" else f"Delete {what}?"
            click.confirm(question, abort=True, err=True)
    taken = take_out(app, verb, name, ids, key, force=force)
    if as_json:
        show_json({"name": name, "tasks": taken})
    else:
        click.echo(f"{number_of(taken)} {'sent back to the queue' if verb == 'release' else 'deleted'}")
    if ids and taken < len(ids):
        raise click.ClickException(f"{len(ids) - taken} of {len(ids)} are not parked there")


@click.command()
@force_option("Even if workers answer: a task that one is about to start may run twice.")
@JSON
@click.pass_context
def drain(ctx: click.Context, force: bool, as_json: bool) -> None:
    """Before you remove this package: return all parked tasks.

    Returns all parked tasks, and tasks on their way from a parking lot to a worker, to the queues that they were sent
    to. Stop the workers first: they would park the tasks again. Exits with status 1 and moves nothing while workers
    answer.
    """
    tasks = _lots(app_of(ctx)).drain(force=force)
    if as_json:
        show_json({"tasks": tasks})
    else:
        click.echo(f"{number_of(tasks)} returned to the queues that they were sent to")


def _lots(app: Any) -> Any:
    from ..lots import ParkingLots

    return ParkingLots(app)


lot_commands: tuple[click.Command, ...] = (parked, explain, release, purge, drain)
