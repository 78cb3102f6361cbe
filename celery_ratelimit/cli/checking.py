"""``check``: what is wrong with a set-up, and what to do about it."""

from __future__ import annotations

from typing import Any

import click

from ..errors import ConfigurationError
from .options import JSON
from .shown import NO_LIMITS, plain, show_json

__all__ = ["check"]


@click.command()
@click.option("--fleet", is_flag=True, help="Ask the store, and the workers that answer within a second, too.")
@JSON
@click.pass_context
def check(ctx: click.Context, fleet: bool, as_json: bool) -> None:
    """Show each limit, its tasks and queues, and what looks wrong.

    Asks no store without --fleet. Exits with status 1 if a worker would not start; with --fleet also if there is a
    warning.
    """
    from ..app.app_limits import limits_of_app
    from ..app.app_store import check_url
    from ..app.import_tasks import import_tasks
    from ..app.observers import observers_of
    from ..app.settings import has_limits
    from ..app.store_address import check_broker_url
    from ..app.survey import forgotten, limits_shown
    from ..worker.bootstep import GateStep

    app = ctx.obj.app
    limits, warnings, notes = list[str](), list[str](), list[str]()
    try:
        import_tasks(app)
        # Else a worker does not look at its settings either.
        is_limited = has_limits(app) or GateStep in app.steps["consumer"]
        if is_limited:
            observers_of(app)
            check_url(app)
            check_broker_url(app)
            limits_of_app(app)
    except ConfigurationError as error:
        raise click.ClickException(plain(error)) from None
    if is_limited:
        limits, warnings = limits_shown(app), forgotten(app)
        if fleet:
            of_fleet, notes = _of_fleet(app)
            warnings += of_fleet
    if as_json:
        show_json({"limits": limits, "warnings": warnings, "notes": notes})
    else:
        for limit in limits:
            click.echo(limit)
        if not limits:
            click.echo(NO_LIMITS)
        for warning in warnings:
            click.echo(f"Warning: {plain(warning)}", err=True)
        for note in notes:
            click.echo(f"Note: {plain(note)}")
        if limits and not warnings:
            click.echo(
                "Nothing looks wrong."
                if fleet
                else "Nothing looks wrong so far: --fleet also checks settings, tasks, the store and workers."
            )
    if fleet and warnings:
        ctx.exit(1)


def _of_fleet(app: Any) -> tuple[list[str], list[str]]:
    """Warnings and notes."""
    from ..operations.setup_checks import InformationalFinding, check_settings, check_store, check_workers
    from ..operations.task_checks import check_tasks

    found = [*check_settings(app), *check_tasks(app), *check_store(app), *check_workers(app)]
    return [each for each in found if not isinstance(each, InformationalFinding)], [
        each for each in found if isinstance(each, InformationalFinding)
    ]
