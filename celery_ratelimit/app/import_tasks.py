"""Imports an app's tasks outside of a worker, with one-line errors."""

from __future__ import annotations

import traceback
from typing import Any

from ..errors import ConfigurationError
from ..name_suggestions import plain

__all__ = ["import_tasks"]


def import_tasks(app: Any) -> None:
    """Import the modules that the app's settings name.

    Raises:
        ConfigurationError: a module cannot be imported; says why, and in which line.
    """
    try:
        app.loader.import_default_modules()
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
        where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        raise ConfigurationError(
            f"the tasks of the app cannot be imported: {type(error).__name__}: {plain(error)}{where}"
        ) from error
