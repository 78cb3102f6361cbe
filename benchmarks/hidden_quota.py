"""An upstream enforces half of the configured rate, and does not say so: what ``adaptive=True`` makes of it.

``python -m benchmarks.hidden_quota`` needs nginx, of which ``limit_req`` refuses with 429, without ``Retry-After``.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.records import Start
from benchmarks.workers import Fleet
from celery_ratelimit.testing import free_port

RATE, QUOTA, BURST = 100, 50, 5  # a second: configured, and enforced
LEARN, HOLD, BACK = 30.0, 60.0, 60.0  # seconds: to find the quota, with it, and after it is the whole rate again

CONFIG = """
daemon off; master_process on; worker_processes 1; pid {directory}/nginx.pid; error_log {directory}/error.log crit;
events {{ worker_connections 64; }}
http {{
    access_log off; keepalive_requests 1000000;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
    limit_req_zone $server_port zone=quota:1m rate={quota}r/s;
    limit_req_status 429;
    server {{
        listen 127.0.0.1:{port};
        root {directory}; index answer;
        location / {{ limit_req zone=quota burst={burst} nodelay; }}
    }}
}}
"""


@contextlib.contextmanager
def nginx(quota: int) -> Iterator[tuple[str, Callable[[int], None]]]:
    """The address of a running nginx, and what changes its quota."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if program is None:
        raise SystemExit("this measurement needs nginx: apt-get install nginx-light")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="celery-ratelimit-bench-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # for nginx's own user
        (directory / "answer").write_text("ok")

        def write(quota: int) -> None:
            text = CONFIG.format(directory=directory, port=port, quota=quota, burst=BURST)
            (directory / "nginx.conf").write_text(text)

        def change(quota: int) -> None:
            write(quota)
            subprocess.run([program, "-c", directory / "nginx.conf", "-p", directory, "-s", "reload"], check=True)

        write(quota)
        server = subprocess.Popen([program, "-c", directory / "nginx.conf", "-p", directory])
        try:
            time.sleep(1)
            yield f"127.0.0.1:{port}", change
        finally:
            server.terminate()
            server.wait()


def measure() -> str:
    tasks = int(RATE * (LEARN + HOLD + BACK + 10))
    with nginx(QUOTA) as (address, change), Fleet("adaptive", rate=RATE, upstream=address) as workers:
        workers.send(range(tasks))
        workers.start()
        workers.wait_for_first()
        began = time.time()
        time.sleep(LEARN + HOLD)
        change(10 * RATE)
        changed = time.time()
        time.sleep(BACK)
        ended, starts = time.time(), workers.starts()

    def used(since: float, until: float, quota: int) -> str:
        calls = [start for start in starts if since <= start.at < until]
        refused = sum(start.status == 429 for start in calls)
        done = (len(calls) - refused) / (until - since) / quota
        return f"{done:.3f} of {quota}/s used, {refused / len(calls):.2%} of {len(calls)} calls refused"

    done = [start.index for start in starts if start.status != 429]
    return "\n".join(
        [
            f"{RATE}/s configured, {QUOTA}/s enforced, 2 workers x 2 processes",
            f"first {LEARN:g} s: {used(began, began + LEARN, QUOTA)}",
            f"then {changed - began - LEARN:.0f} s: {used(began + LEARN, changed, QUOTA)}",
            f"quota away: at 0.95 of the rate after {_back(starts, changed):.1f} s; "
            f"after 30 s: {used(changed + 30, ended, RATE)}",
            f"retried: {sum(start.status for start in starts if start.status != 429)}; "
            f"done more than once: {len(done) - len(set(done))}",
        ]
    )


def _back(starts: list[Start], changed: float) -> float:
    """Seconds after which 0.95 of the rate started, over three seconds."""
    after = [start.at for start in starts if start.at >= changed]
    most = int(3 * RATE * 0.95)
    return next((first - changed for first, last in zip(after, after[most:], strict=False) if last - first <= 3), -1.0)


if __name__ == "__main__":
    print(measure())
