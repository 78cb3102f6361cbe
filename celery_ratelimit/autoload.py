"""Installs the gate in each worker of this process whose app has limits, without a call of ``install``.

Active wherever the package is imported and Celery is loaded. The ``celery`` command imports the package, too: it loads
the entry points of ``celery.commands``, and :mod:`~celery_ratelimit.cli` is one.
"""

from __future__ import annotations

from typing import Any

from celery.signals import worker_init

__all__ = ["install_if_limited"]


def install_if_limited(sender: Any, **_: Any) -> None:
    """Install the gate in a new worker (``sender``): its app's tasks are loaded, its consumer's steps not made yet."""
    from .app.settings import has_limits

    if has_limits(sender.app):
        from .app import remote_control  # noqa: F401  (registers itself)
        from .worker.bootstep import install

        install(sender.app)


worker_init.connect(install_if_limited, weak=False, dispatch_uid="celery_ratelimit")
