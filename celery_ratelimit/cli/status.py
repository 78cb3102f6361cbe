"""``status``: each limit at a glance; ``top``: the same, live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from time import sleep, time
from typing import TYPE_CHECKING, Any

import click

from .group import app_of
from .options import FORCE, JSON, NAMES
from .shown import clock, end_of, length, plain, show_json, table_of, tell, unnamed

if TYPE_CHECKING:
    from ..parking.overview import LimitStatus

__all__ = ["rate_set_by", "shadow_set_by", "status", "top"]

_HEADS = ("LIMIT", "CODE", "STORED", "USED", "LEFT", "WAITING", "PARKED", "OLDEST", "QUEUED", "DRAINS IN", "STATE")
#: Where a terminal is narrow; what is left says which limit is in trouble, and ``status NAME`` has all of it.
_GIVES_WAY = ("OLDEST", "QUEUED", "WAITING", "LEFT", "CODE", "DRAINS IN", "USED", "STORED", "PARKED")


@click.command()
@NAMES
@FORCE
@JSON
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
        for each in found:
            if each.would is not None:
                click.echo(f"{plain(each.name)} is in shadow: {each.would}")


@click.command()
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.pass_context
def top(ctx: click.Context, every: float) -> None:
    """The same as status, live, until Ctrl-C. Wants rich (pip install celery-ratelimit[cli])."""
    from ..errors import STORE_TROUBLES
    from ..parking.overview import overview

    try:
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        raise click.ClickException("top needs rich: pip install 'celery-ratelimit[cli]'") from None
    app = app_of(ctx)
    busiest = ("paused", "backlogged", "at its limit", "shadow", "active", "idle")

    def look() -> Any:
        found = sorted(overview(app), key=lambda each: (busiest.index(each.state), -each.parked, each.name))
        return _table(found)

    shown, seen = look(), time()
    with Live(shown, auto_refresh=False) as live:
        try:
            while True:
                sleep(every)
                try:
                    shown, seen = look(), time()
                except STORE_TROUBLES:  # it may be back in a moment, and somebody waits for that
                    lost = Text(f"The store does not answer; this was so at {clock(seen)}.", style="bold")
                    live.update(Group(shown, lost), refresh=True)
                else:
                    live.update(shown, refresh=True)
        except KeyboardInterrupt:
            pass


def rate_set_by(config: Any) -> str:
    """The stored limit, and who set it, until when and why; ``""``: none is stored."""
    if config.stored is None:
        return ""
    until = f", {end_of('unset', config.until)}" if config.until else ""
    reason = f", {config.reason!r}" if config.reason else ""
    return plain(f"{unnamed(config.stored)} by {config.by} {clock(config.since)}{until}{reason}")


def shadow_set_by(config: Any) -> str:
    """Who has put a limit into shadow, since when and why; or that the code says so."""
    stored = config.stored_shadow
    if stored is None:
        return "as in the code"
    reason = f", {stored.reason!r}" if stored.reason else ""
    return plain(f"by {stored.by} {clock(stored.since)}{reason}")


def _table(found: Sequence[LimitStatus]) -> Any:
    return table_of(_HEADS, [_row(each) for each in found], _GIVES_WAY)


def _row(each: LimitStatus) -> tuple[str, ...]:
    standing, config = each.standing, each.standing.config
    left = f"{each.remaining}/{standing.size}" if each.remaining is not None else "by key" if each.by_key else "?"
    state = f"paused {end_of('resumed', each.paused_until)}" if each.paused_until is not None else each.state
    return (
        plain(each.name),
        unnamed(config.code) if config.code is not None else "-",
        rate_set_by(config) or "-",
        _used(each),
        left,
        "-" if each.by_key else str(standing.waiting),
        str(each.parked) + ("" if each.attended else " (nobody attends)"),
        length(standing.now - each.oldest) if each.oldest is not None else "?" if each.parked else "-",
        "?" if each.queued is None else str(each.queued),
        length(each.drains_in) if each.drains_in != 0 else "-",
        state,
    )


def _used(each: LimitStatus) -> str:
    """As in ``93 of 100/s``; of a limit by key, how much of all its buckets together."""
    if not each.used:
        return "?" if each.used is None else "-"
    number = f"{each.used:.2g}" if each.used < 9.95 else f"{each.used:.0f}"
    limit = each.standing.config.in_force
    rate = getattr(limit, "rate", None)
    if rate is None:
        return f"{number} of {each.standing.size}" if limit is not None else f"{number}/s"
    if each.share is not None:
        return f"{number} of {rate}"
    return number + rate[rate.find("/") :] if "/" in rate else f"{number}, of {rate} each"


def _lines(each: LimitStatus) -> list[str]:
    """One limit, whole."""
    standing, config = each.standing, each.standing.config
    row = dict(zip(_HEADS, _row(each), strict=True))
    by_key = f", by {config.code.key!r}" if each.by_key and config.code is not None else ""
    lots = f" in {each.lots} lots" if each.lots > 1 else ""
    lines = [
        f"{row['LIMIT']}: {each.state}",
        f"  in the code     {row['CODE']}{plain(by_key)}",
        f"  stored          {row['STORED']}",
        f"  used            {row['USED']}{_share(each)}",
        f"  left of it      {row['LEFT']}" + ("" if each.by_key else f", full in {length(standing.reset_after)}"),
        f"  have a slot     {row['WAITING']}",
        f"  parked          {row['PARKED']}{lots}" + (f", the oldest for {row['OLDEST']}" if each.parked else ""),
        f"  in queues       {row['QUEUED']}" + (f" ({plain(', '.join(each.queues))})" if each.queues else ""),
        f"  drains in       {row['DRAINS IN']}",
    ]
    if each.would is not None:
        lines.append(f"  in shadow       {shadow_set_by(config)}: {each.would}")
    if each.paused_until is not None:
        lines.append(f"  paused          {end_of('resumed', each.paused_until)}")
    if each.tasks:
        lines.append(f"  for the tasks   {plain(', '.join(each.tasks))}")
    return lines


def _share(each: LimitStatus) -> str:
    if each.share is None or not each.used:
        return ""
    return f": {each.share:.0%}" + (" lately" if hasattr(each.standing.config.in_force, "rate") else "")


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
        "used": each.used,
        "share": each.share,
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
        "shadow": config.shadow,
        "stored_shadow": config.stored_shadow,
        "would": None if each.would is None else {**asdict(each.would), "said": str(each.would)},
    }
