"""Calls to the upstream (``UPSTREAM_URL``, default ``http://127.0.0.1:8000``)."""

from __future__ import annotations

import http.client
import os
from urllib.parse import urlsplit

UPSTREAM_URL = os.environ.get("UPSTREAM_URL", "http://127.0.0.1:8000")


class Refused(Exception):
    """The upstream said 429: we called it more often than it allows."""


def call(path: str) -> None:
    """POST to ``path``. Raises :class:`Refused` on 429 and ``OSError`` on any other answer than 200."""
    status, body = request("POST", path)
    if status == 429:
        raise Refused(f"{path}: {body.decode()}")
    if status != 200:
        raise OSError(f"POST {UPSTREAM_URL}{path} answered {status}: {body.decode()[:200]}")


def request(method: str, path: str, url: str = UPSTREAM_URL) -> tuple[int, bytes]:
    """One request on a connection of its own; status and body."""
    # urllib would cost more and go through http_proxy. A kept connection would cost less, but one that the
    # upstream has closed meanwhile leaves it open whether the call was made: it might then be made twice.
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "127.0.0.1", address.port or 80, timeout=5)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
