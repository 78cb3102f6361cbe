"""The fleet's app in a worker in which something goes wrong that no code foresees, at the tasks that ask for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.apps.fleet import app
from tests.apps.unforeseen import STEPS

__all__ = ["app"]


def _raising(function: Callable[..., Any], step: str) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        said = [str(each) for each in (*args, *options.values()) if isinstance(each, str)]
        said += [str(getattr(each, name, "")) for each in args for name in ("task_id", "id")]
        together = [getattr(each, "ids", each) for each in args]
        said += [str(each[0]) for each in together if isinstance(each, list) and each]
        if any(each.startswith(step) for each in said):
            raise ZeroDivisionError(f"at {step}")
        return function(*args, **options)

    return run


for step, places in STEPS.items():
    for owner, name in places:
        setattr(owner, name, _raising(getattr(owner, name), step))
