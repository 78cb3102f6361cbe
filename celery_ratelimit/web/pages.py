"""The pages, and their data. The guard has accepted each request that comes here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

import jinja2
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from ..errors import STORE_TROUBLES, ConfigurationError, RateLimitError
from ..operations.wording import store_lost
from ..words import plain
from .chart_data import RANGES
from .guard import MOST_BYTES
from .names import address_of, fields_of, queries_of, quoted
from .options import Options
from .page_data import PageData
from .poller import MOST_VIEWERS, Poller
from .sessions import LASTS, Sessions
from .stream import Stream
from .table import MINUTES

__all__ = ["Pages"]

#: Tasks that are looked for at once.
_EXPLAINING = 4
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Pages:
    """What the addresses lead to.

    Args:
        queries: read from the store what a page shows.
        poller: looks for all browsers.
        options: how it is served.
        sessions: identifies requests.
        tell: is given a line for each change.
    """

    def __init__(
        self, queries: PageData, poller: Poller, options: Options, sessions: Sessions, tell: Callable[[str], object]
    ) -> None:
        self._queries, self._poller, self._options = queries, poller, options
        self._sessions, self._tell = sessions, tell
        self._explaining, self._viewing = asyncio.Semaphore(_EXPLAINING), asyncio.Semaphore(MOST_VIEWERS)
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("celery_ratelimit.web"), autoescape=True, undefined=jinja2.StrictUndefined
        )
        # In memory: no path of a request ever becomes that of a file.
        folder = resources.files("celery_ratelimit.web").joinpath("static")
        self._files = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}

    def app(self) -> Starlette:
        routes = [
            Route("/", self.table, methods=["GET"]),
            Route("/limit", self.limit, methods=["GET"]),
            Route("/task", self.task, methods=["GET"]),
            Route("/parked", self.parked, methods=["GET"]),
            Route("/events", self.events, methods=["GET"]),
            Route("/static/{name}", self.static, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
        ]
        if self._options.token:
            routes += [
                Route("/login", self.login, methods=["GET"]),
                Route("/login", self.log_in, methods=["POST"]),
                Route("/logout", self.log_out, methods=["POST"]),
            ]
        if self._options.allow_changes:
            routes.append(Route("/limit", self.change, methods=["POST"]))
        errors: Mapping[Any, Any] = {
            HTTPException: _http_error,
            RateLimitError: self._trouble,
            ClientDisconnect: _gone,
            Exception: _unforeseen,
        }
        return Starlette(routes=routes, exception_handlers=errors)

    # -- Pages -----------------------------------------------------------------------------------------------------

    async def table(self, request: Request) -> Response:
        return self._page(request, "table.html", minutes=MINUTES)

    async def limit(self, request: Request) -> Response:
        name = await self._known(request, "name")
        return self._page(
            request,
            "limit.html",
            name=plain(name),
            address=address_of(name),
            events=f"/events?limit={quoted(name)}",
            parked=f"/parked?name={quoted(name)}",
            ranges=list(RANGES),
        )

    async def task(self, request: Request) -> Response:
        """Why a task does not run. Workers may have to be asked, which have a second to answer."""
        id = _asked(request).get("id", "").strip()
        if len(id) > 1000:
            raise HTTPException(400, "no task has such a long id")
        if self._explaining.locked():
            raise HTTPException(503, "others are asking already: try again")
        async with self._explaining:
            said, name = await run_in_threadpool(self._queries.explain, id)
        address = address_of(name) if name else None
        return self._page(request, "task.html", id=plain(id), said=said, limit=plain(name), address=address)

    async def login(self, request: Request) -> Response:
        if request.scope["identity"] is not None:
            return RedirectResponse("/", 303)
        return self._page(request, "login.html", next=_own(_asked(request).get("next", "")))

    async def log_in(self, request: Request) -> Response:
        said = await self._form(request)
        if not self._sessions.is_token(said.get("token", "")):
            return JSONResponse({"error": "That is not the token that this server was started with."}, 403)
        answer = JSONResponse({"next": _own(said.get("next", ""))})
        is_tls = request.headers.get("origin", "").startswith("https:")
        answer.set_cookie(
            self._sessions.cookie,
            self._sessions.open_session(),
            LASTS,
            path="/",
            secure=is_tls,
            httponly=True,
            samesite="strict",
        )
        return answer

    async def log_out(self, request: Request) -> Response:
        await self._form(request)
        answer = JSONResponse({"next": "/login"})
        answer.delete_cookie(self._sessions.cookie, path="/", httponly=True, samesite="strict")
        return answer

    # -- What they ask for -----------------------------------------------------------------------------------------

    async def events(self, request: Request) -> Any:
        asked = _asked(request)
        name = await self._known(request, "limit") if "limit" in asked else ""
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if self._viewing.locked():
            raise HTTPException(503, f"{MOST_VIEWERS} pages are open already")
        return Stream(self._poller.events(name), self._viewing)

    async def parked(self, request: Request) -> Response:
        asked = _asked(request)
        name, page = await self._known(request, "name"), asked.get("page", "1")
        if not (page.isascii() and page.isdecimal() and 0 < len(page) < 7 and int(page)):
            raise HTTPException(400, "a page is a number")
        key = asked.get("key") or None
        return JSONResponse(await run_in_threadpool(self._queries.parked, name, key, int(page)))

    async def change(self, request: Request) -> Response:
        said = await self._form(request)
        name = await self._known(request, "name")
        told, line = await run_in_threadpool(self._queries.change, name, said)
        self._tell(line)
        return JSONResponse({"said": plain_lines(told)})

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files:
            raise HTTPException(404, "there is no such file")
        return Response(self._files[name], media_type=_TYPES[name.rpartition(".")[2]])

    async def metrics(self, request: Request) -> Response:
        try:
            text = await run_in_threadpool(self._queries.metrics)
        except ConfigurationError as error:  # what it needs is not installed
            raise HTTPException(404, str(error)) from None
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    # -- How -------------------------------------------------------------------------------------------------------

    def _page(self, request: Request, template: str, **values: Any) -> Response:
        said = {
            "form_token": self._sessions.form_token(request.scope["identity"] or ""),
            "allow_changes": self._options.allow_changes,
            "has_session": bool(self._options.token) and request.scope["identity"] not in (None, "bearer"),
            "store": self._options.store if request.scope["identity"] is not None else "",
            **values,
        }
        return HTMLResponse(self._templates.get_template(template).render(said))

    async def _known(self, request: Request, query: str) -> str:
        """The limit that is asked for."""
        name = _asked(request).get(query, "")
        if not await run_in_threadpool(self._queries.knows, name):
            raise HTTPException(404, "there is no limit of that name")
        return name

    async def _form(self, request: Request) -> dict[str, str]:
        """What was sent by a form of ours."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
            raise HTTPException(415, "a form is sent as application/x-www-form-urlencoded")
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                raise HTTPException(413, f"more than {MOST_BYTES} bytes")
        said = _read(lambda: fields_of(body))
        if not self._sessions.is_form_token(said.pop("form_token", ""), request.scope["identity"] or ""):
            raise HTTPException(403, "the page is older than this server: load it again")
        return said

    async def _trouble(self, request: Request, error: Exception) -> Response:
        if isinstance(error, STORE_TROUBLES):
            return JSONResponse({"error": store_lost(self._options.store, error)}, 503)
        return JSONResponse(
            {"error": plain_lines(str(error).replace("force=True", "--force on the command line"))}, 400
        )


def plain_lines(text: str) -> str:
    return "\n".join(plain(line) for line in text.splitlines())


def _asked(request: Request) -> dict[str, str]:
    return _read(lambda: queries_of(request.scope))


def _read(read: Callable[[], dict[str, str]]) -> dict[str, str]:
    try:
        return read()
    except ValueError:
        raise HTTPException(400, "that is no text") from None


def _own(path: str) -> str:
    """A path of this server's, whatever a link says."""
    is_ours = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable() and path.isascii()
    return path if is_ours else "/"


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # nothing reads it: the body broke off


async def _unforeseen(request: Request, error: Exception) -> Response:
    return PlainTextResponse("this went wrong: see the log of this server\n", 500)
