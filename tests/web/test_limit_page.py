"""The page of one limit, and what can be changed on it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
import redis
from celery import Celery
from markupsafe import escape

from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.web.page_data import PageData
from celery_ratelimit.words import plain
from tests.fleet_of import until
from tests.shop import make_app, park
from tests.web.server import NAMES, SCRIPT, TOKEN, Server
from tests.web.test_security import is_hardened


@pytest.fixture
def app(server: EmbeddedServer, store: redis.Redis) -> Celery:
    return make_app(server.url)


def test_page_shows_waits_users_outcomes_and_changes(app: Celery) -> None:
    limiter = Limiter.from_app(app)
    limiter.set_rate("stripe", "50/s", by="ann", reason="why not")
    limiter.pause("stripe", 60, by="ben", reason="now")
    assert limiter._counting is not None
    counter = limiter._counting.counter
    counter.started("waited", [("stripe", "k<1>", 5)], 0.7, ("tshop.charge", "qcelery"))
    for _ in range(9):
        counter.started("acquired", [("stripe", "", 1)], 0.0, ("tshop.refund", "qcelery"))
    counter.happened("parked", ["stripe"])
    limiter._counting.send()
    park(app, "stripe", 3)
    parts = PageData(app).at("stripe")
    json.dumps(parts)
    assert parts["state"]["word"] == "paused"
    facts = dict(parts["facts"])
    assert facts["override"].startswith("50/s, burst 5 by ann")
    assert facts["for the tasks"] == "shop.charge"
    assert (parts["waits"]["p50"], parts["waits"]["p95"]) == ("≤ 10 ms", "≤ 1 s")
    assert [share for _, share in parts["waits"]["bars"] if share] == [90, 10]
    assert parts["users"]["task"] == [["shop.refund", "9", 100], ["shop.charge", "5", 56]]
    assert parts["users"]["key"] == [["k<1>", "5", 100]]
    assert parts["results"] == [["started at once", "9"], ["started after a wait", "1"], ["parked", "1"]]
    assert [row[2] for row in parts["history"]] == ["pause", "set"], "the newest first"
    assert [len(parts[f"chart {name}"]["marks"]) for name in ("3 minutes", "3 hours", "24 hours")] == [2, 2, 2]
    assert parts["parked"] == 3
    assert "weights" not in parts
    assert (facts["free now"], facts["starting soon"]) == ("5/5", "0")


def test_limit_in_shadow_shows_its_report(app: Celery) -> None:
    Limiter.from_app(app).set_shadow("stripe", True, by="ann", reason="a trial")
    looks = PageData(app)
    assert looks.at("")["limit stripe"]["word"] == "shadow"
    parts = looks.at("stripe")
    assert dict(parts["facts"])["in shadow"].endswith("'a trial': nothing has come yet")
    assert parts["history"][0][2] == "shadow"
    assert set(parts["chart 3 minutes"]["limits"]) == {100.0}


def test_parked_tasks_are_shown_in_pages(app: Celery) -> None:
    park(app, "stripe", 30)
    looks = PageData(app)
    first, second = looks.parked("stripe", None, 1), looks.parked("stripe", None, 2)
    assert (first["total"], first["pages"], len(first["rows"]), len(second["rows"])) == (30, 2, 25, 5)
    assert first["rows"][0][:5] == ["1", "-", "-", "stripe--0", "shop.charge"]
    assert first["rows"][0][-1] == "(0,) {}"
    assert second["tasks"][-1] == {"id": "stripe--29", "address": "/task?id=stripe--29"}
    assert looks.parked("stripe", "unknown", 1)["rows"] == []


def test_task_is_explained_as_on_the_command_line_and_its_arguments_are_json_text(
    read_only: Server, app: Celery
) -> None:
    park(app, "stripe", 3)
    answer = read_only.get("/task?id=stripe--2")
    assert (answer.status, is_hardened(answer)) == (200, True)
    assert "shop.charge[stripe--2] is parked at place 3 of 3 of limit &#39;stripe&#39;." in answer.text
    assert '<a href="/limit?name=stripe">' in answer.text
    park(app, "stripe", 1, task=SCRIPT, ids=["odd"])
    assert SCRIPT not in read_only.get("/task?id=odd").text
    answer = read_only.get("/parked?name=stripe")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert json.loads(answer.text)["rows"][3][4] == SCRIPT


def test_task_id_may_be_any_text_of_bounded_length(read_only: Server) -> None:
    for id in (SCRIPT, "a/../b", "a\0b", "x" * 900, "{{7*7}}"):
        answer = read_only.get(f"/task?id={quote(id, safe='')}")
        assert (answer.status, "is not known" in answer.text, SCRIPT in answer.text) == (200, True, False)
        shown = str(escape(plain(id)))
        assert answer.text.count(shown) == 4, "in title, heading and answer, and in the field for another id"
    for query in ("", "?id=", "?id=%20", f"?id={'x' * 1001}", "?id=%ff", "?id=%ed%a0%80"):
        assert read_only.get(f"/task{query}").status == 400, query
    assert len(read_only.said) == 1, "no stack traces"


def test_invalid_page_number_is_an_error(read_only: Server) -> None:
    for page in ("0", "-1", "x", "1e9", "9999999", "²", ""):
        assert read_only.get(f"/parked?name=stripe&page={quote(page)}").status == 400, page


# -- Changes -----------------------------------------------------------------------------------------------------------


def changed(page: Server, name: str = "stripe", **fields: str) -> tuple[int, dict[str, Any]]:
    """The reply to a change after a login."""
    cookie = page.log_in()
    said = {"reason": "the upstream is slow", "by": "ann", **fields}
    said["form_token"] = page.form_token(page.limit(name), Cookie=cookie)
    answer = page.post(page.limit(name), said, Cookie=cookie)
    return answer.status, json.loads(answer.text) if answer.text.startswith("{") else {}


def test_change_is_applied_logged_and_kept_in_the_history(with_token: Server, limiter: Limiter, app: Celery) -> None:
    status, said = changed(with_token, verb="set", rate="20/s", **{"for": "10m"})
    assert status == 200
    assert said["said"].startswith("was 100/s, burst 5 (code)\nnow 20/s, burst 5 by ann (web page) ")
    said = changed(with_token, verb="set", rate="20/s", burst="7")[1]
    assert said["said"].splitlines()[1].startswith("now 20/s, burst 7")
    assert "until" in changed(with_token, verb="pause", **{"for": "1h30m"})[1]["said"]
    assert changed(with_token, verb="resume")[1]["said"].splitlines()[1].startswith("now 20/s, burst 7 by")
    assert changed(with_token, verb="resume")[1]["said"].startswith("nothing to change: ")
    assert changed(with_token, verb="unset")[1]["said"].endswith("now 100/s, burst 5 (code)")
    history = Limiter.from_app(app).history("stripe")
    assert [each.verb for each in history] == ["set", "set", "pause", "resume", "unset"]
    assert {(each.by, each.reason) for each in history} == {("ann (web page)", "the upstream is slow")}
    logged = " set stripe by ann (web page) (the upstream is slow): was "
    until(lambda: sum(logged in line for line in with_token.said) == 2, 10, "a line for each")


def test_limit_of_any_name_and_key_can_be_changed(with_token: Server, app: Celery) -> None:
    for name in NAMES:
        status, said = changed(with_token, name, verb="set", rate="1/m", reason=SCRIPT, by=SCRIPT)
        assert (status, said["said"].startswith("was 7/m (code)\nnow 1/m by ")) == (200, True), name
    assert changed(with_token, "tenant", verb="pause", key="tenant:7")[0] == 200
    assert Limiter.from_app(app).config("tenant", key="tenant:7").paused > 0
    assert Limiter.from_app(app).config("tenant").paused == 0


def test_weight_of_a_share_is_changed(with_token: Server) -> None:
    assert changed(with_token, "crm", verb="weight", share="gold", weight="2")[1]["said"] == "gold has 2 now"
    assert changed(with_token, "crm", verb="weight", share="gold", weight="code")[1]["said"] == "gold has 4 now"
    assert changed(with_token, "stripe", verb="weight", share="gold", weight="2")[0] == 400


def test_parked_tasks_are_released(with_token: Server, app: Celery, store: redis.Redis) -> None:
    park(app, "stripe", 3)
    assert changed(with_token, verb="release", ids="stripe--1 unknown")[1]["said"] == (
        "1 task sent back to the queue; 1 of 2 are not parked there"
    )
    assert changed(with_token, verb="release")[1]["said"] == "2 tasks sent back to the queue"


WRONG = [
    ({"verb": "set", "rate": "fast"}, "'fast'"),
    ({"verb": "set", "rate": ""}, "''"),
    ({"verb": "set", "rate": "5"}, "write '5/s'"),
    ({"verb": "set", "rate": "5/s", "burst": "-1"}, "burst '-1'"),
    ({"verb": "set", "rate": "5/s", "burst": "²"}, "burst"),
    ({"verb": "set", "rate": "5/s", "burst": "10000000001"}, "burst=10000000001 at this rate would take 63 years"),
    ({"verb": "set", "rate": "5/s", "burst": "9" * 5000}, "(5000 characters)"),
    ({"verb": "set", "rate": "9" * 5000}, "(5000 characters)"),
    ({"verb": "set", "rate": "5/s", "for": "soon"}, "'soon'"),
    ({"verb": "pause", "for": "0"}, "more than no time"),
    ({"verb": "pause", "key": "tenant:7"}, "key"),
    ({"verb": "pause", "reason": "  "}, "say why"),
    ({"verb": "pause", "reason": "x" * 201}, "(201 characters) must be a text of at most 200 characters"),
    ({"verb": "pause", "by": "x" * 201}, "must be a text of at most 200 characters"),
    ({"verb": "purge"}, "nothing that can be done here"),
    ({"verb": "__class__"}, "nothing that can be done here"),
    ({}, "nothing that can be done here"),
    ({"verb": "weight", "share": "", "weight": "1"}, "weight of which share"),
    ({"verb": "weight", "share": "gold", "weight": "much"}, "'much'"),
]


def test_invalid_change_is_an_error_that_says_why(with_token: Server, app: Celery) -> None:
    for fields, why in WRONG:
        status, said = changed(with_token, **fields)
        assert (status, why in said["error"], "force=True" in said["error"]) == (400, True, False), (fields, said)
    assert Limiter.from_app(app).history("stripe") == []


def test_changes_need_a_session_and_its_form_token(with_token: Server, store: redis.Redis) -> None:
    public = with_token.form_token("/login")
    fields = {"verb": "pause", "reason": "why", "form_token": public}
    assert with_token.post("/limit?name=stripe", fields).status == 401
    assert with_token.post("/limit?name=stripe", fields, Cookie=with_token.log_in()).status == 403
    assert with_token.post("/limit?name=unknown", fields, Authorization=f"Bearer {TOKEN}").status == 403
    assert not store.keys("*config*")
