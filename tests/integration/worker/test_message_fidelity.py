"""Law 5: throttling changes nothing of a message."""

from __future__ import annotations

import base64
import json
import uuid
import zlib
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import signature

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, assert_never_over, until


def everything(task_id: str) -> dict[str, Any]:
    """Options that set every field which a protocol 2 message has."""
    other = signature("tests.apps.fleet.other", args=(1,), immutable=True)
    return {
        "task_id": task_id,
        "kwargs": {"secret": "s3cret", "list": [1, 2]},
        "retries": 1,
        "expires": datetime.now(timezone.utc) + timedelta(hours=1),
        "soft_time_limit": 50,
        "time_limit": 60,
        "link": other,
        "link_error": other,
        "chain": [other],
        "group_id": "the-group",
        "group_index": 3,
        "root_id": "the-root",
        "parent_id": "the-parent",
        "priority": 6,
        "shadow": "shadow-name",
        "argsrepr": "(hidden,)",
        "kwargsrepr": "{hidden}",
        "headers": {"x-custom": "kept", "tracing": {"span": 7}},
        "reply_to": "answers-here",
        "correlation_id": "the-correlation",
        "ignore_result": True,
        "stamped_headers": ["customer"],
        "customer": "acme",
        "replaced_task_nesting": 2,
        "origin": "test@here",
        "compression": "zlib",
        "delivery_mode": 1,
    }


def envelope(raw: str) -> dict[str, Any]:
    """A message as it lies in a Redis queue, with the parts that the transport writes anew at each publish left out."""
    message: dict[str, Any] = json.loads(raw)
    properties = message["properties"]
    for name in ("delivery_tag", "delivery_info"):
        del properties[name]
    if message["headers"].get("compression") == "application/x-gzip":
        # Compressed again: the same content, not the same bytes.
        message["body"] = zlib.decompress(base64.b64decode(message["body"])).decode()
    return message


def test_returned_message_differs_only_in_its_marker_and_expiration(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with Fleet(server, tmp_path, rate="1/h") as fleet:
        fleet.send("whole", 0)
        options = everything(str(uuid.uuid4()))
        fleet.send("whole", "a", **options, expiration=1800)
        before = envelope(store.lindex("celery\x06\x166", 0) or "")
        fleet.start()
        lots = fleet.parking_lots()
        until(lambda: lots.lots("whole"), 20, "the throttled message being parked")
        fleet.stop()
        (parked,) = lots.tasks("whole")
        assert (parked.id, parked.task, parked.queue) == (options["task_id"], "whole", "celery")
        assert (parked.args, parked.kwargs) == ("(hidden,)", "{hidden}")
        assert lots.release("whole") == 1
        after = envelope(store.lindex("celery.throttled\x06\x166", 0) or "")

        marker = after["headers"].pop("celery-ratelimit-return")
        assert marker["queue"] == "celery"
        # Its time to live counts from its publishing: what was left of it.
        assert int(after["properties"].pop("expiration")) <= int(before["properties"].pop("expiration"))
        assert after == before


def test_eta_of_a_throttled_task_is_kept(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Fleet(server, tmp_path, rate="1/s") as fleet:
        eta = datetime.now(timezone.utc) + timedelta(seconds=4)
        ids = [str(uuid.uuid4()) for _ in range(2)]
        for task_id in ids:
            fleet.send("whole", task_id=task_id, eta=eta)
        fleet.start()
        starts = fleet.wait_for(2, 20)
        assert all(start.at >= eta.timestamp() for start in starts)
        assert_never_over(fleet.permits(), 1)
        for task_id in ids:
            path = tmp_path / f"{task_id}.request"
            until(path.exists, 5)
            assert datetime.fromisoformat(json.loads(path.read_text())["eta"]) == eta


@pytest.mark.slow
def test_failed_publish_loses_no_task(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    """The broker refuses to take the messages back for a while: they stay in the store and are tried again."""
    with Fleet(server, tmp_path, rate="2/s", app="tests.apps.failing_publish") as fleet:
        for index in range(4):
            fleet.send("retry", index)
        fleet.start()
        starts = fleet.wait_for(4, 30)
        assert sorted(start.index for start in starts) == [0, 1, 2, 3]
        assert_never_over(fleet.permits(), 2)
        assert "could not be published" in fleet.log()
        until(lambda: store.hlen("unacked") == 0, 5, "every message being acknowledged")


def test_throttled_task_finds_its_request_as_it_was_sent(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with Fleet(server, tmp_path, rate="1/s") as fleet:
        options = everything("")
        as_sent, throttled = str(uuid.uuid4()), str(uuid.uuid4())
        for task_id in (as_sent, throttled):
            fleet.send("whole", "a", **{**options, "task_id": task_id})
        fleet.start()
        paths = [tmp_path / f"{task_id}.request" for task_id in (as_sent, throttled)]
        until(lambda: all(path.exists() for path in paths), 20, "the tasks")
        first, found = [json.loads(path.read_text()) for path in paths]
        assert (f"{as_sent}] throttled by" in fleet.log(), f"{throttled}] throttled by" in fleet.log()) == (False, True)

    for request in (first, found):
        assert request["properties"].pop("ratelimit_permit")
        assert "celery-ratelimit-return" not in request["headers"]
        assert request["delivery_info"].pop("redelivered") in (False, None)
        assert request["delivery_info"] == {"exchange": "", "routing_key": "celery", "priority": 6}, "a retry uses them"
        request |= request.pop("properties")
    differ = {name for name in first.keys() | found.keys() if first.get(name) != found.get(name)}
    at_each_publish = {"delivery_info", "delivery_tag", "expiration"}
    assert differ == {"id", *at_each_publish}, {name: (first.get(name), found.get(name)) for name in differ}
