"""The choice among the replies of several Sentinels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis

from celery_ratelimit.store import masters
from celery_ratelimit.store.masters import Master

ONE, TWO = ("10.0.0.1", 6379), ("10.0.0.2", 6379)


class Said:
    """A Sentinel of which a test says what it says: in time, and of which epoch, no real one can be made to."""

    def __init__(self) -> None:
        self.epoch, self.address, self.is_down, self.is_gone = 0, ONE, False, False

    def sentinel_masters(self) -> dict[str, dict[str, Any]]:
        if self.is_gone:
            raise redis.ConnectionError("refused")
        ip, port = self.address
        state = {"ip": ip, "port": port, "config-epoch": self.epoch, "is_sdown": self.is_down}
        return {"limits": state, "another": {**state, "ip": "10.0.0.9"}}


@pytest.fixture
def sentinels() -> list[Said]:
    return [Said(), Said(), Said()]


@pytest.fixture
def master(sentinels: list[Said]) -> Master:
    manager = SimpleNamespace(sentinels=sentinels, check_master_state=lambda state, _: not state["is_sdown"])
    return Master(SimpleNamespace(service_name="limits", sentinel_manager=manager))


def ask_all(master: Master) -> None:
    for number in range(3):
        try:
            master.ask(number)
        except redis.ConnectionError:
            continue


def test_newest_epoch_wins(master: Master, sentinels: list[Said]) -> None:
    ask_all(master)
    assert master.address == ONE
    for number in range(3):
        sentinels[number].epoch, sentinels[number].address = number + 1, TWO if number % 2 == 0 else ONE
        ask_all(master)
        assert master.address == sentinels[number].address


def test_unreachable_sentinel_is_forgotten(master: Master, sentinels: list[Said]) -> None:
    """Sentinels that were set up anew begin with the epoch 0."""
    sentinels[0].epoch, sentinels[0].address = 7, TWO
    ask_all(master)
    assert master.address == TWO
    sentinels[0].is_gone = True
    ask_all(master)
    assert master.address == ONE


def test_master_that_is_down_counts_as_none(master: Master, sentinels: list[Said]) -> None:
    ask_all(master)
    sentinels[0].is_down = True
    ask_all(master)
    assert master.address == ONE, "two of three have one"
    sentinels[1].is_down = sentinels[2].is_gone = True
    ask_all(master)
    assert master.address is None


def test_new_master_reported_down_is_not_replaced_by_the_old_one(master: Master, sentinels: list[Said]) -> None:
    """The others have not heard of it yet."""
    sentinels[0].epoch, sentinels[0].address = 1, TWO
    ask_all(master)
    sentinels[0].is_down = True
    ask_all(master)
    assert master.address == TWO


def test_sentinel_is_queried_only_after_use(master: Master, sentinels: list[Said]) -> None:
    master.ask_if_used(0)
    sentinels[0].address = TWO
    master.ask_if_used(0)
    assert master.address == ONE
    master.uses += 1
    master.ask_if_used(0)
    assert master.address == TWO


@pytest.mark.parametrize("end", ["+switch-master", "-failover-abort-no-good-slave"])
def test_failover_lasts_from_selection_to_switch(
    master: Master, sentinels: list[Said], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(masters, "time", SimpleNamespace(monotonic=lambda: now[0]))
    begin = "+failover-state-select-slave"
    ask_all(master)
    master.handle_event(0, begin, ["master", "another", *map(str, ONE)])
    assert not master.is_moving
    master.handle_event(0, begin, ["master", "limits", *map(str, ONE)])
    assert master.is_moving
    sentinels[1].epoch, sentinels[1].address = 1, TWO
    master.handle_event(1, end, ["limits", *map(str, ONE), *map(str, TWO)])
    assert not master.is_moving
    assert master.address == TWO, "queried before calls continue"
    master.handle_event(0, begin, ["master", "limits", *map(str, TWO)])
    now[0] += masters.LONGEST_MOVE
    assert not master.is_moving, "its end was not heard"


def test_watcher_survives_closed_connections(
    master: Master, sentinels: list[Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``Limiter.close`` closes them from another thread, and redis-py then fails where it reads."""
    looks: list[float] = []

    class Closed:
        def psubscribe(self, *patterns: str) -> None:
            raise AttributeError("'NoneType' object has no attribute 'readline'")

        def close(self) -> None: ...

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            master.watch_no_more()

    monkeypatch.setattr(masters, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: 0.0))
    sentinel = SimpleNamespace(pubsub=lambda **_: Closed())
    masters._follow(lambda: master, master.watch_number, 0, sentinel)  # type: ignore[arg-type]
    assert len(looks) == 3
