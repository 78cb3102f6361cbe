"""A web process and a fleet on one quota: the limit holds over both, and both get on."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from benchmarks import processes
from celery_ratelimit.testing import free_port
from tests.fleet_of import Fleet, NewFleet, assert_never_over, assert_over, until

RATE, WAVES, EACH = 50, 8, 13
ALL = WAVES * EACH
CONF = {"ratelimit_quotas": {"shared": f"{RATE}/s"}, "ratelimit_tasks": {"*.plain": ["shared"]}}


@contextlib.contextmanager
def web_process(fleet: Fleet) -> Iterator[str]:
    """``tests.apps.web`` on a port of its own; its URL."""
    port = free_port()
    command = [sys.executable, "-m", "tests.apps.web"]
    web = processes.spawn(command, fleet.directory / "web.log", {**fleet.env, "TEST_PORT": str(port)})
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client() as client:

            def answers() -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return client.get(f"{url}/ready").status_code == 200
                return False

            until(answers, 20, "the web process being ready")
        yield url
    finally:
        processes.stop([web])


def test_web_process_and_fleet_share_a_quota(new_fleet: NewFleet, tmp_path: Path) -> None:
    """Tasks and requests come together, in waves, half again as many as the quota lets through."""

    async def requested(fleet: Fleet, url: str) -> list[int]:
        # Its own pool holds nothing up.
        unbounded = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=90, limits=unbounded) as client:
            requests = []
            for wave in range(WAVES):
                for index in range(wave * EACH, (wave + 1) * EACH):
                    fleet.send("plain", index)
                    requests.append(asyncio.create_task(client.get(f"/charge/{ALL + index}")))
                await asyncio.sleep(2 * EACH / RATE / 1.5)
            return [answer.status_code for answer in await asyncio.gather(*requests)]

    with new_fleet(rate=f"{RATE}/s", install=True, **CONF) as fleet, web_process(fleet) as url:
        fleet.start(number=2)
        assert asyncio.run(requested(fleet, url)) == [200] * ALL
        fleet.wait_for(ALL, 60)
        permits = fleet.permits()
        assert sorted(permit.index for permit in permits) == list(range(2 * ALL))  # each paid, once
        assert_never_over(permits, RATE)

        of_tasks = sum(permit.index < ALL for permit in permits[:ALL])
        assert ALL / 10 <= of_tasks <= ALL * 9 / 10, "both get on"
        assert_over(permits, RATE / 2)
        assert "Traceback" not in fleet.log(0) + fleet.log(1) + (tmp_path / "web.log").read_text()
