"""The poller without a server and a store: events for browsers, and no reads without one."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from typing import Any

import pytest

from celery_ratelimit import ConfigurationError, StoreUnavailable
from celery_ratelimit.operations.wording import store_lost
from celery_ratelimit.web import poller
from celery_ratelimit.web.poller import Poller

Told = dict[str, Any]


@pytest.fixture(autouse=True)
def _without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "PAUSE", 0.0)
    monkeypatch.setattr(poller, "BUSY", 0.0)


def saying(*said: Mapping[str, Any] | Exception) -> Callable[[str], Mapping[str, Any]]:
    """A look that finds one after the other, and then the last of them."""
    left = list(said)

    def look(_: str) -> Mapping[str, Any]:
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    return look


async def first(events: AsyncGenerator[bytes, None], number: int) -> list[Told]:
    """So many of the events that say something."""
    found: list[Told] = []
    async with contextlib.aclosing(events):
        async for event in events:
            if event.startswith(b"data: "):
                told = json.loads(event[6:])
                told.pop("at", None)
                if told.get("parts") or told.get("gone") or "trouble" in told:
                    found.append(told)
            if len(found) == number:
                break
    return found


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 60))


def whole(**parts: Any) -> Told:
    return {"whole": True, "parts": parts, "gone": []}


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([{"a": 1, "b": 1}, {"a": 1, "b": 2}], [whole(a=1, b=1), {"whole": False, "parts": {"b": 2}, "gone": []}]),
        ([{"a": 1, "b": 1}, {"a": 1}], [whole(a=1, b=1), {"whole": False, "parts": {}, "gone": ["b"]}]),
        (
            [{"a": 1}, StoreUnavailable("lost."), {"a": 1}],
            [whole(a=1), {"trouble": store_lost("the store", StoreUnavailable("lost."))}, whole(a=1)],
        ),
        ([ConfigurationError("that cannot be"), {"a": 1}], [{"trouble": "that cannot be"}, whole(a=1)]),
        (
            [ZeroDivisionError(), {"a": 1}],
            [{"trouble": "what is to be shown cannot be read: see the log of this server"}, whole(a=1)],
        ),
    ],
)
def test_changes_and_errors_are_sent(looks: Iterable[Any], told: list[Told]) -> None:
    async def main() -> None:
        assert await first(Poller(saying(*looks), "the store").events(""), len(told)) == told

    run(main)


def test_second_browser_gets_the_whole_state_without_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "PAUSE", 1000.0)
    looks: list[str] = []

    async def main() -> None:
        made = Poller(lambda name: looks.append(name) or {"n": len(looks)}, "the store")
        one = made.events("")
        assert await anext(one) == b"retry: 2000\n\n"
        assert json.loads((await anext(one))[6:])["parts"] == {"n": 1}
        assert await first(made.events(""), 1) == [whole(n=1)]
        assert await first(made.events("another"), 1) == [whole(n=2)], "the first of another limit's page need not wait"
        assert (looks, list(made._subjects)) == (["", "another"], [""])
        await one.aclose()
        assert not made._subjects

    run(main)


def test_browser_that_does_not_read_is_disconnected() -> None:
    numbers = iter(range(1_000_000))

    async def main() -> None:
        made = Poller(lambda _: {"n": next(numbers)}, "the store")
        slow = made.events("")
        assert await anext(slow) == b"retry: 2000\n\n"
        assert len(await first(made.events(""), 50)) == 50
        rest = [event async for event in slow]
        assert len(rest) <= 8, "it asks anew, and is told all"
        assert not made._subjects

    run(main)


def test_close_ends_all_event_streams() -> None:
    async def main() -> None:
        made = Poller(saying({"a": 1}), "the store")
        events = [made.events("") for _ in range(3)]
        for each in events:
            await anext(each)
        made.close()
        for each in events:
            assert [event async for event in each] == []

    run(main)
