"""``celery -A proj ratelimit …``: for operators at a terminal, and for scripts.

A file for each group of commands. Nothing but click is imported before a command runs: whatever the ``celery`` command
is, it loads this.
"""

from __future__ import annotations

from .. import autoload  # noqa: F401  (whatever the command is: "celery worker" is to have the gate)
from ..app import remote_control  # noqa: F401  (celery inspect ratelimits, celery control ratelimit_pause, …)
from ..metrics_command import metrics
from .changing import change_commands
from .checking import check
from .command_errors import Commands
from .lots import lot_commands
from .status import status, top
from .watch import watch
from .web import web
from .weights import weight

__all__ = ["ratelimit"]

ratelimit: Commands = Commands(
    "ratelimit", help="Rate limits of the whole fleet: look at them, and change them while it runs."
)
for _command in (status, top, watch, *change_commands, weight, *lot_commands, check, metrics, web):
    ratelimit.add_command(_command)
