"""Very many parked tasks: what one step costs the store and a worker, at most.

    python -m benchmarks.lots [closed] [million] [turns] [heavy]

closed   a tenant at 20/s beside 5,000, and then 100,000, whose limits are closed: used of the rate, scripts a task, and
         the workers' CPU while nobody has anything to do
million  1,000,000 tasks in one lot, and then one each in 100,000 lots: park, return, list, purge one, release one,
         revoke, look, expire. The longest script (SLOWLOG) and the longest step of each, which is what a worker's loop
         waits for; and the CPU of the server, which a busy machine changes less: of the longest step, and of all
turns    a worker beside 1,000,000 tasks in one lot and one each in 100,000 others: how long one turn of its loop takes
         while it looks, parks, publishes, lets revoked tasks out and lets them expire
heavy    1,500 messages of 200 kB that expire together; 300 of 2 MB at 300/s

Two workers of two processes where there are workers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

from benchmarks import TASK
from benchmarks.workers import QUEUE, Fleet, scripts
from celery_ratelimit import Limit, Limiter
from celery_ratelimit._celery.saved_message import RETURN_HEADER
from celery_ratelimit.backlog.backlog import Backlog, ToPark, backlog_of
from celery_ratelimit.backlog.scripts import arguments_of
from celery_ratelimit.backlog.tuning import PAGE
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.lots import ParkingLots

NAME = f"{TASK}.tenant"
LIMIT = Limit("1/h", name=NAME, key="{tenant}")
BUSY = 20
#: Microseconds: what takes less is shown as this.
NOTED = 500
#: What says that a message of ours comes back.
_MARKER = {"queue": QUEUE, "eta": None, "exchange": "", "routing_key": QUEUE}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], metavar="SCENARIO")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of tasks (default: %(default)s)")
    options = parser.parse_args()
    for scenario in options.scenarios or SCENARIOS:
        SCENARIOS[scenario](options.scale)


def closed(scale: float) -> None:
    for number in (5_000, 100_000):
        _closed(round(number * scale))


def _closed(number: int) -> None:
    with Fleet("lots", rate=BUSY) as fleet:
        parking = backlog_of(fleet.sender)
        _park(fleet.redis, parking, ((f"t{index}", f"{index}", 0.0) for index in range(number)))
        fleet.start()
        _wait(fleet, lambda: _planned(fleet, parking) >= number, 400)
        before = fleet.cpu()
        time.sleep(10)
        idle = fleet.cpu() - before
        Limiter(fleet.redis).set_rate(LIMIT, f"{BUSY}/s", key="busy", force=True)
        with fleet.sender.producer_or_acquire() as producer:
            for index in range(400):
                fleet.sender.send_task(NAME, args=[index, "busy"], producer=producer, queue=QUEUE)
        fleet.wait_for_first(20)
        first, before = fleet.started(), fleet.cpu()
        fleet.redis.config_resetstat()
        fleet.wait(lambda: fleet.started() >= first + 300, 120)
        calls, cpu, tasks = scripts(fleet.calls()), fleet.cpu() - before, fleet.started() - first
        starts = sorted(start.at for start in fleet.starts())[first : first + 300]
        used = (len(starts) - 1) / (starts[-1] - starts[0]) / BUSY
    print(
        f"{number:,} closed lots: {used:.3f} of {BUSY}/s, {calls / tasks:.2f} scripts and {cpu / tasks * 1e3:.1f} ms "
        f"of CPU a task; idle {idle / 10 * 1e3:.1f} ms a second for both workers",
        flush=True,
    )


def million(scale: float) -> None:
    _million(round(1_000_000 * scale), 1)
    _million(round(100_000 * scale), round(100_000 * scale))


def _million(tasks: int, lots: int) -> None:
    with Fleet("lots", rate=1) as fleet:
        client, parking, people = fleet.redis, backlog_of(fleet.sender), ParkingLots(fleet.sender)
        measure, expires = _Measure(client), time.time() + 3600
        empty, began, cpu = client.info("memory")["used_memory"], time.perf_counter(), measure.cpu()
        _park(client, parking, ((f"t{index % lots}", f"{index}", expires) for index in range(tasks)))
        cpu, took = measure.cpu() - cpu, time.perf_counter() - began
        size = client.info("memory")["used_memory"] - empty
        print(
            f"{tasks:,} parked in {lots:,} lots: {size / tasks:,.0f} bytes and {cpu / tasks * 1e6:.0f} us of "
            f"the server's CPU a task, the first acquire of a lot included; {tasks / took:,.0f} a second",
            flush=True,
        )
        some = [f"task-{index}" for index in range(10, tasks, max(1, tasks // 1000))][:1000]
        of = [f"t{index}" if lots > 1 else "t0" for index in range(6)]
        deep = max(0, tasks // lots - 1000)
        number = min(5000, tasks // 4)
        for _ in _return(parking, 1, lots):  # the store compiles the scripts
            pass
        measure(f"return {number:,}", lambda: _return(parking, number, lots), tasks=number)
        measure("look", lambda: _look(parking))
        measure("list lots", lambda: parking.contents.lots([NAME]))
        measure("list 1,000 tasks", lambda: _once(lambda: people.tasks(NAME, of[0], first=deep, number=1000)))
        measure("purge one", lambda: _once(lambda: people.purge(NAME, of[3], ids=["task-3"])))
        measure("release one", lambda: _once(lambda: people.release(NAME, of[4], ids=["task-4"])))
        measure("purge one that is not there", lambda: _once(lambda: people.purge(NAME, of[5], ids=["nobody"])))
        measure("find 1,000 revoked", lambda: parking.contents.find([NAME], some))
        measure("let 1,000 revoked out", lambda: _let_out(parking, some))
        measure("wake all", lambda: _wake(parking))
        pages = 10_000 // PAGE
        measure("purge 10,000", lambda: itertools.islice(parking.contents.remove_all((NAME, "t0"), purge=True), pages))
        _let_expire(client, parking, 20_000, lots)
        measure("expire 20,000", lambda: _expire(parking, 20_000))


class _Measure:
    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        client.config_set("slowlog-log-slower-than", NOTED)  # Valkey notes each command of a script, too
        client.config_set("slowlog-max-len", 1000)
        pid = client.info("server")["process_id"]
        self._schedule = Path(f"/proc/{pid}/task/{pid}/schedstat")

    def cpu(self) -> float:
        """Seconds of CPU that the server's main thread has used."""
        return int(self._schedule.read_text().split()[0]) / 1e9

    def __call__(self, what: str, steps: Callable[[], Iterator[Any]], *, tasks: int = 0) -> None:
        """Run it step by step: a step is what keeps a worker's loop before it looks at the time."""
        self.client.slowlog_reset()
        longest, number, began = 0.0, 0, time.perf_counter()
        first, dearest = self.cpu(), 0.0
        iterator = iter(steps())
        while True:
            at, before = time.perf_counter(), self.cpu()
            try:
                next(iterator)
            except StopIteration:
                break
            longest, dearest = max(longest, time.perf_counter() - at), max(dearest, self.cpu() - before)
            number += 1
        cpu = self.cpu() - first
        took = time.perf_counter() - began
        slow = max(
            [e["duration"] for e in self.client.slowlog_get(1000) if e["command"][:4].upper() in (b"EVAL", b"ZSCA")],
            default=NOTED,
        )
        print(
            f"  {what:<28} longest script {slow / 1e3:6.2f} ms; {number:>5} steps, longest {longest * 1e3:7.2f} ms; "
            f"{took:.2f} s in all; the server's CPU {dearest * 1e3:5.2f} ms in the longest step, {cpu:.2f} s in all"
            + (f", {cpu / tasks * 1e6:.0f} us a task; {tasks / took:,.0f} a second" if tasks else ""),
            flush=True,
        )


