"""What the store knows a message by: decided once, when it first arrives, and told by its marker from then on.

A task's id is not enough: a retry, ``self.replace()``, an exchange that copies for several queues and a sender that
uses an id again make messages of their own, which may be about together. A message that is delivered again is the same.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``properties["delivery_tag"]`` of a message on Redis is made for each publish (kombu/transport/virtual/base.py 633)
  and stays when it is delivered once more: all of it is restored (kombu/transport/redis.py 1265).
* The header ``replaced_task_nesting`` (celery/app/task.py 1173, since 5.2).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from kombu.transport import virtual

from .saved_message import marker_in

try:
    from kombu.transport.redis import QoS as RedisQoS
except ImportError:  # no redis-py that kombu would take

    class RedisQoS(virtual.QoS):  # type: ignore[no-redef]
        """No message has one."""


__all__ = ["RedisQoS", "stored_id"]


def stored_id(request: Any, queue: str) -> str:
    """What the store knows a request by: ``<task id>[.<retries>]~<of this message alone>@<queue>``."""
    marker = marker_in(request.message)
    if marker.get("id"):
        return str(marker["id"])
    retries = request.request_dict.get("retries")
    attempt = f"{request.id}.{retries}" if retries else str(request.id)
    if marker:  # the version before has sent it back
        return f"{attempt}@{queue}"
    return f"{attempt}~{_identity(request)}@{queue}"


def _identity(request: Any) -> str:
    """What tells a message from others of the same id, and is the same when it is delivered once more.

    Where that is its body, two messages of the same id and arguments are one.
    """
    message = request.message
    tag = (message.properties or {}).get("delivery_tag")
    if tag is not None and isinstance(getattr(message.channel, "qos", None), RedisQoS):
        said = str(tag).encode(errors="surrogatepass")
    else:
        body = message.body
        said = body.encode(errors="surrogatepass") if isinstance(body, str) else bytes(body)
        said += str(request.request_dict.get("replaced_task_nesting") or 0).encode(errors="surrogatepass")
    return blake2b(said, digest_size=5).hexdigest()
