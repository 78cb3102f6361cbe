"""Tasks are found by their own ids, whatever these are made of."""

from __future__ import annotations

import json

import pytest
import redis

from celery_ratelimit.backlog.backlog import Backlog
from tests.parks import park_one

from .test_parking import API, BUCKET, let_out


@pytest.mark.parametrize(
    "task",
    ["zähler", "日本", "\U0001f40c", 'a "quoted" one', "back\\slash", "ends in \\", "a\nline", "/", "a@b", "\\u0041"],
)
def test_id_that_json_escapes_is_indexed(parking: Backlog, store: redis.Redis, task: str) -> None:
    for id in (task, f"{task}2"):
        message = json.dumps({"id": id, "headers": {"id": id}})
        park_one(parking, API, f"{id}@q", message)
    assert list(parking.contents.find(["api"], [task, task[:-1]])) == [{BUCKET: {f"{task}@q": task}}]
    assert [each.id for each in let_out(parking)] == [f"{task}@q", f"{task}2@q"]
    assert list(parking.contents.find(["api"], [task])) == [{}]
    assert not store.exists("ratelimit:v1:{api}::task_index@fleet")
