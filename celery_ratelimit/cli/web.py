"""``web``: the page."""

from __future__ import annotations

from secrets import token_urlsafe
from time import time

import click

from .command_errors import app_of

__all__ = ["web"]


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; elsewhere only with a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=5556, show_default=True)
@click.option(
    "--token",
    envvar="CELERY_RATELIMIT_WEB_TOKEN",
    show_envvar=True,
    default="",
    help="Required from every browser. (Other users of this machine see the arguments of a command.)",
)
@click.option(
    "--allow-changes", is_flag=True, help="Limits can be changed on the page. Makes a token if there is none."
)
@click.option("--no-token", is_flag=True, help="Make none: each account of this machine may change limits.")
@click.option("--allowed-host", "allowed_hosts", multiple=True, help="A name under which it is reached, as by a proxy.")
@click.pass_context
def web(
    ctx: click.Context,
    host: str,
    port: int,
    token: str,
    allow_changes: bool,
    no_token: bool,
    allowed_hosts: tuple[str, ...],
) -> None:
    """Serve a live page of all limits, to read or to change them.

    Only to read, unless --allow-changes is given. Needs celery-ratelimit[web].
    """
    from ..app.settings import settings_of
    from ..store.url_text import without_password
    from ..words import clock

    app = app_of(ctx)
    try:
        from ..web.options import Options, is_loopback
        from ..web.server import listening, serve
    except ImportError as error:
        raise click.ClickException(
            f"what the page needs is missing ({error}): pip install 'celery-ratelimit[web]'"
        ) from None
    if token and no_token:
        raise click.UsageError("--no-token, although there is a token (--token, CELERY_RATELIMIT_WEB_TOKEN)")
    is_made = allow_changes and is_loopback(host) and not token and not no_token
    token = token_urlsafe() if is_made else token
    store = f"the store at {without_password(settings_of(app).url)}"
    options = Options(host, token, allow_changes, frozenset(allowed_hosts), store)
    try:
        at = listening(host, port)
    except OSError as error:
        raise click.ClickException(f"cannot listen at {host}:{port}: {error}") from None
    if is_made:
        click.echo(f"Token: {token} (made for this run; --no-token makes none)")
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{at.getsockname()[1]}/"
    click.echo(address + ("" if allow_changes else " (nothing can be changed there)"))
    if is_made:  # in the fragment: a browser sends it to no server, so no log has it
        click.echo(f"{address}login#token={token} (logs in)")
    serve(app, options, at, lambda line: click.echo(f"{clock(time())} {line}"))
