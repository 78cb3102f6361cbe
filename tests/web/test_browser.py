"""The page in a real browser: live, by keyboard, dark, on a phone; markup in names is not run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from celery import Celery

from benchmarks.chromium import Chromium, Page, chromium, find_chromium
from celery_ratelimit import Limit, Limiter
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.shop import make_app, park
from tests.web.server import NAMES, SCRIPT, TOKEN, Server, page_of

pytestmark = pytest.mark.slow

HERE = "document.activeElement"
ROWS = "document.querySelectorAll('#limits tbody tr').length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    if find_chromium() is None:
        why = "there is no chromium on this machine: apt-get install chromium"
        if os.environ.get("RATELIMIT_TEST_CHROMIUM") == "required":
            pytest.fail(why)
        pytest.skip(why)
    with chromium() as running:
        yield running


@pytest.fixture
def page(browser: Chromium) -> Iterator[Page]:
    with browser.page() as made:
        made.look(1200, 900)
        made.call("Network.clearBrowserCookies")
        yield made


@pytest.fixture
def app(server: EmbeddedServer, _empty: None) -> Celery:
    return make_app(server.url)


def log_in(page: Page, server: Server) -> None:
    """By the form, and by keyboard."""
    page.go_to(f"{server.url}/login")
    page.evaluate("document.getElementById('token').focus()")
    page.type(TOKEN)
    page.press("Enter")
    page.until(ROWS)


def word(name: str) -> str:
    rows = "[...document.querySelectorAll('#limits tr')]"
    return f"{rows}.find((row) => row.cells[0].textContent === '{name}')?.innerText"


def test_limits_and_their_changes_are_shown(page: Page, read_only: Server, app: Celery) -> None:
    page.go_to(f"{read_only.url}/")
    page.until(f"{ROWS} >= 10")
    assert page.evaluate("document.getElementById('sentence').textContent").startswith("10 limits")
    assert "idle" in page.evaluate(word("stripe"))
    Limiter.from_app(app).pause("stripe", 600)
    page.until(f"{word('stripe')}.includes('paused')")
    page.until("document.querySelector('#limits tbody tr').cells[0].textContent === 'stripe'")
    park(app, "stripe", 40)
    page.until(f"{word('stripe')}.includes('40')")
    assert page.complaints == []


def test_markup_in_names_and_reasons_is_shown_as_text(page: Page, with_token: Server, app: Celery) -> None:
    limiter = Limiter.from_app(app)
    limiter.pause("stripe", 600, by=SCRIPT, reason=SCRIPT)
    limiter.set_rate("stripe", "1/s", by=SCRIPT, reason=SCRIPT)
    assert limiter._counting is not None
    limiter._counting.counter.started("acquired", [("stripe", SCRIPT, 5)], 0.0, (f"t{SCRIPT}", f"q{SCRIPT}"))
    limiter._counting.send()
    park(app, "stripe", 1, task=SCRIPT, key=SCRIPT)
    log_in(page, with_token)
    page.until(f"{ROWS} >= 10")
    shown = page.evaluate("[...document.querySelectorAll('#limits tbody th')].map((each) => each.textContent)")
    assert SCRIPT in shown
    for name in NAMES:
        page.go_to(f"{with_token.url}{with_token.limit(name)}")
        page.until("document.querySelector('#facts dd')")
    page.go_to(f"{with_token.url}/limit?name=stripe")
    page.until("document.querySelector('#parked tbody tr') && document.querySelector('#history tbody tr')")
    page.until("document.querySelectorAll('#users .one').length >= 3")
    text = page.evaluate("document.body.innerText")
    assert text.count(SCRIPT) >= 6, "in the history, on the picture, among users and parked tasks"
    page.go_to(f"{with_token.url}/task?id={quote(f'stripe-{SCRIPT}-0', safe='')}")
    assert page.evaluate("document.title") != "taken"
    assert page.evaluate("document.querySelectorAll('img:not(.home img), script:not([src])').length") == 0
    assert page.complaints == []


def test_limit_is_changed_with_a_reason(page: Page, with_token: Server, app: Celery) -> None:
    log_in(page, with_token)
    page.go_to(f"{with_token.url}/limit?name=stripe")
    page.until("document.querySelector('#facts dd')")
    page.evaluate("document.querySelector('#change button').click()")
    assert page.evaluate("document.querySelector('#change :invalid').name") == "rate", "nothing is sent without them"
    for field, said in (("rate", "20/s"), ("by", "ann")):
        page.evaluate(f"document.getElementById('{field}').focus()")
        page.type(said)
    page.evaluate("document.getElementById('reason').focus()")
    page.type("the upstream is slow")
    page.press("Enter")
    page.until("document.getElementById('done').textContent.includes('now 20/s, burst 5 by ann (web page)')")
    page.until("document.querySelector('#history tbody')?.innerText.includes('the upstream is slow')")
    page.until("document.querySelectorAll('.mark').length === 1")
    config = Limiter.from_app(app).config("stripe")
    assert (str(config.stored), config.by) == ("stripe: 20/s, burst 5", "ann (web page)")
    page.evaluate("document.getElementById('rate').value = 'fast'")
    page.evaluate("document.getElementById('reason').value = 'why'")
    page.evaluate("document.querySelector('#change button').click()")
    page.until("document.querySelector('#done.wrong')?.textContent.includes(\"'fast'\")")
    park(app, "stripe", 3)
    page.until("document.querySelectorAll('#parked tbody tr').length === 3")
    page.evaluate("window.confirm = (text) => { window.asked = text; return false; }")
    page.evaluate("document.getElementById('verb').value = 'release'")
    page.evaluate("document.querySelector('#change button').click()")
    page.until("window.asked === 'Send all 3 parked tasks back to the queue now? They still need permits.'")
    page.evaluate("document.querySelector('#logout button').click()")
    page.until("location.pathname === '/login'")
    page.go_to(f"{with_token.url}/login")
    assert [each for each in page.complaints if "400" not in each] == []


def test_address_with_the_token_logs_in_and_loses_the_token(page: Page, with_token: Server) -> None:
    for _ in ("without a session", "with one"):
        page.evaluate("window.isOld = true")
        page.call("Page.navigate", url=f"{with_token.url}/login#token={TOKEN}")
        page.until(f"!window.isOld && {ROWS}")
        assert page.evaluate("location.href") == f"{with_token.url}/"
    page.call("Network.clearBrowserCookies")
    page.call("Page.navigate", url=f"{with_token.url}/login#token=not-the-token-at-all")
    page.until("document.querySelector('.said')?.textContent.includes('not the token')")
    assert page.evaluate("location.hash") == ""


def test_parked_tasks_are_live_unless_text_of_them_is_selected(page: Page, read_only: Server, app: Celery) -> None:
    rows = "document.querySelectorAll('#parked tbody tr').length"
    page.go_to(f"{read_only.url}/limit?name=stripe")
    page.until("document.getElementById('page').textContent === '0 parked'")
    park(app, "stripe", 30)
    page.until(f"{rows} === 25")
    page.evaluate("document.getElementById('next').click()")
    page.until(f"{rows} === 5")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#parked tbody td'))")
    page.evaluate("window.before = document.querySelector('#parked tbody tr')")
    shown = page.evaluate("document.getElementById('at').textContent")
    page.until(f"document.getElementById('at').textContent !== '{shown}'")
    assert page.evaluate("window.before.isConnected"), "what is selected stays"
    page.evaluate("getSelection().removeAllRanges()")
    park(app, "stripe", 31)
    page.until(f"{rows} === 6")
    assert page.complaints == []


def test_chart_opens_on_the_last_minutes(page: Page, read_only: Server) -> None:
    page.go_to(f"{read_only.url}/limit?name=stripe")
    page.until("document.querySelector('#chart svg')")
    assert page.evaluate("document.querySelector('[data-range][aria-pressed=\"true\"]').textContent") == "3 minutes"
    assert page.evaluate("document.querySelector('#chart .most').textContent").endswith(" a second")


def test_wrong_token_is_an_error(page: Page, with_token: Server) -> None:
    page.go_to(f"{with_token.url}/login")
    page.evaluate("document.getElementById('token').focus()")
    page.type("not-the-token-at-all")
    page.press("Enter")
    page.until("document.querySelector('.said').textContent.includes('not the token')")


def test_page_is_usable_by_keyboard(page: Page, read_only: Server) -> None:
    page.go_to(f"{read_only.url}/")
    page.until(f"{ROWS} >= 10")
    reached = []
    for _ in range(6):
        page.press("Tab")
        reached.append(page.evaluate(f"{HERE}.id || {HERE}.className || {HERE}.href || {HERE}.tagName"))
        assert page.evaluate(f"getComputedStyle({HERE}).outlineStyle") != "none", "it is seen where one is"
    assert reached[:2] == ["skip", "home"]
    assert reached[2:4] == ["filter", "id"]
    assert "/limit?name=" in reached[-1]
    page.press("Enter")
    page.until("location.pathname === '/limit' && document.querySelector('#facts dd')")
    assert page.evaluate("[...document.querySelectorAll('input, select')].every((each) => each.labels.length)")


@pytest.mark.parametrize("dark", [False, True])
def test_colours_in_light_and_dark(page: Page, read_only: Server, dark: bool) -> None:
    page.look(1200, 900, dark=dark)
    page.go_to(f"{read_only.url}/")
    page.until(ROWS)
    ground, ink = [
        sum(page.evaluate(f"getComputedStyle(document.body).{what}.match(/\\d+/g).slice(0, 3).map(Number)"))
        for what in ("backgroundColor", "color")
    ]
    assert (ground < ink) is dark
    assert abs(ground - ink) > 450, "one can read it"


@pytest.mark.parametrize("width", [375, 700, 1060, 1130, 1200])
def test_page_fits_narrow_screens(page: Page, with_token: Server, app: Celery, width: int) -> None:
    limiter = Limiter.from_app(app)
    rate, author = Limit("200000/m", burst=20_000), "a.rather.long.name@a-host.somewhere.example"
    limiter.set_rate("stripe", rate, by=author, reason="w" * 200)
    limiter.pause("stripe", 86_400.0)
    park(app, "stripe", 30, task="a.module.of.some.package.with_a_long_name.and_a_function" * 2)
    page.look(width, 800)
    page.go_to(f"{with_token.url}/login")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    log_in(page, with_token)
    page.until(f"{ROWS} >= 10")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.go_to(f"{with_token.url}/limit?name=stripe")
    page.until("document.querySelectorAll('#parked tbody tr').length === 25")
    page.until("document.querySelector('#history tbody tr')")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.go_to(f"{with_token.url}/task?id=stripe--29")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_lost_store_is_shown_until_it_is_back(page: Page, server: EmbeddedServer) -> None:
    with embedded_server(persist=True) as limits, page_of(server.url, TEST_STORE=limits.url) as at:
        page.go_to(f"{at.url}/")
        page.until(ROWS)
        limits.kill()
        page.until("document.getElementById('trouble').textContent.includes('does not answer')")
        assert page.evaluate("document.getElementById('trouble').hidden") is False
        said = page.evaluate("document.getElementById('trouble').textContent")
        assert "Check that it runs" in said
        assert ".." not in said
        assert page.evaluate(ROWS) >= 10, "what was seen is there still"
        limits.start()
        page.until("document.getElementById('trouble').hidden")
        at.process.terminate()
        page.until("document.getElementById('trouble').textContent.startsWith('The server of this page')")
