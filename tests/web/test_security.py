"""Attacks on the page, each on a server that the command started."""

from __future__ import annotations

import http.client
from typing import Any

import pytest
import redis

from celery_ratelimit import ConfigurationError
from celery_ratelimit.web.options import Options
from celery_ratelimit.web.sessions import COOKIE, Sessions
from tests.web.server import NAMES, SCRIPT, TOKEN, Answer, Server

#: Paths that answer to GET, except public ones: the form to log in and our files.
PATHS = ("/", "/limit?name=stripe", "/events", "/events?limit=stripe", "/metrics", "/nowhere")


def is_hardened(answer: Answer) -> bool:
    policy = answer.headers["content-security-policy"]
    return (
        policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        and "unsafe" not in policy
        and "frame-ancestors 'none'" in policy
        and answer.headers["x-content-type-options"] == "nosniff"
        and answer.headers["referrer-policy"] == "no-referrer"
        and answer.headers["cache-control"] == "no-store"
    )


# -- Token and session -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_no_path_shows_anything_without_the_token(with_token: Server, path: str) -> None:
    cookie = f"{COOKIE}_{with_token.port}"
    for headers in (
        {},
        {"Authorization": "Bearer wrong-token-of-some-length"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Cookie": f"{cookie}={TOKEN}"},
        {"Cookie": f"{cookie}=99999999999.{'0' * 64}"},
        {"Cookie": f"{cookie}=99999999999.é"},
        {"Cookie": f"{cookie}=."},
    ):
        answer = with_token.get(path, **headers)
        assert answer.status in (303, 401), headers
        assert b"stripe" not in answer.body
        assert b"redis" not in answer.body
        assert is_hardened(answer)
        if answer.status == 303:
            assert answer.headers["location"].startswith("/login?next=%2F")
    with_query = f"{path}{'&' if '?' in path else '?'}token={TOKEN}"
    assert with_token.get(with_query).status in (303, 401), "a token in an address is ignored"


def test_token_is_accepted_by_the_form_and_by_a_header_until_logout(with_token: Server) -> None:
    assert "redis" not in with_token.get("/login").text
    cookie = with_token.log_in()
    assert TOKEN not in cookie
    for headers in ({"Cookie": cookie}, {"Authorization": f"Bearer {TOKEN}"}):
        answer = with_token.get("/", **headers)
        assert (answer.status, is_hardened(answer), "redis" in answer.text) == (200, True, True)
        assert with_token.get("/metrics", **headers).status == 200
    answer = with_token.post("/logout", {"form_token": with_token.form_token("/", Cookie=cookie)}, Cookie=cookie)
    assert answer.status == 200
    assert "max-age=0" in answer.headers["set-cookie"].lower()


def test_cookie_is_for_this_server_and_no_script(with_token: Server) -> None:
    token = with_token.form_token("/login")
    answer = with_token.post("/login", {"token": TOKEN, "form_token": token, "next": "/limit?name=a"})
    attributes = {each.strip().lower() for each in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert "secure" not in attributes, "it would not come back over HTTP"
    assert answer.text == '{"next":"/limit?name=a"}'
    host = {"Host": "limits.example", "Origin": "https://limits.example"}
    answer = with_token.post("/login", {"token": TOKEN, "form_token": token}, **host)
    assert answer.status == 403, "the server does not answer to that name"


def test_wrong_token_opens_no_session(with_token: Server) -> None:
    form_token = with_token.form_token("/login")
    for token in ("", "wrong", TOKEN + "x", SCRIPT, "\ud800", "é" * 30):
        answer = with_token.post("/login", {"token": token, "form_token": form_token})
        assert answer.status in (400, 403), token
        assert "set-cookie" not in answer.headers


def test_login_redirects_to_paths_of_this_server_alone(with_token: Server) -> None:
    form_token = with_token.form_token("/login")
    for path in (
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "\\\\evil",
        "/\n/evil.example",
        "javascript:x",
    ):
        fields = {"token": TOKEN, "form_token": form_token, "next": path}
        assert with_token.post("/login", fields).text == '{"next":"/"}', path


def test_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Sessions(TOKEN, 1)
    session = keys.open_session()
    assert keys.identify("", f"{COOKIE}_1={session}") == session
    assert keys.identify("", f"{COOKIE}_2={session}") is None
    assert Sessions(TOKEN, 1).identify("", f"{COOKIE}_1={session}") is None, "another process has another secret"
    monkeypatch.setattr("celery_ratelimit.web.sessions.time.time", lambda: int(session.partition(".")[0]))
    assert keys.identify("", f"{COOKIE}_1={session}") is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        *(((host,), "give a token") for host in ("0.0.0.0", "::", "192.0.2.1", "limits.example", "")),
        *(
            (("0.0.0.0", token), "at least 16 characters")
            for token in ("short", "has blanks in its middle", "ééééééééééééééééé")
        ),
    ],
)
def test_server_on_other_addresses_than_loopback_needs_a_good_token(options: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Options(*options)
    assert Options(options[0], TOKEN).hosts is None


# -- Other sites -------------------------------------------------------------------------------------------------------


ELSEWHERE = (
    "evil.example",
    "evil.example:5556",
    "127.0.0.1.evil.example",
    "localhost.x",
    "[::2]",
    "127.0.0.1:1@evil.x",
)


@pytest.mark.parametrize("path", [*PATHS, "/static/page.css"])
def test_requests_for_other_hosts_are_refused(read_only: Server, path: str) -> None:
    for host in ELSEWHERE:
        answer = read_only.get(path, Host=host)
        assert (answer.status, is_hardened(answer), b"stripe" in answer.body) == (403, True, False), host


def test_request_needs_one_host_of_loopback(read_only: Server) -> None:
    for host in ("localhost", "LOCALHOST:5556", "127.0.0.1:1", "[::1]:5556"):
        assert read_only.get("/", Host=host).status == 200, host
    for head in (b"HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", b"HTTP/1.0"):
        assert read_only.raw(b"GET / " + head + b"\r\n\r\n").startswith(b"HTTP/1.1 400"), head


@pytest.mark.parametrize("more", [{"allowed_hosts": frozenset({"https://a"})}, {"allowed_hosts": frozenset({"*"})}])
def test_allowed_host_must_be_a_name(more: Any) -> None:
    with pytest.raises(ConfigurationError, match="no name of a host"):
        Options(**more)
    assert "limits.example" in (Options(allowed_hosts=frozenset({"Limits.Example"})).hosts or ())


OTHER_SITES: list[dict[str, str]] = [
    {"Origin": "https://evil.example"},
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "null"},
    {"Origin": "null", "Sec_Fetch_Site": "cross-site"},
    {"Origin": "http://[", "Sec_Fetch_Site": "same-origin"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},
    {"Sec_Fetch_Site": "none"},
]


