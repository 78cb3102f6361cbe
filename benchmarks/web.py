"""What the page costs while five browsers show it: processor time of its server, and what it asks of the store.

    python -m benchmarks.web [--limits 200] [--browsers 5] [--seconds 30] [--chromium] [--half-open 1000]

Ten of the limits have parked tasks, every second one is used, and one browser shows the page of one limit. Store and
broker are two servers. Commands are counted as the store takes them (MONITOR): those that the page sends, each script
being one; and those within its scripts, while nobody else asks anything.

--chromium   real browsers, whose own processor time does not count; else each is a client that reads the events
--half-open  instead: how long the page takes to answer while so many connections send half a request, each opened again
             within a second of its end, and so many browsers (--browsers 200) are there
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import multiprocessing
import os
import resource
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from statistics import median, quantiles

import redis
from celery import Celery

from benchmarks import processes
from benchmarks.chromium import chromium
from benchmarks.pages import Served, park, served
from celery_ratelimit import Limiter
from celery_ratelimit.counts.tally import Tally
from celery_ratelimit.limiter.report_counts import tell_counts
from celery_ratelimit.testing import embedded_server

#: Limits that have parked tasks, and how many each.
BACKLOGGED, PARKED = 10, 50
_NAME, _END = "bench", "that-is-the-end"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=int, default=200)
    parser.add_argument("--browsers", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--chromium", action="store_true")
    parser.add_argument("--half-open", type=int, default=0)
    options = parser.parse_args()
    with (
        embedded_server() as broker,
        embedded_server() as store,
        redis.Redis.from_url(store.url, client_name=_NAME, socket_timeout=3600) as client,
    ):
        env = {"BENCH_BROKER": broker.url, "BENCH_STORE": store.url, "BENCH_LIMITS": str(options.limits)}
        os.environ.update(env)
        from benchmarks.apps.page import app

        for n in range(min(BACKLOGGED, options.limits)):
            park(app, f"limit{n:03}", f"many.task{n}", PARKED)
        show = browsers if options.chromium else listeners
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))  # as usual: the page's
        with served("benchmarks.apps.page", **env) as page:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            time.sleep(1)
            print(f"{options.limits} limits, {options.browsers} browsers; {options.seconds:g} s each")
            if options.half_open:
                with half_open(page, options.half_open), show(page, options.browsers):
                    answers(page, options.seconds)
                return
            measure("nobody looks", page, client, options.seconds)
            with show(page, options.browsers):
                time.sleep(3)  # they have been told all of it
                measure("nothing happens", page, client, options.seconds, inside=True)
                with used(app, options.limits):
                    measure("half are in use", page, client, options.seconds)
            time.sleep(5)
            measure("nobody looks again", page, client, options.seconds)


def measure(what: str, page: Served, client: redis.Redis, seconds: float, *, inside: bool = False) -> None:
    """Of so many seconds: the server's processor time, and the commands that it has sent (``inside``: scripts)."""
    sent, within = Counter[tuple[str, str]](), 0
    before, began = processes.cpu_seconds(page.process.pid), time.monotonic()
    with client.monitor() as monitor:
        threading.Timer(seconds, client.echo, [_END]).start()
        for said in monitor.listen():
            if _END in said["command"]:
                break
            if said["client_type"] == "lua":
                within += 1
            else:
                address = f"{said['client_address']}:{said['client_port']}"
                sent[address, said["command"].split(" ", 1)[0].lower()] += 1
    took = time.monotonic() - began
    cpu = 100 * (processes.cpu_seconds(page.process.pid) - before) / took
    ours = {each["addr"] for each in client.client_list() if each["name"] == _NAME}
    commands = Counter[str]()
    for (address, command), number in sent.items():
        if address not in ours and command not in ("hello", "client"):  # as connections begin
            commands[command] += number
    each = ", ".join(f"{number / took:.1f} {name}" for name, number in commands.most_common())
    print(
        f"{what:20} {cpu:5.1f} % of a core, {sum(commands.values()) / took:5.1f} commands a second ({each or 'none'})"
        + (f"; within its scripts {within / took:.0f}" if inside else "")
    )


