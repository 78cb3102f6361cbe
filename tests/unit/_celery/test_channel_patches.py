"""A late worker pauses the polling of its channel for a bounded time."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from celery_ratelimit._celery.channel_patches import MAX_PAUSE, pause_while

NOW = 100.0


class Channel:
    asked = 0

    def _brpop_start(self, timeout: float | None = None) -> None:
        self.asked += 1


def test_late_worker_pauses_receiving_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, late, channel = [NOW], [False], Channel()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pause_while(channel, lambda: late[0])
    channel._brpop_start()
    assert channel.asked == 1
    late[0] = True
    for _ in range(14):
        channel._brpop_start()
        now[0] += 0.01
    assert channel.asked == 1
    now[0] += MAX_PAUSE - 0.14
    channel._brpop_start()
    assert channel.asked == 2, "something comes in, however late it is"
    channel._brpop_start()
    assert channel.asked == 2, "and then it rests again"
    late[0] = False
    channel._brpop_start()
    assert channel.asked == 3


def test_channel_without_polling_is_not_patched() -> None:
    channel = SimpleNamespace()
    pause_while(channel, lambda: True)
    assert vars(channel) == {}
