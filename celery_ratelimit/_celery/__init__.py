"""Every touch of a Celery or kombu internal, and nothing else: a file for each thing that is relied on.

Line numbers are of Celery and kombu 5.7.0. ``tests/integration/test_internals.py`` fails loudly when one moves.
"""

from .banner import add_to_banner
from .broker import fleet_of, visibility_timeout_of
from .broker_queries import NoAnswer, asked_workers, messages_of, queue_of
from .event_state import show_revoked
from .message_key import stored_id
from .pool import Pool
from .publisher import publish_on
from .queue_drain import messages_in, taken_from
from .requests import PERMIT
from .return_consumer import MAX_RETURNED
from .worker import Worker

__all__ = [
    "MAX_RETURNED",
    "PERMIT",
    "NoAnswer",
    "Pool",
    "Worker",
    "add_to_banner",
    "asked_workers",
    "fleet_of",
    "messages_in",
    "messages_of",
    "publish_on",
    "queue_of",
    "show_revoked",
    "stored_id",
    "taken_from",
    "visibility_timeout_of",
]
