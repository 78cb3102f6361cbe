"""``celery -A proj ratelimit …``: for people at a terminal."""

from __future__ import annotations

from typing import Any

import click

from . import autoload  # noqa: F401  (whatever the command is: "celery worker" is to have the gate)

__all__ = ["ratelimit"]


@click.group(help="Rate limits of the whole fleet.")
def ratelimit() -> None:
    """The group of commands."""


@ratelimit.command()
@click.pass_context
def check(context: Any) -> None:
    """Show each limit with the tasks and queues that it is for, and what looks forgotten. Asks no store.

    Ends with 1 if a worker would not start.
    """
    from .app.plan import limits_of_app
    from .app.settings import has_limits
    from .app.survey import forgotten, limits_shown
    from .errors import ConfigurationError

    app = context.obj.app
    app.loader.import_default_modules()
    if not has_limits(app):  # a worker does not look at its settings either
        click.echo("There are no limits.")
        return
    try:
        limits_of_app(app)
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from None
    click.echo(limits_shown(app) or "There are no limits.")
    for warning in forgotten(app):
        click.echo(f"Warning: {warning}", err=True)
