"""Messages of every kind that a plain Celery worker lives through, from producers that are not Celery, or not in order.

What ends a plain worker is Celery's own affair, see docs/upstream-celery.md: an id that is no text, for one, or an
expired task whose result cannot be stored.
"""

from __future__ import annotations

import base64
import json
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from celery_ratelimit._celery.saved_message import RETURN_HEADER

__all__ = ["Wire", "generated"]

#: Headers, properties and the body, as a producer hands them to its broker.
Wire = tuple[Any, dict[str, Any], bytes]

APP = "tests.apps.falling"
#: Tasks whose result backend raises.
WITHOUT_BACKEND = ("storeless", "dropped")
TASKS = ("failing", "impatient", "keyless", *WITHOUT_BACKEND, "of_tenant", "waiting_tenant", "plainest")

TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["\ud83d", "\x00", "x" * 300, "%", "{}", "@", "a~b", "celery", "é", "-1", "nan"]),
)
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70), st.sampled_from([0, -1, 1, 2**31, 2**53, 1.5, -0.0, float("inf"), float("nan")])
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda parts: st.one_of(st.lists(parts, max_size=3), st.dictionaries(TEXTS, parts, max_size=3)),
    max_leaves=5,
)
ODD_TIMES = st.one_of(
    JSON.filter(lambda value: not isinstance(value, str)), st.sampled_from(["", "soon", "2026-13-01"])
)


def when(seconds: int) -> str:
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat()


TIMES = st.one_of(st.none(), st.sampled_from([-3600, -1, 0, 1]).map(when), ODD_TIMES)
LATER = st.one_of(st.none(), st.sampled_from([3600, 10**8]).map(when), ODD_TIMES.filter(bool))
QUEUES = st.sampled_from(["celery", "celery.throttled", "nowhere", "", "\ud83d"])
MARKERS = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {"queue": st.one_of(QUEUES, JSON)},
        optional={
            "eta": TIMES,
            "exchange": st.one_of(TEXTS, JSON),
            "routing_key": st.one_of(QUEUES, JSON),
            "lot": st.one_of(st.tuples(TEXTS, TEXTS).map(list), JSON),
            "id": st.one_of(TEXTS, JSON),
            "copy": st.one_of(st.integers(0, 3), JSON),
            "since": st.one_of(st.integers(0, 2**52), JSON),
            "again": st.one_of(st.booleans(), JSON),
        },
    ),
)
ARGS = st.one_of(st.tuples(st.integers(-9, -1), st.sampled_from(["a", "b", "\ud83d"])).map(list), st.lists(JSON), JSON)
KWARGS = st.one_of(st.just({}), st.dictionaries(TEXTS, JSON, max_size=2), JSON)
LIMITS = st.sampled_from([None, [None, None], [5, 3]])
IDS = st.one_of(st.uuids().map(str), st.sampled_from(["again", "\ud83d", ""]))

#: What a task's message says of itself, and may get wrong.
FIELDS = {
    "id": IDS,
    "retries": st.one_of(st.integers(0, 3), JSON),
    "eta": TIMES.filter(lambda time: time is None or bool(time)),
    "expires": LATER,
    "timelimit": LIMITS,
    "argsrepr": st.one_of(TEXTS, JSON),
    "kwargsrepr": st.one_of(TEXTS, JSON),
    "root_id": IDS,
    "parent_id": IDS,
    "group": JSON,
    "group_index": JSON,
    "shadow": TEXTS,
    "lang": JSON,
    "origin": JSON,
    "ignore_result": JSON,
    "replaced_task_nesting": JSON,
    "stamped_headers": st.one_of(st.none(), st.lists(TEXTS, max_size=2)),
    "stamps": JSON,
    "headers": JSON,
    "meth": JSON,
    RETURN_HEADER: MARKERS,
}
PROPERTIES = {
    "correlation_id": JSON,
    "reply_to": JSON,
    "priority": st.one_of(st.integers(0, 9), JSON),
    "delivery_mode": st.one_of(st.sampled_from([1, 2]), JSON),
    "expiration": st.one_of(st.just("60000"), JSON),
    "type": JSON,
    "app_id": JSON,
    "message_id": JSON,
    "timestamp": JSON,
    "cluster_id": JSON,
    "user_id": JSON,
    "retry": JSON,
    "routing_key": JSON,
    "declare": JSON,
    "serializer": JSON,
}
USUAL_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
EMBED = st.one_of(
    st.just(USUAL_EMBED),
    st.dictionaries(st.sampled_from(["callbacks", "errbacks", "chain", "chord"]), JSON),
    JSON,
)


@st.composite
def messages(draw: Any) -> Wire:
    protocol = draw(st.sampled_from(["2", "2", "2", "2", "1", "hybrid", "neither"]))
    wrong = draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=3))
    name = draw(st.sampled_from(TASKS))
    task = f"{APP}.{name}"
    fields: dict[str, Any] = {"task": task, "id": draw(st.uuids().map(str)), "retries": 0}
    fields.update({each: draw(FIELDS[each]) for each in sorted(wrong)})
    embed = draw(EMBED)
    # The result of an expired task has to be stored, or its worker ends. All other tasks of its id expire with it.
    expires = draw(st.sampled_from([None] * 4 + [-3600, 1]))
    if expires is not None and name not in WITHOUT_BACKEND:
        fields.update(id=f"expires-{draw(st.uuids())}", expires=when(expires))
        embed = USUAL_EMBED
    for missing in draw(st.sets(st.sampled_from(["task", "retries"]), max_size=1)) if draw(st.booleans()) else ():
        fields.pop(missing, None)
    properties = {
        each: draw(PROPERTIES[each]) for each in sorted(draw(st.sets(st.sampled_from(sorted(PROPERTIES)), max_size=2)))
    }
    args, kwargs = draw(ARGS), draw(KWARGS)
    headers: Any = {}
    body: Any
    if protocol == "2":
        headers, body = fields, (args, kwargs, embed)
    elif protocol == "1":
        body = {**fields, "args": args, "kwargs": kwargs, "callbacks": None}
        headers = draw(st.one_of(st.just({}), st.fixed_dictionaries({RETURN_HEADER: MARKERS})))
    elif protocol == "hybrid":
        headers, body = {"task": task}, {**fields, "args": args, "kwargs": kwargs}
    else:
        body = draw(JSON)
    return headers, properties, json.dumps(body).encode()


def generated(number: int) -> list[Wire]:
    """So many messages. Which ones depends on the modules that are imported: Hypothesis uses their constants."""
    found: list[Wire] = []

    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(messages())
    def collect(message: Wire) -> None:
        found.append(message)

    collect()
    return found


def redis_form(message: Wire, queue: str) -> str:
    """As kombu writes a message to a list in Redis."""
    headers, properties, body = message
    own = {
        "delivery_tag": str(uuid.uuid4()),
        "delivery_info": {"exchange": "", "routing_key": queue},
        "body_encoding": "base64",
    }
    return json.dumps(
        {
            "body": base64.b64encode(body).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": {**properties, **own},
        }
    )
