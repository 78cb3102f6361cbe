"""The door: what every request has to pass before any page sees it, and what every answer says to the browser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .options import Options
from .sessions import Sessions

__all__ = ["MOST_BYTES", "Guard"]

#: Bytes that a request may bring with it: a reason, and some ids.
MOST_BYTES = 16_384

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^][:@/?#\s]+))(?::[0-9]{1,5})?")

_ALWAYS: Mapping[str, str] = {
    # Our own files and nothing else; a browser runs and shows nothing that has come in by a name or an argument.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Accepts requests that name this server, come from its own pages, have small bodies and are identified.

    Args:
        app: the pages. They find the identity of a request in ``scope["identity"]``, see :meth:`Sessions.identify`.
        options: how the page is served.
        sessions: identifies requests.
    """

    def __init__(self, app: ASGIApp, options: Options, sessions: Sessions) -> None:
        self._app, self._hosts, self._sessions = app, options.hosts, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _ALWAYS.items():
                    headers[name] = value
            await send(message)

        answer = self._refusal(scope, Headers(scope=scope))
        await (answer or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not hosts[0]:
            return _no(400, "a request names one host")
        if self._hosts is not None and _name_of(hosts[0]) not in self._hosts:
            return _no(403, "this server does not answer to that name: start it with --allowed-host if it is meant to")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _no(405, "there is nothing here but GET, HEAD and POST")
        if _is_long(headers):
            return _no(413, f"more than {MOST_BYTES} bytes, or none that say how many", {"connection": "close"})
        if not _is_from_here(scope["method"], headers, hosts[0]):
            return _no(403, "this was sent by a page of another site")
        return self._refuse_unidentified(scope, headers)

    def _refuse_unidentified(self, scope: Scope, headers: Headers) -> Response | None:
        path: str = scope["path"]
        scope["identity"] = self._sessions.identify(headers.get("authorization", ""), headers.get("cookie", ""))
        if scope["identity"] is not None or path == "/login" or path.startswith("/static/"):
            return None
        if scope["method"] != "POST" and path in ("/", "/limit", "/task"):
            query = scope["query_string"].decode("latin-1")
            return RedirectResponse(f"/login?next={quote(path + (f'?{query}' if query else ''), safe='')}", 303)
        return _no(401, "identify yourself: Authorization: Bearer <token>", {"www-authenticate": "Bearer"})


def _no(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{why}\n", status, headers)


def _name_of(host: str) -> str:
    """The name without the port; an address without its brackets; ``""``: it is none."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else ""


def _is_long(headers: Headers) -> bool:
    if "transfer-encoding" in headers:
        return True
    said = headers.getlist("content-length")
    if not said:
        return False
    return len(said) > 1 or not said[0].isdecimal() or int(said[0][:12]) > MOST_BYTES


def _is_from_here(method: str, headers: Headers, host: str) -> bool:
    """Whether a browser says that a page of this server asks, or the request only reads and is no browser's.

    A link may lead here from anywhere; to change something, the request has to say where it comes from.
    """
    origin, site = headers.get("origin", ""), headers.get("sec-fetch-site", "")
    if method != "POST":
        by_link = headers.get("sec-fetch-mode", "") == "navigate" and headers.get("sec-fetch-dest", "") == "document"
        return site in ("", "same-origin", "none") or by_link
    if site not in ("", "same-origin"):
        return False
    if origin and origin != "null":
        return _authority(origin) == host.lower()
    return site == "same-origin"


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None
