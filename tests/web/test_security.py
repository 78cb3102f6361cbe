"""What is tried against the page, each against a server as it is started by the command."""

from __future__ import annotations

import http.client
from typing import Any

import pytest
import redis

from celery_ratelimit import ConfigurationError
from celery_ratelimit.web.keys import COOKIE, Keys
from celery_ratelimit.web.options import Options
from tests.web.server import NAMES, SCRIPT, TOKEN, Answer, Server

#: What answers to GET, but for what is public: the form to log in and our files.
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


# -- Who may look ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong-token-of-some-length"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Cookie": f"COOKIE={TOKEN}"},
        {"Cookie": f"COOKIE=99999999999.{'0' * 64}"},
        {"Cookie": "COOKIE=99999999999.é"},
        {"Cookie": "COOKIE=."},
    ],
)
def test_nothing_is_seen_without_the_token(with_token: Server, path: str, headers: dict[str, str]) -> None:
    cookie = f"{COOKIE}_{with_token.port}"
    answer = with_token.get(path, **{name: text.replace("COOKIE", cookie) for name, text in headers.items()})
    assert answer.status in (303, 401)
    assert b"stripe" not in answer.body
    assert is_hardened(answer)
    if answer.status == 303:
        assert answer.headers["location"].startswith("/login?next=%2F")


def test_the_form_to_log_in_says_nothing_of_what_is_behind_it(with_token: Server) -> None:
    text = with_token.get("/login").text
    assert "redis" not in text
    assert "redis" in with_token.get("/", Authorization=f"Bearer {TOKEN}").text


def test_a_token_in_an_address_is_none(with_token: Server) -> None:
    assert with_token.get(f"/?token={TOKEN}").status == 303
    assert with_token.get(f"/events?token={TOKEN}").status == 401


def test_the_token_opens_by_the_form_and_by_a_header(with_token: Server) -> None:
    cookie = with_token.log_in()
    for headers in ({"Cookie": cookie}, {"Authorization": f"Bearer {TOKEN}"}):
        answer = with_token.get("/", **headers)
        assert (answer.status, is_hardened(answer)) == (200, True)
        assert with_token.get("/metrics", **headers).status == 200
    assert TOKEN not in cookie


def test_the_cookie_is_for_this_server_and_no_script(with_token: Server) -> None:
    token = with_token.form_token("/login")
    answer = with_token.post("/login", {"token": TOKEN, "form_token": token, "next": "/limit?name=a"})
    attributes = {each.strip().lower() for each in answer.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert "secure" not in attributes, "it would not come back over HTTP"
    assert answer.text == '{"next":"/limit?name=a"}'
    host = {"Host": "limits.example", "Origin": "https://limits.example"}
    answer = with_token.post("/login", {"token": TOKEN, "form_token": token}, **host)
    assert answer.status == 403, "the server does not answer to that name"


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", SCRIPT, "\ud800", "é" * 30])
def test_a_wrong_token_opens_nothing(with_token: Server, token: str) -> None:
    answer = with_token.post("/login", {"token": token, "form_token": with_token.form_token("/login")})
    assert answer.status in (400, 403)
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "path",
    ["//evil.example", "https://evil.example/", "/\\evil.example", "\\\\evil", "/\n/evil.example", "javascript:x"],
)
def test_a_link_to_the_form_leads_nowhere_else(with_token: Server, path: str) -> None:
    fields = {"token": TOKEN, "form_token": with_token.form_token("/login"), "next": path}
    assert with_token.post("/login", fields).text == '{"next":"/"}'


def test_a_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(TOKEN, 1)
    session = keys.open_session()
    assert keys.identify("", f"{COOKIE}_1={session}") == session
    assert keys.identify("", f"{COOKIE}_2={session}") is None
    assert Keys(TOKEN, 1).identify("", f"{COOKIE}_1={session}") is None, "another process has another secret"
    monkeypatch.setattr("celery_ratelimit.web.keys.time.time", lambda: int(session.partition(".")[0]))
    assert keys.identify("", f"{COOKIE}_1={session}") is None


