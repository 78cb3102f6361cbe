"""``status``: each limit at a glance; ``top``: the same, live."""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep
from typing import TYPE_CHECKING, Any

import click

from .group import NAMES, app_of, as_json
from .shown import plain, show_json, table_of, tell

if TYPE_CHECKING:
    from ..parking.overview import LimitStatus

__all__ = ["status", "top"]


@click.command()
@NAMES
@click.option("--force", is_flag=True, help="Names that nobody knows, too.")
@as_json
@click.pass_context
def status(ctx: click.Context, names: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Show how the limits stand: rates, what is left, what waits, and when that is through."""
    from ..parking.overview import overview

    found = overview(app_of(ctx), *names, force=force)
    if as_json:
        show_json([_data(each) for each in found])
    elif not found:
        click.echo("There are no limits.")
    elif names:
        click.echo("\n\n".join("\n".join(_lines(each)) for each in found))
    else:
        tell(_table(found))


@click.command()
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.pass_context
def top(ctx: click.Context, every: float) -> None:
    """The same as status, live, until Ctrl-C. Wants rich (pip install celery-ratelimit[cli])."""
    from ..parking.in_words import busiest
    from ..parking.overview import overview

    try:
        from rich.live import Live
    except ImportError:
        raise click.ClickException("top needs rich: pip install 'celery-ratelimit[cli]'") from None
    app = app_of(ctx)

    def look() -> Any:
        return _table(sorted(overview(app), key=busiest))

    with Live(look(), auto_refresh=False) as live:
        try:
            while True:
                sleep(every)
                live.update(look(), refresh=True)
        except KeyboardInterrupt:
            pass


def _table(found: Sequence[LimitStatus]) -> Any:
    from ..parking.in_words import HEADS, row_of

    return table_of(HEADS, [row_of(each) for each in found])


def _lines(each: LimitStatus) -> list[str]:
    """One limit, whole."""
    from ..parking.in_words import facts_of

    return [f"{plain(each.name)}: {each.state}", *[f"  {what:<15} {said}" for what, said in facts_of(each)]]


def _data(each: LimitStatus) -> dict[str, Any]:
    standing, config = each.standing, each.standing.config
    return {
        "name": each.name,
        "state": each.state,
        "code": config.code,
        "stored": config.stored,
        "by": config.by,
        "reason": config.reason,
        "since": config.since or None,
        "until": config.until,
        "by_key": each.by_key,
        "remaining": each.remaining,
        "size": standing.size,
        "retry_after": standing.retry_after,
        "reset_after": standing.reset_after,
        "waiting": standing.waiting,
        "parked": each.parked,
        "lots": each.lots,
        "oldest": each.oldest,
        "queues": each.queues,
        "queued": each.queued,
        "drains_in": each.drains_in,
        "paused_until": each.paused_until,
        "attended": each.attended,
        "tasks": each.tasks,
    }
