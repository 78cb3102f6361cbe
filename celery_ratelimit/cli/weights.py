"""``weight``: the weights of the shares of a fair limit."""

from __future__ import annotations

from typing import Any

import click

from .command_errors import app_of
from .options import Change, changes
from .shown import clock, plain, show_json, table_of, tell

__all__ = ["weight"]


@click.command()
@changes(by_key=False)
@click.argument("share", required=False)
@click.argument("weight", required=False)
def weight(change: Change, share: str | None, weight: str | None) -> None:
    """Show or set the weights of the shares of a fair limit.

    WEIGHT is a number, 0 to hold the tasks of SHARE back, or "code" for the weight of the code.
    """
    from ..app.app_limits import limits_of_app
    from ..app.app_store import limiter_of

    app = app_of(change.ctx)
    limiter = limiter_of(app)
    if share is not None:
        limiter.set_weight(change.name, share, _number(weight), **change.said)
    found = limiter.weights(change.name, force=change.force)
    if change.as_json:
        show_json(found)
    elif not found:
        code = limits_of_app(app).get(change.name) or limiter.quotas.get(change.name)
        has_shares = code is None or code.fair is not None
        none = f"{plain(change.name)} has no shares: the code gives it no fair=."
        click.echo("Every share has the weight 1." if has_shares else none)
    else:
        heads = ("SHARE", "WEIGHT", "IN THE CODE", "SINCE", "CHANGED BY")
        tell(table_of(heads, [_row(each, config) for each, config in found.items()]))


def _number(weight: str | None) -> float | None:
    if weight is None:
        raise click.UsageError('which weight? A number, or "code" for the one in the code')
    if weight == "code":
        return None
    try:
        return float(weight)
    except ValueError:
        raise click.UsageError(f"weight {weight!r} is neither a number nor 'code'") from None


def _row(share: str, config: Any) -> tuple[str, ...]:
    since = clock(config.since) if config.stored is not None else ""
    shown = (share, f"{config.weight:g}", f"{config.code:g}", since, config.by)
    return tuple(plain(part) or "-" for part in shown)