def test_whoever_logs_out_is_out(with_token: Server) -> None:
    cookie = with_token.log_in()
    token = with_token.form_token("/", Cookie=cookie)
    answer = with_token.post("/logout", {"form_token": token}, Cookie=cookie)
    assert answer.status == 200
    assert "max-age=0" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "limits.example", ""])
def test_elsewhere_than_on_loopback_nothing_starts_without_a_token(host: str) -> None:
    with pytest.raises(ConfigurationError, match="give a token"):
        Options(host)
    assert Options(host, TOKEN).hosts is None


@pytest.mark.parametrize("token", ["short", "has blanks in its middle", "ééééééééééééééééé"])
def test_a_token_that_is_guessed_is_none(token: str) -> None:
    with pytest.raises(ConfigurationError, match="at least 16 characters"):
        Options("0.0.0.0", token)


# -- Other sites -------------------------------------------------------------------------------------------------------


ELSEWHERE = (
    "evil.example",
    "evil.example:5556",
    "127.0.0.1.evil.example",
    "localhost.x",
    "[::2]",
    "127.0.0.1:1@evil.x",
)


@pytest.mark.parametrize("host", ELSEWHERE)
@pytest.mark.parametrize("path", [*PATHS, "/static/page.css"])
def test_a_name_that_was_made_to_lead_here_is_turned_away(read_only: Server, host: str, path: str) -> None:
    answer = read_only.get(path, Host=host)
    assert (answer.status, is_hardened(answer)) == (403, True)
    assert b"stripe" not in answer.body


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:5556", "127.0.0.1:1", "[::1]:5556"])
def test_names_of_loopback_lead_here(read_only: Server, host: str) -> None:
    assert read_only.get("/", Host=host).status == 200


def test_a_request_names_one_host(read_only: Server) -> None:
    assert read_only.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert read_only.raw(b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize("more", [{"allowed_hosts": frozenset({"https://a"})}, {"allowed_hosts": frozenset({"*"})}])
def test_a_host_that_is_allowed_is_a_name(more: Any) -> None:
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


@pytest.mark.parametrize("path", ["/login", "/logout"])
@pytest.mark.parametrize("headers", OTHER_SITES)
def test_a_form_of_another_site_is_turned_away(with_token: Server, path: str, headers: dict[str, str]) -> None:
    cookie = with_token.log_in()
    fields = {"token": TOKEN, "form_token": with_token.form_token("/", Cookie=cookie)}
    answer = with_token.post(path, fields, **{"Cookie": cookie, "Origin": "", **headers})
    assert (answer.status, answer.text) == (403, "this was sent by a page of another site\n")


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
def test_what_a_browser_says_of_the_site_holds_whatever_the_origin(with_token: Server, site: str) -> None:
    fields = {"token": TOKEN, "form_token": with_token.form_token("/login")}
    assert with_token.post("/login", fields, Sec_Fetch_Site=site).status == 403
    assert with_token.post("/login", fields, Sec_Fetch_Site="same-origin").status == 200


@pytest.mark.parametrize("token", ["", "0" * 64, "é", "\ud800"])
def test_a_form_without_our_token_is_turned_away(with_token: Server, token: str) -> None:
    assert with_token.post("/login", {"token": TOKEN, "form_token": token}).status in (400, 403)


def test_a_form_token_is_of_one_session(with_token: Server) -> None:
    """What the form to log in shows to everybody is good for nothing else."""
    public = with_token.form_token("/login")
    assert with_token.post("/logout", {"form_token": public}, Cookie=with_token.log_in()).status == 403


def test_another_site_does_not_read_either(read_only: Server) -> None:
    for headers in ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"},):
        assert read_only.get("/metrics", **headers).status == 403
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert read_only.get("/", **link).status == 200
    assert read_only.get("/", **{**link, "Sec_Fetch_Dest": "iframe"}).status == 403


# -- What comes with a request -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/login", "/", "/nowhere"])
def test_ten_megabytes_are_not_read(with_token: Server, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
    said = with_token.raw(f"{head}Content-Length: 10000000\r\n\r\n".encode())
    assert said.startswith(b"HTTP/1.1 413"), "it answers before anything of it has come"
    assert b"connection: close" in said.lower()
    said = with_token.raw(f"{head}Transfer-Encoding: chunked\r\n\r\n989680\r\n".encode() + b"x" * 100_000)
    assert said.startswith(b"HTTP/1.1 413")
    assert with_token.get("/login").status == 200


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"9" * 30, b"", b"5\r\nContent-Length: 6"])
def test_a_length_that_is_none(with_token: Server, length: bytes) -> None:
    said = with_token.raw(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\n\r\nhello")
    assert said.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))