@pytest.mark.parametrize("path", ["/login", "/logout", "/limit?name=stripe"])
def test_forms_of_other_sites_are_refused(with_token: Server, store: redis.Redis, path: str) -> None:
    cookie = with_token.log_in()
    fields = {"token": TOKEN, "verb": "pause", "reason": "why"}
    fields["form_token"] = with_token.form_token("/", Cookie=cookie)
    for headers in OTHER_SITES:
        answer = with_token.post(path, fields, **{"Cookie": cookie, "Origin": "", **headers})
        assert (answer.status, answer.text) == (403, "this was sent by a page of another site\n"), headers
    assert not store.keys("*config*")
    fields = {"token": TOKEN, "form_token": with_token.form_token("/login")}
    for site in ("cross-site", "same-site", "none"):  # although the origin is ours
        assert with_token.post("/login", fields, Sec_Fetch_Site=site).status == 403, site
    assert with_token.post("/login", fields, Sec_Fetch_Site="same-origin").status == 200


def test_form_without_a_form_token_of_the_session_is_refused(with_token: Server) -> None:
    for token in ("", "0" * 64, "é", "\ud800"):
        assert with_token.post("/login", {"token": TOKEN, "form_token": token}).status in (400, 403), token
    public = with_token.form_token("/login")
    assert with_token.post("/logout", {"form_token": public}, Cookie=with_token.log_in()).status == 403


def test_other_sites_cannot_embed_or_load_the_page(read_only: Server) -> None:
    script = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"}
    assert read_only.get("/metrics", **script).status == 403
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert read_only.get("/", **link).status == 200
    assert read_only.get("/", **{**link, "Sec_Fetch_Dest": "iframe"}).status == 403


