"""Shared by all commands: the app, and errors as one line and an exit code.

0: done; 1: failed, or a check found something; 2: wrong usage.
"""

from __future__ import annotations

from typing import Any

import click

from ..errors import ConfigurationError, RateLimitError, StoreMisconfigured, StoreUnavailable
from ..name_suggestions import IMPORT_HINT, plain

__all__ = ["Commands", "app_of"]


class Wrong(click.ClickException):
    """Wrong usage of a command."""

    exit_code = 2


class Commands(click.Group):
    """A group whose commands may raise what this package and kombu raise."""

    def invoke(self, ctx: click.Context) -> Any:
        from kombu.exceptions import OperationalError

        from .._celery.broker import broker_lost, broker_problem
        from ..operations.wording import store_lost

        try:
            return super().invoke(ctx)
        except StoreUnavailable as error:
            raise _failed(store_lost(_store(ctx), error)) from None
        except StoreMisconfigured as error:
            raise _failed(error) from None
        except ConfigurationError as error:
            raise Wrong(_in_commands(error)) from None
        except RateLimitError as error:
            raise _failed(error) from None
        except OperationalError as error:
            raise _failed(broker_lost(error)) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            trouble = broker_problem(ctx.obj.app, error)
            if not trouble:
                raise
            raise _failed(trouble) from None


def _failed(why: Any) -> click.ClickException:
    return click.ClickException(_in_commands(why))


def _in_commands(error: Any) -> str:
    return plain(error).replace("force=True", "--force").replace(IMPORT_HINT, "")  # they are imported


def _store(ctx: click.Context) -> str:
    from ..app.settings import settings_of
    from ..store.url_text import without_password

    return f"the store at {without_password(settings_of(ctx.obj.app).url)}"


def app_of(ctx: click.Context) -> Any:
    """The app, with its tasks imported and its limits read; one line and 1 if these cannot be."""
    from ..app.app_limits import limits_of_app
    from ..app.import_tasks import import_tasks
    from ..app.store_address import check_broker_url

    app = ctx.obj.app
    try:
        import_tasks(app)
        check_broker_url(app)
        limits_of_app(app)
    except ConfigurationError as error:
        raise _failed(error) from None
    return app
