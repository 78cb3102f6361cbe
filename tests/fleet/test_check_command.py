"""``check --fleet`` of real workers: one warning for each fault, and none for a healthy fleet."""

from __future__ import annotations

import json
import re
from typing import Any

import redis

from celery_ratelimit.testing import embedded_server
from tests.fleet_of import Fleet, NewFleet, run_celery, until


def checked(fleet: Fleet, **env: str) -> dict[str, Any]:
    """Run the command with the code of ``tests.apps.slow``; its findings."""
    command = ("-A", "tests.apps.slow", "ratelimit", "check", "--fleet", "--json")
    code, printed = run_celery(fleet.directory, {**fleet.env, **env}, *command)
    assert printed.startswith("{"), printed
    found: dict[str, Any] = json.loads(printed)
    assert code == bool(found["warnings"])
    return found


def until_reported(fleet: Fleet, part: str, kind: str = "warnings", **env: str) -> str:
    """Workers have a second to answer, which a busy machine's may not do."""
    found: list[str] = []

    def is_reported() -> bool:
        found[:] = [each for each in checked(fleet, **env)[kind] if part in each]
        return bool(found)

    until(is_reported, 20, f"{part!r} being reported")
    return found[0]


#: Of the store that tests have; and of the fleet's app, which has tasks of all kinds.
ALWAYS = ("the store keeps nothing on disk", "task 'tests.apps.fleet.overflowing': overflow='later'")


def test_healthy_fleet_has_no_warning_but_for_an_unknown_limit_or_too_few_processes(new_fleet: NewFleet) -> None:
    """Little's law: 20/s of half a second want ten; and more of what takes a while longer on a busy machine."""
    with new_fleet(app="tests.apps.slow", prefix="tests.apps.slow.") as fleet:
        fleet.start("-c", "2")
        until(lambda: all(each.startswith(ALWAYS) for each in checked(fleet)["warnings"]), 20, "no warning")
        found = until_reported(fleet, "1 worker answered (w0@test); the store at ", "notes")
        assert re.fullmatch(r".* at redis://127\.0\.0\.1:\d+/0 answered in \d+\.\d ms", found), found
        found = until_reported(fleet, "no live worker has the limit 'newer' (of tests.apps.slow.newer)", TEST_NEWER="1")
        assert "Start workers of this version of the code" in found
        assert not [each for each in checked(fleet)["warnings"] if "no live worker" in each]

        for result in fleet.send_each("sleep", range(4), 0.5):
            result.get(timeout=60)
        note = until_reported(fleet, "limit 'slow': 20/s of tasks that take 0.5", "notes")
        assert "and the workers that answered have 2 for their queues (celery): no more than " in note
        fleet.send_each("sleep", range(200), 0.5)  # five seconds' worth and more, at the least
        until_reported(fleet, "limit 'slow': 20/s of tasks that take 0.5")


#: What is wrong with a worker, and the warning.
STRANGE = {
    "version": "has version 0.0.7 of this package, and this process ",
    "clock": "is off by about -9",
    "silent": "does not know of `ratelimits`: it has an older version of this package, or none",
}


def test_strange_workers_are_named(new_fleet: NewFleet, broker_url: str) -> None:
    with new_fleet(app="tests.apps.strange", broker=broker_url) as fleet:
        for fleet.env["TEST_STRANGE"] in STRANGE:
            fleet.launch()
        fleet.start(number=0)
        for index, warning in enumerate(STRANGE.values()):
            assert f"worker w{index}@test" in until_reported(fleet, warning)


def test_low_maxclients_of_the_store_is_reported(new_fleet: NewFleet, store: redis.Redis) -> None:
    with embedded_server() as small, redis.Redis.from_url(small.url) as client:
        client.config_set("maxclients", 50)
        with new_fleet(app="tests.apps.slow", ratelimit_url=small.url) as fleet:
            fleet.start("-c", "44", "-P", "threads")
            found = until_reported(fleet, "the store takes 50 clients (maxclients)")
            assert "1 worker(s) with 44 processes may come to 51" in found
            client.config_set("maxclients", 500)
            until(lambda: not [each for each in checked(fleet)["warnings"] if "maxclients" in each], 20, "no warning")