def _return(parking: Backlog, number: int, lots: int) -> Iterator[None]:
    """Let tasks of these lots out for their slots, of a limit that is open."""
    fast, left, lot = Limit("1000000/s", name=NAME, key="{tenant}", burst=1000), number, lots
    while left > 0:
        demands = [LimitRequest(fast, NAME, f"t{max(0, each)}") for each in range(lot - 1, max(-1, lot - 1 - PAGE), -1)]
        looked = parking.take_due(demands)
        yield
        parking.published({each.bucket: each.leaving for each in looked})
        left -= sum(len(each.leaving) for each in looked)
        lot = max(1, lot - len(looked)) if lots > 1 else 1
        yield


def _look(parking: Backlog) -> Iterator[None]:
    while due := parking.due([NAME]):
        yield
        parking.take_due([LimitRequest(LIMIT, *bucket) for bucket in due], due=True)
        yield


def _once(act: Callable[[], Any]) -> Iterator[Any]:
    yield act()


def _let_out(parking: Backlog, tasks: Sequence[str]) -> Iterator[None]:
    for found in parking.contents.find([NAME], tasks):
        for bucket, ids in found.items():
            left: Sequence[str] = list(ids)
            while left:
                _, leaving, left = parking.contents.remove(bucket, left, purge=False)
                parking.published({bucket: leaving})
                yield


