"""A model API's endpoint: enforces requests and tokens in any minute, for each model, and says so in headers.

It counts a call as it arrives, with the tokens that it really takes: stricter than an upstream that counts afterwards.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

__all__ = ["Call", "Endpoint", "Quota", "serving"]

WINDOW = 60.0  # seconds


class Quota(NamedTuple):
    requests: int  # in any minute
    tokens: int


class Call(NamedTuple):
    at: float  # seconds since 1970
    model: str
    customer: str
    tokens: int
    status: int


@dataclass
class Endpoint:
    """Decides calls; keeps all of them, for the report."""

    quotas: Mapping[str, Quota]
    calls: list[Call] = field(default_factory=list)
    _recent: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, model: str, customer: str, tokens: int) -> tuple[int, dict[str, str]]:
        """The status and the headers of the response."""
        with self._lock:
            now, quota = time.time(), self.quotas[model]
            recent = self._recent.setdefault(model, deque())
            while recent and recent[0][0] <= now - WINDOW:
                recent.popleft()
            used = sum(each for _, each in recent)
            fits = len(recent) < quota.requests and used + tokens <= quota.tokens
            if fits:
                recent.append((now, tokens))
                used += tokens
            self.calls.append(Call(now, model, customer, tokens, 200 if fits else 429))
            headers = {
                "x-ratelimit-limit-requests": str(quota.requests),
                "x-ratelimit-limit-tokens": str(quota.tokens),
                "x-ratelimit-remaining-requests": str(quota.requests - len(recent)),
                "x-ratelimit-remaining-tokens": str(quota.tokens - used),
            }
            if not fits:
                headers["retry-after"] = "1"
            return (200 if fits else 429), headers


@contextlib.contextmanager
def serving(endpoint: Endpoint, latency: float = 0.05) -> Iterator[str]:
    """The address of a server in a thread, whose calls take ``latency`` seconds."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, headers = endpoint.answer(asked["model"], asked["customer"], asked["tokens"])
            if status == 200:
                time.sleep(latency)
            body = json.dumps({"usage": {"total_tokens": asked["tokens"]}}).encode()
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
