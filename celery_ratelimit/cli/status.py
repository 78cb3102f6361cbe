"""``status``: each limit at a glance; ``top``: the same, live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from time import sleep, time
from typing import TYPE_CHECKING, Any

import click

from .command_errors import app_of
from .options import FORCE, JSON, NAMES
from .shown import NO_LIMITS, clock, plain, show_json, table_of, tell

if TYPE_CHECKING:
    from ..operations.limit_status import LimitStatus
    from ..operations.read_parking_lots import ParkingLot

__all__ = ["status", "top"]

#: Where a terminal is narrow; what is left says which limit is in trouble, and ``status NAME`` has all of it.
_GIVES_WAY = ("OLDEST PARKED", "QUEUED", "STARTING SOON", "FREE NOW", "CODE", "DRAINS IN", "USED", "OVERRIDE", "PARKED")


@click.command()
@NAMES
@FORCE
@JSON
@click.pass_context
def status(ctx: click.Context, names: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Show each limit: its rate, its use, and the tasks that wait.

    And the time until all waiting tasks have had their turn. With names, all details of these limits.
    """
    from ..backlog.backlog import backlog_of
    from ..backlog.store_memory import memory_warning
    from ..operations.overview import overview
    from ..operations.read_parking_lots import longest

    app = app_of(ctx)
    found = overview(app, *names, force=force)
    if as_json:
        show_json([{**_data(each), "longest": longest(app, each)} if names else _data(each) for each in found])
    elif not found:
        click.echo(NO_LIMITS)
    elif names:
        click.echo("\n\n".join("\n".join(_lines(each, longest(app, each))) for each in found))
    else:
        tell(_table(found))
        for each in found:
            if each.shadow_report is not None:
                click.echo(f"{plain(each.name)} is in shadow: {each.shadow_report}")
            for failure in each.failures:
                click.echo(f"{plain(each.name)}: {plain(str(failure))}")
        if full := memory_warning(*backlog_of(app).memory()):
            click.echo(f"Warning: {full}", err=True)


@click.command()
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.pass_context
def top(ctx: click.Context, every: float) -> None:
    """The same as status, live, until Ctrl-C. Wants rich (pip install celery-ratelimit[cli])."""
    from ..errors import STORE_TROUBLES
    from ..operations.overview import overview
    from ..operations.wording import busiest

    try:
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        raise click.ClickException("top needs rich: pip install 'celery-ratelimit[cli]'") from None
    app = app_of(ctx)

    def look() -> Any:
        return _table(sorted(overview(app), key=busiest))

    shown, seen = look(), time()
    with Live(shown, auto_refresh=False) as live:
        try:
            while True:
                sleep(every)
                try:
                    shown, seen = look(), time()
                except STORE_TROUBLES:  # it may be back in a moment
                    lost = Text(f"The store does not answer; this was so at {clock(seen)}.", style="bold")
                    live.update(Group(shown, lost), refresh=True)
                else:
                    live.update(shown, refresh=True)
        except KeyboardInterrupt:
            pass


def _table(found: Sequence[LimitStatus]) -> Any:
    from ..operations.wording import HEADS, row_of

    return table_of(HEADS, [row_of(each) for each in found], _GIVES_WAY)


def _lines(each: LimitStatus, backlogs: Sequence[ParkingLot]) -> list[str]:
    """One limit, whole."""
    from ..operations.wording import facts_of

    return [f"{plain(each.name)}: {each.state}", *[f"  {what:<17} {said}" for what, said in facts_of(each, backlogs)]]


def _data(each: LimitStatus) -> dict[str, Any]:
    standing, config, report = each.standing, each.standing.config, each.shadow_report
    return {
        "name": each.name,
        "state": each.state,
        "code": config.code,
        "stored": config.stored,
        "in_force": config.in_force,
        "by": config.by,
        "reason": config.reason,
        "since": config.since or None,
        "until": config.until,
        "by_key": each.by_key,
        "used": each.used,
        "share": each.share,
        "used_in_minute": each.used_in_minute,
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
        "forecast": each.forecast,
        "paused_until": each.paused_until,
        "paused_by": config.paused_by,
        "pause_reason": config.pause_reason,
        "paused_keys": sum(kind == "p" for kind, _ in each.key_settings),
        "rated_keys": sum(kind == "r" for kind, _ in each.key_settings),
        "keys": [key.config for key in each.settled_keys],
        "attended": each.attended,
        "tasks": each.tasks,
        "failures": each.failures,
        "shadow": config.shadow,
        "stored_shadow": config.stored_shadow,
        "shadow_report": None if report is None else {**asdict(report), "said": str(report)},
    }
