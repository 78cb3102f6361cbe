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
def test_an_id_that_json_escapes_is_in_the_index(parking: Backlog, store: redis.Redis, task: str) -> None:
    for id in (task, f"{task}2"):
        message = json.dumps({"id": id, "headers": {"id": id}})
        park_one(parking, API, f"{id}@q", message)
    assert list(parking.contents.find(["api"], [task, task[:-1]])) == [{BUCKET: {f"{task}@q": task}}]
    assert [each.id for each in let_out(parking)] == [f"{task}@q", f"{task}2@q"]
    assert list(parking.contents.find(["api"], [task])) == [{}]
    assert not store.exists("ratelimit:v1:{api}::where@fleet")


def test_what_was_parked_before_there_was_such_an_entry_is_found_by_reading_the_lot(
    parking: Backlog, store: redis.Redis
) -> None:
    message = json.dumps({"id": "zähler", "headers": {"id": "zähler"}})
    park_one(parking, API, "zähler@q", message)
    store.delete("ratelimit:v1:{api}::where@fleet")
    found = [each.id for page in parking.contents.scan(BUCKET, [json.dumps("zähler")[1:-1]]) for each in page]
    assert found == ["zähler@q"]
