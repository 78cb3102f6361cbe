"""What a prefork pool is given goes to its processes at once, where one of them has nothing to do.

Celery writes it in the next turn of the worker's loop, after everything else of this one: the ends of other tasks, each
with a question to the store. So tasks that have ended close together would begin together, and end together again.

What is relied on; line numbers are those of Celery and kombu 5.7.0:

* ``AsynPool.outbound_buffer`` (celery/concurrency/asynpool.py 546): jobs that are not written yet, in their order.
* ``AsynPool._all_inqueues``, ``_busy_workers`` and ``_active_writes``: the pipes of processes that are up; of those
  that have a job; and those that are being written to. ``on_job_ready`` (687) takes one from the second before the end
  of its job is told (billiard/pool.py 889).
* ``hub.consolidate_callback`` (asynpool.py 955), which the loop calls with the pipes that can be written to: it takes a
  job for each. What a pipe does not take yet is left to the loop.
* ``AsynPool._fileno_to_inq``: the process of a pipe.
"""

from __future__ import annotations

from typing import Any

from celery.concurrency.asynpool import AsynPool

__all__ = ["PoolPipes"]


class PoolPipes:
    """From a worker to the processes of its pool.

    Args:
        consumer: a ``celery.worker.consumer.Consumer``.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def write(self) -> None:
        """What the pool was given, as far as processes have nothing to do. The rest follows as always."""
        hub, pool = self._consumer.hub, getattr(self._consumer.pool, "_pool", None)
        if hub is None or not isinstance(pool, AsynPool) or not pool.outbound_buffer:
            return
        idle = [fd for fd in pool._all_inqueues - pool._busy_workers - pool._active_writes if _is_up(pool, fd)]
        if idle:
            hub.consolidate_callback(idle)


def _is_up(pool: Any, fd: int) -> bool:
    """Whether the process of a pipe is there: when one has ended the loop comes to it, and to its pipe."""
    process = pool._fileno_to_inq.get(fd)
    return process is not None and process._is_alive()