def _wake(parking: Backlog) -> Iterator[None]:
    more = True
    while more:
        _, more = parking.wake(LimitRequest(LIMIT, NAME), -1)
        yield


def _let_expire(client: redis.Redis, parking: Backlog, number: int, lots: int) -> None:
    now = time.time() * 1e6
    of_all = parking.scripts.shared_keys(NAME)[0]
    with client.pipeline(transaction=False) as pipe:
        for key, _ in itertools.islice(client.zscan_iter(of_all, count=1000), number):
            expiring = parking.scripts.lot_keys((NAME, key.decode()))[5]
            for id in (
                client.zrange(expiring, 0, number // lots - 1) if lots == 1 else [f"task-{key[1:].decode()}@celery"]
            ):
                pipe.zadd(expiring, {id: now})
            pipe.zadd(of_all, {key: now})
        pipe.execute()


def _expire(parking: Backlog, left: int) -> Iterator[None]:
    while left > 0 and (due := parking.due([NAME])):
        yield
        looked = parking.take_due([LimitRequest(LIMIT, *bucket) for bucket in due], due=True)
        yield
        leaving = {each.bucket: each.leaving for each in looked if each.leaving}
        parking.published(leaving)
        left -= sum(map(len, leaving.values()))
        yield


def turns(scale: float) -> None:
    tasks, lots = round(1_000_000 * scale), round(100_000 * scale)
    with Fleet("lots", rate=BUSY, workers=1) as fleet:
        client, parking, limiter = fleet.redis, backlog_of(fleet.sender), Limiter(fleet.redis)
        path, expires = fleet.directory / "turns", time.time() + 3600
        _park(client, parking, (("deep", f"deep-{index}", expires) for index in range(tasks)))
        _park(
            client, parking, ((f"t{index}", f"{index}", expires) for index in range(lots)), ends="2026-01-01T00:00:00"
        )
        print(f"{tasks:,} parked in one lot, one each in {lots:,}", flush=True)
        fleet.env["BENCH_TURNS"] = str(path)
        of_all = parking.scripts.shared_keys(NAME)[0]

        def show(what: str) -> None:
            time.sleep(1)
            noted = [tuple(map(float, line.split())) for line in path.read_text().splitlines()]
            path.write_text("")
            noted = sorted(noted) or [(0.0, 0.0, 0.0)]
            wall, cpu, collected = (seconds * 1e3 for seconds in noted[-1])
            print(
                f"  {what:<34} {len(noted):>6} turns above 1 ms; longest {wall:6.1f} ms, of its CPU {cpu:6.1f} ms "
                f"({collected:.1f} of them Python's collection of garbage); "
                f"99 of 100 below {noted[len(noted) * 99 // 100][0] * 1e3:6.1f} ms",
                flush=True,
            )

        fleet.start()
        _wait(fleet, lambda: _planned(fleet, parking) >= lots, 600)
        show("starts, looks at all lots")
        time.sleep(5)
        show("idle for 5 s")
        with fleet.sender.producer_or_acquire() as producer:
            for index in range(2000):
                tenant = "deep" if index % 2 else f"t{index}"
                fleet.sender.send_task(NAME, args=[index, tenant], producer=producer, queue=QUEUE)
        _wait(fleet, fleet.drained, 120)
        show("parks 2,000")
        limiter.set_rate(LIMIT, "200/s", key="deep")
        _wait(fleet, lambda: fleet.started() >= 2000, 60)
        show("publishes and runs 2,000")
        limiter.set_rate(LIMIT, "1/h", key="deep")
        revoked = [f"task-deep-{index}" for index in range(min(10_000, tasks // 10), tasks, max(1, tasks // 1000))]
        # Celery looks each up in the result backend: all of a command, and of commands that come together, in one turn.
        for first in range(0, len(revoked), 25):
            fleet.sender.control.revoke(revoked[first : first + 25])
            time.sleep(0.05)
        time.sleep(5)
        show("lets 1,000 revoked out")
        _let_expire(client, parking, round(20_000 * scale), lots + 1)
        _wait(fleet, lambda: not client.zcount(of_all, "-inf", time.time() * 1e6), 120)
        show(f"lets {round(20_000 * scale):,} expire")
        limiter.set_rate(LIMIT, "2/h")
        time.sleep(10)
        show("wakes all")


def _planned(fleet: Fleet, parking: Backlog) -> int:
    """Lots that were looked at: the next look is in ten minutes or later."""
    due = parking.scripts.shared_keys(NAME)[0]
    return int(fleet.redis.zcount(due, (time.time() + 600) * 1e6, "+inf"))


def _wait(fleet: Fleet, done: Callable[[], bool], seconds: float) -> None:
    if not fleet.wait(done, seconds, every=0.1):
        raise RuntimeError(f"not done after {seconds:g} s:\n{fleet._logs()}")


def heavy(scale: float) -> None:
    name = f"{TASK}.heavy"
    for number, size, expires in ((round(1500 * scale), 200_000, True), (round(300 * scale), 2_000_000, False)):
        with Fleet("lots", rate=300) as fleet:
            limiter = Limiter(fleet.redis)
            limiter.pause(name, 3600, force=True)
            fleet.start()
            with fleet.sender.producer_or_acquire() as producer:
                for index in range(number):
                    end = 60 + 0.04 * number if expires else None
                    fleet.sender.send_task(
                        name, args=[index, "x" * size], producer=producer, queue=QUEUE, expires=end, argsrepr=""
                    )
            sent = time.monotonic()
            fleet.wait(lambda n=number: _kept(fleet) == n, 120, every=0.2)
            parked, at = _kept(fleet), time.monotonic()
            if not expires:
                limiter.resume(name, force=True)
                fleet.wait(lambda n=number: fleet.started() >= n, 120)
            fleet.wait(
                lambda: _kept(fleet) == 0 and fleet.drained() and not fleet.redis.llen(f"{QUEUE}.throttled"), 180
            )
            print(
                f"{number} messages of {size / 1e6:g} MB: {parked} parked {at - sent:.0f} s after they were sent; "
                f"{time.monotonic() - at:.1f} s later {_kept(fleet)} are left and {fleet.started()} have run",
                flush=True,
            )


def _kept(fleet: Fleet) -> int:
    """Tasks in the lots, or on their way out."""
    return sum(fleet.redis.hlen(key) for key in fleet.redis.keys("ratelimit:*:payloads@*"))


def _park(
    client: redis.Redis,
    parking: Backlog,
    tasks: Iterator[tuple[str, str, float]],
    *,
    size: int = 300,
    ends: str | None = None,
) -> None:
    """Park tasks whose limits are closed by their scripts, many in one round trip. ``ends``: when their headers say."""
    limiter = parking._limiter
    calls = limiter._asker.core.calls
    script, ask = parking.scripts.by_name["park"], limiter._asker.core.scripts.acquire
    demand = LimitRequest(LIMIT, NAME, "first")
    limiter._asker.ask((demand,))
    parking.park({(NAME, "first"): [ToPark("x", 1, "{}", 1, "t")]}, only_behind=True)
    known: set[str] = set()
    digest, asks = script.digest, ask.digest
    with client.pipeline(transaction=False) as pipe:
        for count, (tenant, index, expires) in enumerate(tasks):
            headers = {"lang": "py", "task": NAME, "id": f"task-{index}", RETURN_HEADER: _MARKER, "expires": ends}
            body = json.dumps([[0, tenant], {}, {"text": "x" * size}])
            message = {"id": f"task-{index}", "to": f"{QUEUE}.throttled", "body": body, "headers": headers}
            message |= {"content_type": "application/json", "content_encoding": "utf-8", "compression": None}
            message |= {"priority": 0, "delivery_mode": 2, "expires": None, "properties": {}}
            fields = {"expires": expires, "task": f"task-{index}", "queue": QUEUE}
            one = ToPark(f"task-{index}@{QUEUE}", 1, json.dumps(message), 1, "t", **fields)  # type: ignore[arg-type]
            kept = arguments_of({(NAME, tenant): [one]}, {}, {}, only_behind=False, most=None, memory=1)
            if tenant not in known:
                known.add(tenant)
                number, _, pieces = calls.of_script(ask, (LimitRequest(LIMIT, NAME, tenant),), ("", 0, 0), None, ())
                pipe.execute_command("EVALSHA", asks, number, *_values(pieces))
            keys = _values(parking.scripts.keys_of_lots([(NAME, tenant)])[1])
            pipe.execute_command("EVALSHA", digest, len(keys), *keys, *kept)
            if count % 1000 == 999:
                pipe.execute()
        pipe.execute()


def _values(pieces: Sequence[bytes]) -> list[bytes]:
    from celery_ratelimit.store.resp import unbulk

    return unbulk(b"".join(pieces))


SCENARIOS: dict[str, Callable[[float], None]] = {"closed": closed, "million": million, "turns": turns, "heavy": heavy}


if __name__ == "__main__":
    main()
