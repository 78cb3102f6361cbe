"""``--disable-prefetch``: a waiting request occupies no process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state

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
