"""Resets objects in a forked process, where locks may stay locked for ever and threads are gone; makes unique ids."""

from __future__ import annotations

import itertools
import os
import uuid
import weakref
from typing import Protocol

__all__ = ["Ids", "begin_anew_after_fork"]


class _Owner(Protocol):
    """An object with locks or threads, or with state that belongs to its process alone."""

    def begin_anew(self) -> None: ...


_owners: weakref.WeakSet[_Owner] = weakref.WeakSet()


def begin_anew_after_fork(owner: _Owner) -> None:
    """Call ``owner.begin_anew()`` in every child of this process, before other code runs there.

    *Warning*: a server that forks without Python's fork hooks (uWSGI, unless ``py-call-osafterfork``) calls nothing.
    """
    _owners.add(owner)


def _begin_anew() -> None:
    for owner in list(_owners):
        owner.begin_anew()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_begin_anew)


class Ids:
    """Makes ids that no other process makes, also after a fork.

    Args:
        digits: number of hexadecimal digits that stand for the process.
    """

    def __init__(self, digits: int) -> None:
        self._digits, self._pid = digits, 0

    def __call__(self) -> str:
        if self._pid != os.getpid():
            self._stem, self._count = uuid.uuid4().hex[: self._digits], itertools.count()
            self._pid = os.getpid()
        return f"{self._stem}{next(self._count):x}"
