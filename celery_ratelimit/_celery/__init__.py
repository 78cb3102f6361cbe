"""Every touch of a Celery or kombu internal, and nothing else: a file for each thing that is relied on.

Line numbers are of Celery and kombu 5.7.0. ``tests/integration/celery_internals/test_internals.py`` fails loudly when
one moves.
"""

from .broker import HOLD_SHARE, broker_fingerprint, consumer_timeout_of, is_on_sqs, longest_hold, visibility_timeouts_of
from .broker_queries import (
    BrokerDidNotAnswer,
    default_queue_of,
    fetch_messages,
    message_count,
    message_counts,
    query_workers,
)
from .message_fields import stored_id
from .pool import Pool
from .publisher import publish_on
from .pydantic_arguments import Models, models_of
from .requests import PERMIT
from .return_queue_consumer import MAX_RETURNED
from .upstream_refusal import ReturnToBacklog, call_when_body_ends
from .worker import Worker
from .worker_display import add_to_banner, show_revoked_state

__all__ = [
    "HOLD_SHARE",
    "MAX_RETURNED",
    "PERMIT",
    "BrokerDidNotAnswer",
    "Models",
    "Pool",
    "ReturnToBacklog",
    "Worker",
    "add_to_banner",
    "broker_fingerprint",
    "call_when_body_ends",
    "consumer_timeout_of",
    "default_queue_of",
    "fetch_messages",
    "is_on_sqs",
    "longest_hold",
    "message_count",
    "message_counts",
    "models_of",
    "publish_on",
    "query_workers",
    "show_revoked_state",
    "stored_id",
    "visibility_timeouts_of",
]
