"""``set``, ``unset``, ``pause``, ``resume``, ``reset``: change a limit while the fleet runs; ``history``: who has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from .group import NAME, app_of, as_json
from .shown import NO_END, Duration, clock, plain, show_json, table_of, tell, unnamed
from .status import rate_set_by, shadow_set_by

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

    limiter = limiter_of(app_of(ctx))
    before = limiter.config(name, key=key, force=force)
    done = do(limiter)
    after = limiter.config(name, key=key, force=True)
    if as_json:
        show_json({"name": name, "key": key, "done": done is not False, "before": before, "after": after})
        return
    of = plain(name) + (f", key {key!r}" if key else "")
    if done is False:
        click.echo(f"{of}: nothing to change: {_now(after)}")
    else:
        click.echo(f"{of}: was {_now(before)}\n{of}: now {_now(after)}")


def _now(config: Any) -> str:
    rate = rate_set_by(config) or f"{unnamed(config.code)} (code)"
    if config.shadow:
        rate += f", in shadow {shadow_set_by(config)}"
    if not config.paused:
        return rate
    import time

    end = "until it is resumed" if config.paused > NO_END else f"until {clock(time.time() + config.paused)}"
    return f"{rate}, paused {end}"


@click.command("set")
@_changes
@click.argument("rate", required=False)
@click.option(
    "--shadow/--no-shadow", default=None, help="It throttles nobody, and tells what it would do; or in force."
)
@click.option("--burst", type=click.IntRange(min=1), help="Default: what the code says.")
@click.option("--for", "for_", type=Duration(), help="Then the code's rate holds again: 90, 10m, 1h30m.")
def set_(
    ctx: click.Context,
    name: str,
    rate: str | None,
    shadow: bool | None,
    burst: int | None,
    for_: float | None,
    key: str | None,
    reason: str,
    by: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Put RATE ("20/s"; a number for places) in the place of the code's, for the whole fleet and at once; or the whole
    limit into shadow, and in force again.
    """
    if rate is None and shadow is None:
        raise click.UsageError("set what? A RATE, --shadow or --no-shadow")
    if rate is None and (burst is not None or for_ is not None or key is not None):
        raise click.UsageError("--burst, --for and --key are about a RATE, and none is given")
    who: dict[str, Any] = {"by": by, "reason": reason, "force": force}

    def do(limiter: Any) -> bool:
        done = rate is not None and limiter.set_rate(
            name, _limit(limiter, name, rate, burst), key=key, for_=for_, **who
        )
        return (shadow is not None and limiter.set_shadow(name, shadow, **who)) or bool(done)

    _change(ctx, name, key, force, as_json, do)


def _limit(limiter: Any, name: str, rate: str, burst: int | None) -> Any:
    """What is meant: places for a number, a rate with the options of the code's limit else."""
    from dataclasses import replace

    from ..limits.concurrency import Concurrency
    from ..limits.limit import Limit

    if rate.isdecimal():
        return Concurrency(int(rate))
    if burst is None:
        return rate
    code = limiter.config(name, force=True).code
    return replace(code, rate=rate, burst=burst) if isinstance(code, Limit) else Limit(rate, burst=burst)


@click.command()
@_changes
@click.option("--shadow", is_flag=True, help="Not the rate: whether it is in shadow is the code's word again.")
def unset(
    ctx: click.Context,
    name: str,
    key: str | None,
    reason: str,
    by: str | None,
    force: bool,
    as_json: bool,
    shadow: bool,
) -> None:
    """Take the stored rate away: the code's holds again."""
    who: dict[str, Any] = {"by": by, "reason": reason, "force": force}
    if shadow and key is not None:
        raise click.UsageError("--shadow is about the whole limit: leave --key out")
    _change(
        *(ctx, name, key, force, as_json),
        lambda limiter: limiter.set_shadow(name, None, **who) if shadow else limiter.delete(name, key=key, **who),
    )


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
    until = f" until {clock(stored.until)}" if stored.until else ""
    if not stored.paused_until:
        return rate + until
    no_end = stored.paused_until - now > NO_END
    return f"{rate}{until}, paused {'until it is resumed' if no_end else 'until ' + clock(stored.paused_until)}"


change_commands = (set_, unset, pause, resume, reset, history)
