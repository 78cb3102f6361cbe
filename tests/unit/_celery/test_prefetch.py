"""A late worker receives nothing; with ``--disable-prefetch`` a waiting request occupies no process."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state

from celery_ratelimit._celery.channel_patches import MAX_PAUSE, pause_while
from celery_ratelimit._celery.prefetch import Prefetch


class ChannelQoS:
    """Of kombu's Redis channel: it has room."""

    def can_consume(self) -> bool:
        return True


@pytest.mark.parametrize("autoscales", [False, True])
@pytest.mark.parametrize(
    ("reserved", "waiting", "consumes"), [(1, 0, True), (2, 0, False), (2, 1, True), (5, 4, True), (5, 3, False)]
)
def test_waiting_requests_occupy_no_process_without_prefetch(
    monkeypatch: pytest.MonkeyPatch, reserved: int, waiting: int, consumes: bool, autoscales: bool
) -> None:
    requests = set(range(reserved))
    monkeypatch.setattr(state, "reserved_requests", requests)
    channel_qos: Any = ChannelQoS()
    channel_qos.can_consume = lambda: len(requests) < 2  # as Celery sets it
    consumer = SimpleNamespace(
        app=SimpleNamespace(conf={"worker_disable_prefetch": True}),
        controller=SimpleNamespace(max_concurrency=2 if autoscales else None),
        pool=SimpleNamespace(num_processes=1 if autoscales else 2),
        task_consumer=SimpleNamespace(channel=SimpleNamespace(qos=channel_qos)),
        qos=SimpleNamespace(value=8),
    )
    prefetch = Prefetch(consumer)
    prefetch.attach()
    prefetch.widen(waiting)
    assert channel_qos.can_consume() is consumes


def test_channel_with_prefetch_is_not_patched() -> None:
    channel_qos = ChannelQoS()
    consumer = SimpleNamespace(
        app=SimpleNamespace(conf={}),
        task_consumer=SimpleNamespace(channel=SimpleNamespace(qos=channel_qos)),
        qos=SimpleNamespace(value=8),
    )
    Prefetch(consumer).attach()
    assert "can_consume" not in vars(channel_qos)


class Channel:
    asked = 0

    def _brpop_start(self, timeout: float | None = None) -> None:
        self.asked += 1


def test_late_worker_pauses_receiving_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, late, channel = [100.0], [False], Channel()
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