# -- Requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/login", "/", "/nowhere"])
def test_large_bodies_are_refused_unread(with_token: Server, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
    said = with_token.raw(f"{head}Content-Length: 10000000\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 413"), "it answers before anything of the body has come"
    assert b"connection: close" in said.lower()
    said = with_token.raw(f"{head}Transfer-Encoding: chunked\r\n\r\n989680\r\n".encode() + b"x" * 100_000)
    assert said.startswith(b"HTTP/1.1 413")
    assert with_token.get("/login").status == 200


def test_unusual_bodies_and_methods_are_refused(with_token: Server, read_only: Server) -> None:
    body = "&".join(f"a{n}" for n in range(1000)).encode()
    form = {"Content_Type": "application/x-www-form-urlencoded", "Origin": with_token.url}
    assert with_token.ask("POST", "/login", body, **form).status == 400
    for kind in ("application/json", "text/plain", "multipart/form-data; boundary=x"):
        assert with_token.post("/login", {"token": TOKEN}, Content_Type=kind).status == 415, kind
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "QUERY"):
        assert read_only.ask(method, "/").status == 405, method


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"9" * 30, b"", b"5\r\nContent-Length: 6"])
def test_invalid_content_length_is_refused(with_token: Server, length: bytes) -> None:
    said = with_token.raw(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\n\r\nhello")
    assert said.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))


def test_read_only_page_accepts_no_form(read_only: Server, store: redis.Redis) -> None:
    assert 'id="change"' not in read_only.get("/limit?name=stripe").text
    fields = {"verb": "pause", "reason": "why", "form_token": read_only.form_token()}
    for path in ("/", "/limit?name=stripe", "/events", "/login", "/logout", "/metrics", "/static/page.css"):
        assert read_only.post(path, fields).status in (404, 405), path
    assert not store.keys("*config*")


OTHER_FILES = [
    "/static/../pages.py",
    "/static/%2e%2e/pages.py",
    "/static/..%2fpages.py",
    "/static/%2e%2e%2f%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "/static/..%5cpages.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/page.css%00.js",
    "/static/",
    "/static",
    "/%2e%2e/%2e%2e/etc/passwd",
    "//etc/passwd",
    "/templates/base.html",
]


def test_paths_outside_the_static_files_are_not_found(read_only: Server) -> None:
    for path in OTHER_FILES:
        answer = read_only.get(path)
        assert (answer.status, b"root:" in answer.body, b"import" in answer.body) == (404, False, False), path


@pytest.mark.parametrize("name", NAMES)
def test_limit_may_have_any_name(read_only: Server, name: str) -> None:
    answer = read_only.get(read_only.limit(name))
    assert (answer.status, is_hardened(answer)) == (200, True)
    assert SCRIPT not in answer.text
    assert "<script>document" not in answer.text
    with read_only.listening("/events") as events:
        part = next(events)["parts"][f"limit {name}"]
    assert part["address"] == read_only.limit(name)
    assert "\n" not in part["limit"], "nothing that breaks a line"


UNKNOWN = ["", "unknown", "a%00", "%ff%fe", "%ED%A0%80", "%F0%9F", "strip%65/..", "stripe%20", "STRIPE"]


@pytest.mark.parametrize("path", ["/limit?name=", "/events?limit="])
def test_unknown_name_is_not_found(read_only: Server, path: str) -> None:
    for name in UNKNOWN:
        answer = read_only.get(path + name)
        assert (answer.status in (400, 404), is_hardened(answer)) == (True, True), name


def test_markup_in_names_is_sent_as_json_text(read_only: Server) -> None:
    """Events are JSON of ASCII alone: a text cannot end an event, and the page shows it as text."""
    connection = http.client.HTTPConnection("127.0.0.1", read_only.port, timeout=60)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    lines = [answer.readline() for _ in range(3)]
    connection.close()
    assert lines[2].startswith(b"data: {")
    assert lines[2].isascii()
    assert SCRIPT.encode()[:8] in lines[2], "it is there, as a text of JSON"


# -- Logs --------------------------------------------------------------------------------------------------------------


def test_requests_are_not_logged(with_token: Server) -> None:
    with_token.get(f"/?token={TOKEN}")
    with_token.get("/nowhere", Authorization=f"Bearer {TOKEN}")
    assert "server" not in with_token.get("/login").headers
    assert TOKEN not in "".join(with_token.said)
    said = {line.rstrip() for line in with_token.said}
    assert said <= {f"{with_token.url}/", "WARNING:  Invalid HTTP request received."}, "where it listens, and no more"
