"""The arguments of a task with ``pydantic=True``, as the task gets them: the message has dicts.

What is relied on; line numbers are of Celery 5.7.0:

* ``Task.__wrapped__`` (celery/app/base.py 754) is the function that ``pydantic_wrapper`` (base.py 169) has made, bound
  to the task with ``bind=True``. It validates the arguments, calls ``task_fun``, a name of its closure, with what it
  has made of them (base.py 226), and returns a value that is no model as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import CellType, FunctionType
from typing import Any

__all__ = ["Models", "models_of"]

#: Makes models of a call's arguments.
Models = Callable[[Sequence[Any], Mapping[str, Any]], tuple[Sequence[Any], Mapping[str, Any]]]


def models_of(task: Any) -> Models | None:
    """Return what makes models of a call's arguments for a task with ``pydantic=True``; ``None`` for other tasks.

    It raises what the task would: pydantic's ``ValidationError``, or ``TypeError``.
    """
    run = getattr(task, "__wrapped__", None)
    wrapper: Any = getattr(run, "__func__", run)
    names = wrapper.__code__.co_freevars if isinstance(wrapper, FunctionType) else ()
    if "task_fun" not in names or wrapper.__globals__["__name__"] != "celery.app.base":
        return None
    cells = zip(names, wrapper.__closure__, strict=True)
    closure = tuple(CellType(_as_passed) if name == "task_fun" else cell for name, cell in cells)
    validate = FunctionType(wrapper.__code__, wrapper.__globals__, closure=closure)
    signature, own = inspect.signature(wrapper), () if run is wrapper else (task,)

    def models(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
        passed, named = validate(*own, *args, **kwargs)
        made = signature.bind(*passed, **named).arguments
        first = len(own)
        return passed[first : first + len(args)], {name: made.get(name, value) for name, value in kwargs.items()}

    return models


def _as_passed(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs
