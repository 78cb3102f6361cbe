"""``celery -A proj ratelimit metrics``: serves metrics for Prometheus. ``cli`` adds it to its commands."""

from __future__ import annotations

import signal
from typing import Any

import click

__all__ = ["metrics"]


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=9877, show_default=True)
@click.option("--address", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--once", is_flag=True, help="Print the figures, and end.")
@click.pass_context
def metrics(context: Any, port: int, address: str, once: bool) -> None:
    """Serve the figures of the fleet for Prometheus, at /metrics.

    Needs celery-ratelimit[prometheus].
    """
    from .app.import_tasks import import_tasks
    from .app.store_address import check_broker_url
    from .errors import ConfigurationError

    app = context.obj.app
    try:
        import_tasks(app)
        check_broker_url(app)
        from . import prometheus

        if once:
            from prometheus_client import CollectorRegistry, generate_latest

            registry = CollectorRegistry()
            registry.register(prometheus.collector(app))
            click.echo(generate_latest(registry).decode(), nl=False)
            return
        stop = prometheus.serve(app, port, address)
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"cannot listen at {address}:{port}: {error}") from None
    click.echo(f"http://{address}:{port}/metrics")
    try:
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        stop()
