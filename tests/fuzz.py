"""Random fleets against the laws: ``make fuzz SECONDS=600``, or one of them again: ``make fuzz SEED=1234``.

A fleet has a random limit, broker, pool, number of workers, lengths of tasks and faults. Afterwards each task must have
run, none more often than its faults allow, no interval may have more permits than the limit, and nothing may be left.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import redis
from celery.result import AsyncResult

from celery_ratelimit import Limit, Limiter, StoreUnavailable
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import embedded_server
from tests.conftest import PATIENT
from tests.fleet_of import Fleet, errors, until
from tests.lua.windows import Start, check_every_window
from tests.rabbitmq import RabbitMQ, find_server, running_node

ALGORITHMS = ["token_bucket", "token_bucket", "fixed_window", "sliding_window", "sliding_log", "leaky_bucket"]


@dataclass
class Plan:
    """What a seed has chosen.

    Attributes:
        faults: pairs of seconds, at least, after the fault before, and what happens then.
        lengths: seconds of a task's body; each task takes one of them.
    """

    seed: int
    limit: dict[str, Any] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    tenants: int = 1
    tasks: int = 0
    lengths: list[float] = field(default_factory=list)
    workers: int = 1
    pool: list[str] = field(default_factory=list)
    on_rabbitmq: bool = False
    faults: list[tuple[float, str]] = field(default_factory=list)

    @classmethod
    def of(cls, seed: int, *, has_rabbitmq: bool) -> Plan:
        pick = random.Random(seed)
        plan, rate = cls(seed), pick.choice([3, 10, 20, 50])
        algorithm, period = pick.choice(ALGORITHMS), pick.choice([1, 1, 2, 5])
        plan.limit = {"rate": f"{rate * period}/{period}s", "algorithm": algorithm}
        if algorithm == "token_bucket":
            plan.limit["burst"] = pick.choice([1, 1, rate])
        plan.tenants = pick.choice([1, 1, 3])
        if plan.tenants > 1:
            plan.limit["key" if algorithm != "token_bucket" or pick.random() < 0.5 else "fair"] = "{tenant}"
        plan.places = [pick.randint(1, 4)] if pick.random() < 0.3 else []
        plan.on_rabbitmq = has_rabbitmq and pick.random() < 0.5
        late = pick.random() < 0.5
        throttle = "retry" if "fair" in plan.limit else pick.choice(["retry", "retry", "wait"])
        plan.options = {"throttle": throttle, "acks_late": late}
        plan.tasks = pick.randint(20, min(150, 8 * rate))
        plan.lengths = pick.choice([[0.0], [0.0, 0.05], [0.0, 0.0, 0.5]])
        plan.workers = pick.randint(1, 3)
        processes = str(pick.randint(1, 3))
        plan.pool = pick.choice(
            [["-c", processes], ["-c", processes], ["-P", "threads", "-c", processes], ["-P", "solo"]]
        )
        kinds = ["stop", "hang", "pause", "reload"] + ["kill", "kill"] * (plan.on_rabbitmq and late)
        plan.faults = [(pick.uniform(0.2, 2.0), pick.choice(kinds)) for _ in range(pick.randint(0, 3))]
        return plan

    @property
    def stops(self) -> int:
        return sum(kind in ("stop", "kill") for _, kind in self.faults)

    @property
    def jobs(self) -> int:
        """Tasks that a worker may have begun when it is stopped."""
        return int(self.pool[-1]) if self.pool[-1].isdigit() else 1


def run(plan: Plan, node: RabbitMQ | None, directory: Path) -> None:
    """Run a fleet and check the laws; AssertionError if one is broken."""
    with ExitStack() as stack:
        broker, limits = stack.enter_context(embedded_server()), stack.enter_context(embedded_server(persist=True))
        url = node.broker().url if node is not None and plan.on_rabbitmq else broker.url
        fleet = Fleet(broker, directory, app="tests.apps.fuzzed", broker=url, ratelimit_url=limits.url)
        stack.enter_context(fleet)
        fleet.env["TEST_FUZZ"] = json.dumps(asdict(plan))
        pick = random.Random(plan.seed)
        fleet.start(*plan.pool, number=plan.workers)
        sent = [
            fleet.sender.send_task("fuzzed", (index, f"t{index % plan.tenants}", pick.choice(plan.lengths)))
            for index in range(plan.tasks)
        ]
        limiter, store = Limiter.from_url(limits.url + PATIENT), redis.Redis.from_url(limits.url)
        for seconds, kind in plan.faults:
            time.sleep(seconds)
            index = pick.randrange(len(fleet.workers))
            worker = fleet.workers[index]
            if kind == "kill" and worker.poll() is None:
                fleet.kill(index)
                fleet.launch(*plan.pool)
            elif kind == "stop" and worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
                fleet.launch(*plan.pool)
            elif kind == "hang":
                store.client_pause(int(seconds * 1000))
            elif kind == "pause":
                limiter.pause("rate", seconds, force=True)
            elif kind == "reload":
                limits.kill()
                limits.start()
        assert [value_of(result) for result in sent] == list(range(plan.tasks))
        check(plan, fleet)


def check(plan: Plan, fleet: Fleet) -> None:
    runs = Counter(start.index for start in fleet.starts())
    assert sorted(runs) == list(range(plan.tasks)), "each has run"
    again = {index: times for index, times in runs.items() if times > 1}
    assert sum(again.values()) - len(again) <= plan.stops * plan.jobs, f"run again: {again}"
    assert not (fleet.directory / "retried").exists(), "retries are not used up"
    if not any(kind == "reload" for _, kind in plan.faults):  # a store that loses its last second refills a bucket
        demand = LimitRequest(Limit(name="rate", **plan.limit), "rate")
        of_bucket: dict[int, list[Start]] = {}
        for permit in fleet.permits():
            bucket = permit.index % plan.tenants if "key" in plan.limit else 0
            of_bucket.setdefault(bucket, []).append(Start(round(permit.at * 1e6), 1))
        for permits in of_bucket.values():
            check_every_window(permits, demand)
    until(lambda: parked(fleet) == 0, 20, "no task being parked")
    for index in range(len(fleet.workers)):
        assert errors(fleet.log(index)) == []
        assert "Traceback" not in fleet.log(index)


def value_of(result: AsyncResult[int]) -> int:
    """What a task returned. Celery's client gives up when the store of the results restarts: then once more."""
    for _ in range(3):
        with suppress(RuntimeError):
            return result.get(timeout=240)
    raise AssertionError(f"no result of {result.id}")


