"""The arguments and options that several commands have, each in one place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

__all__ = ["FORCE", "JSON", "KEY", "NAME", "NAMES", "Change", "changes", "force_option"]


def _names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """For the shell's completion: the app's limits. Without one that can be loaded there are none."""
    try:
        from celery.app.utils import find_app

        from ..app.app_limits import limits_of_app

        app = getattr(ctx.obj, "app", None) or find_app(ctx.find_root().params["app"])
        app.loader.import_default_modules()
        return sorted(name for name in limits_of_app(app) if name.startswith(incomplete))
    except Exception:
        return []


#: The argument that most commands have; and any number of them.
NAME = click.argument("name", shell_complete=_names)
NAMES = click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=_names)
#: The option of each command that prints.
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def force_option(help: str) -> Callable[[Any], Any]:
    """The option ``--force``."""
    return click.option("--force", is_flag=True, help=help)


FORCE = force_option("Even if this app has no limit of that name.")
KEY = click.option("--key", help="Only this bucket of a limit that is kept by key, as in tenant:7.")

_REASON = click.option("--reason", default="", help="Why, in at most 200 characters: shown in status and history.")
_BY = click.option("--by", help="The author: default is user@host.")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one limit, as the options of a command say.

    Attributes:
        ctx: of the command.
        name: of the limit.
        as_json: whether the reply is JSON.
        key: of the bucket; ``None``: the whole limit.
        said: author, reason, and whether the limit may be unknown: arguments of the limiter's methods.
    """

    ctx: click.Context
    name: str
    as_json: bool
    key: str | None
    said: dict[str, Any]

    @property
    def force(self) -> bool:
        return bool(self.said["force"])


def changes(*, by_key: bool = True) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The options of each command that changes a limit: it gets them as one :class:`Change`, before its own.

    ``by_key``: it may be meant for one bucket.
    """

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def changing(
            ctx: click.Context,
            name: str,
            as_json: bool,
            force: bool,
            by: str | None,
            reason: str,
            key: str | None = None,
            **own: Any,
        ) -> None:
            command(Change(ctx, name, as_json, key, {"force": force, "by": by, "reason": reason}), **own)

        options: list[Callable[[Any], Any]] = [click.pass_context, JSON, FORCE, _BY, _REASON]
        options += [KEY, NAME] if by_key else [NAME]
        return functools.reduce(lambda decorated, option: option(decorated), options, changing)

    return with_options
