"""Objects begin anew in a forked process, where their locks may be locked for ever and their threads are gone."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["begin_anew_after_fork"]


class _Owner(Protocol):
    """What has locks, threads, or what its process alone may do."""

    def begin_anew(self) -> None: ...


_owners: weakref.WeakSet[_Owner] = weakref.WeakSet()


def begin_anew_after_fork(owner: _Owner) -> None:
    """Have ``owner.begin_anew()`` called in every child of this process, before anything else runs there.

    *Warning*: a server that forks without telling Python (uWSGI, unless ``py-call-osafterfork``) calls nothing.
    """
    _owners.add(owner)


def _begin_anew() -> None:
    for owner in list(_owners):
        owner.begin_anew()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_begin_anew)