def test_fields_by_the_thousand(with_token: Server) -> None:
    body = "&".join(f"a{n}" for n in range(1000)).encode()
    answer = with_token.ask(
        "POST", "/login", body, Content_Type="application/x-www-form-urlencoded", Origin=with_token.url
    )
    assert answer.status == 400


def test_only_forms_are_read(with_token: Server) -> None:
    for kind in ("application/json", "text/plain", "multipart/form-data; boundary=x"):
        assert with_token.post("/login", {"token": TOKEN}, Content_Type=kind).status == 415


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "QUERY"])
def test_other_methods(read_only: Server, method: str) -> None:
    assert read_only.ask(method, "/").status == 405


@pytest.mark.parametrize(
    "path", ["/", "/limit?name=stripe", "/events", "/login", "/logout", "/metrics", "/static/page.css"]
)
def test_in_read_only_mode_nothing_takes_a_form(read_only: Server, path: str, store: redis.Redis) -> None:
    fields = {"verb": "pause", "reason": "why", "form_token": read_only.form_token()}
    assert read_only.post(path, fields).status in (404, 405)
    assert not store.keys("*config*")


PATHS_THAT_ARE_NONE = [
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


@pytest.mark.parametrize("path", PATHS_THAT_ARE_NONE)
def test_a_path_is_no_file(read_only: Server, path: str) -> None:
    answer = read_only.get(path)
    assert answer.status == 404
    assert b"root:" not in answer.body
    assert b"import" not in answer.body


@pytest.mark.parametrize("name", NAMES)
def test_any_text_is_a_limits_name(read_only: Server, name: str) -> None:
    answer = read_only.get(read_only.limit(name))
    assert (answer.status, is_hardened(answer)) == (200, True)
    assert SCRIPT not in answer.text
    assert "<script>document" not in answer.text
    with read_only.listening("/events") as events:
        part = next(events)["parts"][f"limit {name}"]
    assert part["address"] == read_only.limit(name)
    assert "\n" not in part["limit"], "nothing that breaks a line"


NOBODY = ["", "nobody", "a%00", "%ff%fe", "%ED%A0%80", "%F0%9F", "strip%65/..", "stripe%20", "STRIPE"]


@pytest.mark.parametrize("name", NOBODY)
@pytest.mark.parametrize("path", ["/limit?name=", "/events?limit="])
def test_a_name_that_nobody_knows(read_only: Server, path: str, name: str) -> None:
    answer = read_only.get(path + name)
    assert answer.status in (400, 404)
    assert is_hardened(answer)


def test_a_store_that_answers_with_markup_is_not_run(read_only: Server) -> None:
    """What events say is JSON of ASCII alone: it cannot end an event, and the page makes text of it."""
    connection = http.client.HTTPConnection("127.0.0.1", read_only.port, timeout=60)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    lines = [answer.readline() for _ in range(3)]
    connection.close()
    assert lines[2].startswith(b"data: {")
    assert lines[2].isascii()
    assert SCRIPT.encode()[:8] in lines[2], "it is there, as a text of JSON"


# -- What it says of itself --------------------------------------------------------------------------------------------


def test_nothing_that_is_asked_is_logged(with_token: Server) -> None:
    with_token.get(f"/?token={TOKEN}")
    with_token.get("/nowhere", Authorization=f"Bearer {TOKEN}")
    assert "server" not in with_token.get("/login").headers
    assert TOKEN not in "".join(with_token.said)
    said = {line.rstrip() for line in with_token.said}
    assert said <= {f"{with_token.url}/", "WARNING:  Invalid HTTP request received."}, "where it listens, and no more"
