"""``python -m benchmarks.model_api``: quotas of requests and tokens of two models, with estimates that are far off.

Says how much of the tighter quota of each model was used after the first minute, and how many calls were refused; and
plots both (``model_api.png``). The endpoint is ``example_project/model_endpoint.py``.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from celery import Celery

from benchmarks import processes
from celery_ratelimit.testing import embedded_server, free_port
from example_project.model_endpoint import QUOTAS

FIRST, SECONDS = 60, 180  # seconds: after which is measured, and until when
MEAN = 600  # tokens of a call
OFF = 0.5, 2.0  # the estimate, as a share of the tokens
UNITS = ("requests", "tokens")


def main() -> None:
    with embedded_server() as server:
        port, log = free_port(), Path("model_api.log")
        env = {"BENCH_BROKER": server.url, "BENCH_UPSTREAM": f"127.0.0.1:{port}"}
        started = [processes.spawn([sys.executable, "-m", "example_project.model_endpoint", str(port)], log, {})]
        try:
            _send(server.url)
            for number in range(2):
                command = [sys.executable, "-m", "celery", "-A", "example_project.model_api", "worker"]
                started.append(processes.spawn([*command, "-c", "6", "-n", f"w{number}@%h"], log, env))
            calls = _calls(port)
        finally:
            processes.stop(started)
    log.unlink()
    began = calls[0][0]
    for model, quotas in QUOTAS.items():
        later = [call for call in calls if call[1] == model and FIRST <= call[0] - began < SECONDS]
        accepted = [call for call in later if call[4]]
        used = (len(accepted), sum(call[3] for call in accepted))
        shares = [each / quota * 60 / (SECONDS - FIRST) for each, quota in zip(used, quotas, strict=True)]
        refused = len(later) - len(accepted), sum(call[1] == model and not call[4] for call in calls)
        customers = {name: sum(call[2] == name for call in accepted) for name in ("a", "b", "c")}
        print(
            f"{model}: {shares[0]:.3f} of the requests and {shares[1]:.3f} of the tokens used after the first minute; "
            f"refused: {refused[0]} of {len(later)} calls, {refused[1]} with the first minute; by customer {customers}"
        )
    _plot(calls, Path("model_api.png"))


def _send(url: str) -> None:
    chance, app = random.Random(1), Celery(broker=url, set_as_current=False)
    with app.producer_or_acquire() as producer:
        for number in range(int(sum(requests for requests, _ in QUOTAS.values()) * SECONDS / 60 * 1.2)):
            tokens = min(4000, int(chance.lognormvariate(0, 0.6) * MEAN * 0.835) + 1)
            arguments = [list(QUOTAS)[number % 2], "aab"[number % 3] if number % 9 else "c"]
            arguments += [int(tokens * chance.uniform(*OFF)) + 1, tokens]
            app.send_task("example_project.model_api.complete", arguments, producer=producer)
    app.close()


def _calls(port: int) -> list[Any]:
    """The calls of the endpoint, from the first one on for as long as is measured."""
    until = None
    while True:
        time.sleep(1)
        calls: list[Any] = httpx.get(f"http://127.0.0.1:{port}/calls").json()
        if calls and until is None:
            until = time.time() + SECONDS
        if until is not None and time.time() > until:
            return calls


def _plot(calls: list[Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    began, width = calls[0][0], 5
    figure, axes = plt.subplots(len(QUOTAS), 1, figsize=(9, 5), sharex=True)
    for axis, (model, quotas) in zip(axes, QUOTAS.items(), strict=True):
        mine = [call for call in calls if call[1] == model and call[4]]
        for which, unit in enumerate(UNITS):
            steps = [0.0] * (SECONDS // width + 1)
            for call in mine:
                steps[min(len(steps) - 1, int((call[0] - began) / width))] += call[3] if which else 1
            shares = [each * 60 / width / quotas[which] for each in steps[:-1]]
            axis.step([width * index for index in range(len(shares))], shares, where="post", label=unit)
        refused = [call[0] - began for call in calls if call[1] == model and not call[4]]
        axis.plot(refused, [1.0] * len(refused), "rx", label="refused")
        axis.axhline(1.0, color="grey", linewidth=0.5)
        axis.set_ylim(0, 1.4)
        axis.set_ylabel(f"{model}: share of the quota")
    axes[0].legend(ncols=3, loc="upper right")
    axes[-1].set_xlabel("seconds")
    figure.savefig(path, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