def parked(fleet: Fleet) -> int | None:
    """Parking lots with tasks; ``None`` if the store does not answer, as it may still hang."""
    try:
        return len(list(fleet.parking_lots().lots()))
    except StoreUnavailable:
        return None


def main(seconds: float, seed: int | None) -> int:
    end, broken, done = time.monotonic() + seconds, 0, 0
    with ExitStack() as stack:
        node = stack.enter_context(running_node()) if find_server() is not None else None
        while not done or (seed is None and time.monotonic() < end):
            plan = Plan.of(random.randrange(10**6) if seed is None else seed, has_rabbitmq=node is not None)
            directory = Path(tempfile.mkdtemp(prefix="celery-ratelimit-fuzz-"))
            done += 1
            try:
                run(plan, node, directory)
            except Exception:
                broken += 1
                traceback.print_exc()
                print(f"make fuzz SEED={plan.seed}   # broken; its logs are in {directory}\n  {plan}", flush=True)
            else:
                print(f"make fuzz SEED={plan.seed}   # held: {plan}", flush=True)
                shutil.rmtree(directory)
    print(f"{done} fleets, {broken} with a broken law")
    return int(broken > 0)


if __name__ == "__main__":
    arguments = dict(each.split("=", 1) for each in sys.argv[1:])
    sys.exit(main(float(arguments.get("SECONDS") or 60), int(arguments["SEED"]) if arguments.get("SEED") else None))
