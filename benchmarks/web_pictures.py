"""The pictures of docs/web.md: a shop's limits as they might be, photographed by a headless Chromium.

    python -m benchmarks.web_pictures [DIRECTORY]

What was counted and changed within the last day is written by the package's scripts, on a clock that is moved by hand.
"""

from __future__ import annotations

import math
import random
import sys
import time
from pathlib import Path

import redis

from benchmarks.apps.page import SHOP, app
from benchmarks.chromium import Page, chromium
from benchmarks.pages import park, served
from celery_ratelimit import Limiter
from celery_ratelimit.counts.tally import Tally
from celery_ratelimit.limiter.report_counts import tell_counts
from celery_ratelimit.limits.any_limit import AnyLimit
from celery_ratelimit.testing import embedded_server

_CLOCK = "local now = tonumber(redis.call('GET', 'pictures:clock'))\n"
_DAY = 86_400
#: How much of it is used on average, and what is parked; the rest is used little.
_BUSY = {"stripe": 0.62, "crm": 0.98, "openai-tokens": 0.8, "openai-requests": 0.45, "emails": 0.97, "search": 0.3}
_PARKED = {"crm": 340, "emails": 58}
_TASKS = {"stripe": ("shop.charge", "shop.subscribe"), "crm": ("crm.sync", "crm.import")}


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/web")
    directory.mkdir(parents=True, exist_ok=True)
    with embedded_server() as server, redis.Redis.from_url(server.url) as client:
        app.conf.update(broker_url=server.url, ratelimit_url=server.url)
        _happen(client)
        page_of = served("benchmarks.apps.page", "--allow-changes", "--no-token", BENCH_BROKER=server.url)
        with page_of as at, chromium() as browser, browser.page() as page:
            _take(page, f"{at.url}/", directory / "limits.png", 1180, 640)
            _take(page, f"{at.url}/limit?name=crm", directory / "limit.png", 1180, 1010, dark=True)
            _take(page, f"{at.url}/", directory / "phone.png", 375, 720)
            assert not page.complaints, page.complaints


def _take(page: Page, url: str, path: Path, width: int, height: int, *, dark: bool = False) -> None:
    page.look(width, height, dark=dark)
    page.go_to(url)
    page.until("document.querySelector('#limits tbody tr, #chart svg') && document.getElementById('at').textContent")
    page.evaluate("document.querySelector('[data-range=\"3 hours\"]')?.click()")
    page.until("document.getElementById('page')?.textContent !== ''")
    page.evaluate("document.fonts.ready.then(() => new Promise((done) => setTimeout(done, 300)))")
    page.picture(path)
    print(f"{path}: {path.stat().st_size / 1024:.0f} kB")


def _happen(client: redis.Redis) -> None:
    """A day of use, and what people have changed in it."""
    limiter = Limiter.from_app(app)
    past = Limiter(client, quotas=dict(_limits()), replace_includes={"now": _CLOCK}, counts=False)
    chance, now = random.Random(7), time.time()
    by_second = int(now // 60 - 3) * 60
    for at in [*range(by_second - _DAY, by_second, 60), *range(by_second, int(now))]:
        seconds = 60 if at < by_second else 1
        client.set("pictures:clock", at * 1_000_000)
        tally = Tally()
        for name, limit in _limits().items():
            wave = 0.75 + 0.25 * math.sin((at + hash_of(name)) / 4000) + chance.uniform(-0.12, 0.12)
            share = min(1.0, max(0.0, _BUSY.get(name, 0.06) * (wave if _BUSY.get(name, 0) < 0.95 else 1)))
            if name == "crm" and now - 5100 < at < now - 4300:
                share = 0.0  # it was paused
            most = seconds / limit.interval if limit.interval else 0.2 * seconds
            if name == "crm" and now - 4300 < at < now - 2400:
                most /= 2
            _start(tally, name, int(share * most + chance.random()), chance)
        past._asker.drive(tell_counts(past._asker.core, tally.take()))
    for ago, change in (
        (5100, lambda: past.pause("crm", 800, by="ann", reason="the CRM is being migrated")),
        (4300, lambda: past.set_rate("crm", "10/s", by="ann", reason="half until it is warm")),
        (2400, lambda: past.unset_rate("crm", by="ben (web page)", reason="it is warm")),
        (1500, lambda: past.set_weight("crm", "silver", 2, by="ben (web page)", reason="contract of November")),
    ):
        client.set("pictures:clock", int((now - ago) * 1e6))
        change()
    limiter.set_rate("openai-requests", "300/m", by="ann", reason="shared with research this week")
    limiter.pause("sms-gateway", 1800, by="ben (web page)", reason="provider maintenance")
    for name, number in _PARKED.items():
        park(app, name, next(task for task, limit in SHOP.items() if limit.name == name), number)
        for n in range(100):  # what has a slot already
            limiter.reserve(name, id=f"{name}{n}", horizon=60)
    for _ in range(3):
        limiter.acquire("gpu")
    limiter.acquire("stripe", cost=12)
    limiter.acquire("openai-tokens", cost=9000)


def _start(tally: Tally, name: str, number: int, chance: random.Random) -> None:
    """So many permits were taken: most at once, of a backlogged limit after a while."""
    tasks = _TASKS.get(name, (f"{name}.task",))
    left = number
    while left > 0:
        some = min(left, max(1, number // 4))
        waited = chance.choice((0.0, 0.3, 2.0, 8.0, 25.0)) if name in _PARKED else chance.choice((0.0, 0.0, 0.0, 0.2))
        users = [f"t{chance.choice((tasks[0], *tasks))}", "qcelery"]
        tally.started("waited" if waited else "acquired", [(name, "", some)], waited, users)
        left -= some


def _limits() -> dict[str, AnyLimit]:
    return {str(limit.name): limit for limit in SHOP.values()}


def hash_of(name: str) -> int:
    """The same at each run."""
    return sum(map(ord, name)) * 997


if __name__ == "__main__":
    main()
