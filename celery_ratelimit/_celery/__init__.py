"""Every touch of a Celery or kombu internal, and nothing else: a file for each thing that is relied on.

Line numbers are those of Celery and kombu 5.7.0. ``tests/integration/test_internals.py`` fails loudly when one moves.
"""

from .identity import stored_id
from .outbox import publish_on
from .pool import Pool
from .returns import MOST_RETURNED
from .worker import PERMIT, Worker, fleet_of, redelivery_of

__all__ = ["MOST_RETURNED", "PERMIT", "Pool", "Worker", "fleet_of", "publish_on", "redelivery_of", "stored_id"]
