"""The page's server as a process, and requests to it, as a browser sends them and others."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from benchmarks.pages import Served, served

__all__ = ["NAMES", "SCRIPT", "TOKEN", "Answer", "Server", "page_of"]

TOKEN = "a-token-that-is-not-guessed"
SCRIPT = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
#: Names of limits that are no names.
NAMES = (SCRIPT, "../../etc/passwd", "a/b?c=d#e&f%2e", "line\nbreak\0nul", "höhe ✓", "'\"`${x}{{7*7}}")


@dataclass
class Answer:
    """What the server has said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Server(Served):
    """A page that is being served, and what is said to it."""

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """One request, as it is: with the headers that HTTP wants, ``_`` standing for ``-``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        """As our own page does it, but for what ``headers`` say."""
        usual = {"Content_Type": "application/x-www-form-urlencoded", "Origin": self.url}
        return self.ask("POST", path, urlencode(fields, errors="surrogatepass").encode(), **{**usual, **headers})

    def raw(self, data: bytes) -> bytes:
        """The reply to these bytes: all until the server closes the connection, or is silent for a second."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
            found = b""
            with contextlib.suppress(OSError):
                while part := connection.recv(65536):
                    found += part
                    connection.settimeout(1)
            return found

    @contextlib.contextmanager
    def listening(self, path: str, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
        """The events of a stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        assert answer.getheader("content-type") == "text/event-stream; charset=utf-8"

        def events() -> Iterator[dict[str, Any]]:
            for line in iter(answer.readline, b""):
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])

        try:
            yield events()
        finally:
            answer.close()
            connection.close()

    def form_token(self, path: str = "/", **headers: str) -> str:
        """What our own pages have in their forms."""
        found = re.search(r'data-form-token="([0-9a-f]{64})"', self.get(path, **headers).text)
        assert found
        return found[1]

    def log_in(self, token: str = TOKEN) -> str:
        """The cookie that is had for the token."""
        answer = self.post("/login", {"token": token, "form_token": self.form_token("/login")})
        assert answer.status == 200, answer
        return answer.headers["set-cookie"].partition(";")[0]

    def limit(self, name: str) -> str:
        return f"/limit?name={quote(name, safe='')}"


@contextlib.contextmanager
def page_of(broker: str, *options: str, **env: str) -> Iterator[Server]:
    """``celery -A tests.apps.paged ratelimit web`` on a free port; at the end it has to go by itself."""
    with served("tests.apps.paged", *options, TEST_BROKER=broker, **env) as page:
        yield Server(page.port, page.process, page.said)
