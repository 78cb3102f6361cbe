"""``set``, ``unset``, ``pause``, ``resume``, ``reset``: change a limit while the fleet runs; ``history``: who has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from .group import app_of
from .options import FORCE, JSON, NAME, Change, changes
from .shown import Duration, clock, end_of, plain, show_json, table_of, tell, unnamed
from .status import rate_set_by, shadow_set_by

__all__ = ["change_commands"]


def _change(change: Change, do: Callable[[Any], Any]) -> None:
    """Do it, and print what was there before and what is there now."""
    from ..app.state import limiter_of

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
        click.echo(f"{of}: nothing to change: {_now(after)}")
    else:
        click.echo(f"{of}: was {_now(before)}\n{of}: now {_now(after)}")


def _of(change: Change) -> str:
    return plain(change.name) + (f", key {change.key!r}" if change.key else "")


def _now(config: Any) -> str:
    rate = rate_set_by(config) or f"{unnamed(config.code)} (code)"
    if config.shadow:
        rate += f", in shadow {shadow_set_by(config)}"
    if not config.paused:
        return rate
    import time

    return f"{rate}, paused {end_of('resumed', time.time() + config.paused)}"


@click.command("set")
@changes()
@click.argument("rate", required=False)
@click.option(
    "--shadow/--no-shadow", default=None, help="It throttles nobody, and tells what it would do; or in force."
)
@click.option("--burst", type=click.IntRange(min=1), help="Default: what the code says.")
@click.option("--for", "for_", type=Duration(), help="Then the code's rate holds again: 90, 10m, 1h30m.")
def set_(change: Change, rate: str | None, shadow: bool | None, burst: int | None, for_: float | None) -> None:
    """Put RATE ("20/s"; a number for places) in the place of the code's, for the whole fleet and at once; or the whole
    limit into shadow, and in force again.
    """
    name, key = change.name, change.key
    if rate is None and shadow is None:
        raise click.UsageError("set what? A RATE, --shadow or --no-shadow")
    if rate is None and (burst is not None or for_ is not None or key is not None):
        raise click.UsageError("--burst, --for and --key are about a RATE, and none is given")

    def do(limiter: Any) -> bool:
        done = rate is not None and limiter.set_rate(
            name, _limit(limiter, name, rate, burst), key=key, for_=for_, **change.said
        )
        return (shadow is not None and limiter.set_shadow(name, shadow, **change.said)) or bool(done)

    _change(change, do)


def _limit(limiter: Any, name: str, rate: str, burst: int | None) -> Any:
    """What is meant: places for a number, a rate with the options of the code's limit else."""
    from dataclasses import replace

    from ..errors import ConfigurationError
    from ..limits.concurrency import Concurrency
    from ..limits.limit import Limit

    code, is_number = limiter.config(name, force=True).code, rate.isascii() and rate.isdigit()
    if isinstance(code, Concurrency) and not (is_number and int(rate)):
        raise ConfigurationError(
            f"{name} is {unnamed(code)} in the code: write how many places, a whole number of at least 1"
        )
    if isinstance(code, Limit) and is_number:
        raise ConfigurationError(f"{name} is a rate in the code ({unnamed(code)}): write {rate}/s, or {rate}/m")
    if is_number:
        return Concurrency(int(rate))
    if burst is None:
        return rate
    return replace(code, rate=rate, burst=burst) if isinstance(code, Limit) else Limit(rate, burst=burst)


@click.command()
@changes()
@click.option("--shadow", is_flag=True, help="Not the rate: whether it is in shadow is the code's word again.")
def unset(change: Change, shadow: bool) -> None:
    """Take the stored rate away: the code's holds again."""
    if shadow and change.key is not None:
        raise click.UsageError("--shadow is about the whole limit: leave --key out")

    def do(limiter: Any) -> object:
        if shadow:
            return limiter.set_shadow(change.name, None, **change.said)
        return limiter.delete(change.name, key=change.key, **change.said)

    _change(change, do)


@click.command()
@changes()
@click.option("--for", "for_", type=Duration(), help="90, 10m, 1h30m. Default: until it is resumed.")
def pause(change: Change, for_: float | None) -> None:
    """Let nothing through, in the whole fleet. A shorter pause never shortens one that is there."""
    _change(change, lambda limiter: limiter.pause(change.name, for_ or 1e9, key=change.key, **change.said))


@click.command()
@changes()
def resume(change: Change) -> None:
    """End a pause."""
    _change(change, lambda limiter: limiter.resume(change.name, key=change.key, **change.said))


@click.command()
@changes()
def reset(change: Change) -> None:
    """Forget what was taken: the bucket is full again, and those who wait ask anew."""
    from ..app.plan import limits_of_app
    from ..app.state import limiter_of
    from ..parking.overview import standings_of

    app, name, key = app_of(change.ctx), change.name, change.key
    code = limits_of_app(app).get(name) or limiter_of(app).quotas.get(name)
    (before,) = standings_of(app, {name: code}, key or "")
    limiter_of(app).reset(name, key=key, **change.said)
    (after,) = standings_of(app, {name: code}, key or "")
    if change.as_json:
        show_json({"name": name, "key": key, "before": before, "after": after})
        return
    for when, standing in (("was", before), ("now", after)):
        left = f"{standing.remaining} of {standing.size} left, {standing.waiting} with a slot"
        click.echo(f"{_of(change)}: {when} {left}")


@click.command()
@NAME
@FORCE
@JSON
@click.pass_context
def history(ctx: click.Context, name: str, force: bool, as_json: bool) -> None:
    """Show who has changed a limit, when and why: the last hundred changes of it and its keys."""
    from ..app.state import limiter_of

    found = limiter_of(app_of(ctx)).history(name, force=force)
    if as_json:
        show_json(found)
    elif not found:
        click.echo("Nobody has changed it. (Versions before this one kept no history.)")
    else:
        heads = ("WHEN", "WHO", "WHAT", "KEY", "BEFORE", "AFTER", "REASON")
        tell(table_of(heads, _rows(found)))


def _rows(found: list[Any]) -> list[tuple[str, ...]]:
    """A row a change; and one for what was changed between two of them by a version that notes nothing."""
    rows, last = [], dict[str, Any]()
    for each in found:
        if each.verb not in ("reset", "shadow"):
            before = last.get(each.key)
            has_ended = before is not None and before.until is not None and before.until <= each.at
            if before is not None and not has_ended and before.shown != each.before.shown:
                shown = ("?", "?", "?", each.key, before.shown or "code", each.before.shown or "code")
                rows.append((*[plain(part) or "-" for part in shown], "an older version made this change"))
            last[each.key] = each.after
        rows.append(_row(each))
    return rows


def _row(each: Any) -> tuple[str, ...]:
    before, after = ("", "") if each.verb == "reset" else (_stored(each.before, each.at), _stored(each.after, each.at))
    shown = (clock(each.at), each.by, each.verb, each.key, before, after, each.reason)
    return tuple(plain(part) or "-" for part in shown)


def _stored(stored: Any, now: float) -> str:
    rate = stored.shown or "code"
    until = f" {end_of('unset', stored.until, now)}" if stored.until else ""
    paused = f", paused {end_of('resumed', stored.paused_until, now)}" if stored.paused_until else ""
    return rate + until + paused


change_commands = (set_, unset, pause, resume, reset, history)
