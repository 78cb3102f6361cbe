"""Brings the gate into each worker of this process whose app has limits, though nobody has called ``install``.

Connected wherever the package is imported and Celery is loaded. The ``celery`` command imports it, too: it loads the
entry points of ``celery.commands``, of which ours is one (:mod:`~celery_ratelimit.cli`).
"""

from __future__ import annotations

from typing import Any

from celery.signals import worker_init

__all__ = ["install_if_limited"]


def install_if_limited(sender: Any, **_: Any) -> None:
    """A worker is being made (``sender``): its app's tasks are loaded, and its consumer's steps are not made yet."""
    from .app.settings import has_limits

    if has_limits(sender.app):
        from .app import remote_control  # noqa: F401  (registers itself)
        from .worker.bootstep import install

        install(sender.app)


worker_init.connect(install_if_limited, weak=False, dispatch_uid="celery_ratelimit")