@contextlib.contextmanager
def half_open(page: Served, number: int) -> Iterator[None]:
    """Connections of another process that never send the rest of a request."""

    def attack() -> None:
        there = selectors.DefaultSelector()
        while True:
            time.sleep(1.0)
            while len(there.get_map()) < number:
                connection = socket.create_connection(("127.0.0.1", page.port))
                there.register(connection, selectors.EVENT_READ)
                with contextlib.suppress(OSError):  # it is closed already
                    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            for key, _ in there.select(0):  # closed
                there.unregister(key.fileobj)
                key.fileobj.close()  # type: ignore[union-attr]

    attacker = multiprocessing.Process(target=attack, daemon=True)
    attacker.start()
    try:
        yield
    finally:
        attacker.kill()
        attacker.join()


def answers(page: Served, seconds: float) -> None:
    """How long the page takes to answer, ten times a second."""
    took, before, ends = list[float](), processes.cpu_seconds(page.process.pid), time.monotonic() + seconds
    while (began := time.monotonic()) < ends:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)) as connection:
            connection.request("GET", "/")
            assert connection.getresponse().read()
        took.append(time.monotonic() - began)
        time.sleep(0.1)
    cpu = 100 * (processes.cpu_seconds(page.process.pid) - before) / seconds
    p50, p99, longest = (1000 * each for each in (median(took), quantiles(took, n=100)[-1], max(took)))
    print(f"{len(took)} answers: p50 {p50:.0f} ms, p99 {p99:.0f} ms, longest {longest:.0f} ms; {cpu:.0f} % of a core")
    print(f"{len(page.said) - 1} lines of log")


@contextlib.contextmanager
def listeners(page: Served, number: int) -> Iterator[None]:
    """Clients that read all limits' events, and one that reads those of one limit."""
    stack, received = contextlib.ExitStack(), Counter[str]()

    def read(answer: http.client.HTTPResponse, what: str) -> None:
        closed = (OSError, ValueError, AttributeError, http.client.HTTPException)
        with contextlib.suppress(*closed):  # meanwhile
            while line := answer.readline():
                received[what] += len(line)

    began, threads = time.monotonic(), []
    for n in range(number):
        connection = http.client.HTTPConnection("127.0.0.1", page.port)
        connection.request("GET", "/events" if n else "/events?limit=limit000")
        answer = connection.getresponse()
        stack.callback(connection.close)
        thread = threading.Thread(target=read, args=(answer, "all" if n else "one"), daemon=True)
        thread.start()
        threads.append((thread, connection))
    try:
        yield
    finally:
        took = time.monotonic() - began
        for _, connection in threads:
            with contextlib.suppress(OSError):
                connection.sock and connection.sock.shutdown(2)
        stack.close()
        shown = {what: size / 1024 / took / (number - 1 if what == "all" else 1) for what, size in received.items()}
        print(f"{'':20} to each browser {shown['all']:.1f} kB a second, to that of one limit {shown['one']:.1f}")


@contextlib.contextmanager
def browsers(page: Served, number: int) -> Iterator[None]:
    """Real ones, one of them with the page of one limit."""
    with contextlib.ExitStack() as stack:
        for n in range(number):
            shown = stack.enter_context(stack.enter_context(chromium()).page())
            shown.look(1200, 900)
            shown.go_to(f"{page.url}/" if n else f"{page.url}/limit?name=limit000")
            shown.until("document.querySelector('#limits tbody tr') || document.querySelector('#facts dd')")
        yield


@contextlib.contextmanager
def used(app: Celery, limits: int) -> Iterator[None]:
    """Every second limit starts five tasks a second, as a fleet's workers tell it once a second."""
    ended = threading.Event()
    client = redis.Redis.from_url(app.conf.ratelimit_url, client_name=_NAME)
    asker = Limiter(client, counts=False)._asker

    def tell() -> None:
        while not ended.wait(1.0):
            tally = Tally()
            for n in range(0, limits, 2):
                for _ in range(5):
                    tally.started("waited", [(f"limit{n:03}", "", 1)], 0.3, (f"tmany.task{n}", "qcelery"))
            asker.drive(tell_counts(asker.core, tally.take()))

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        client.close()


if __name__ == "__main__":
    main()
