"""What a worker shows when it starts.

What is relied on; line numbers are of Celery 5.7.0:

* ``celery.apps.worker.Worker.extra_info`` (celery/apps/worker.py 235): what ``emit_banner`` prints below the queues;
  None where the worker logs less than INFO. Workers that are no program (``celery.contrib.testing``) have none.
"""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["add_to_banner"]


def add_to_banner(controller: Any, title: str, text: str) -> None:
    """Show ``text`` below the list of the worker's tasks, wherever that is shown."""
    shown = getattr(controller, "extra_info", None)
    if shown is None:
        return

    @functools.wraps(shown)
    def extra_info() -> Any:
        said = shown()
        return said and f"{said}\n[{title}]\n{text}\n"

    controller.extra_info = extra_info
