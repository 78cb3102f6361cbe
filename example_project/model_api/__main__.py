"""``python -m example_project.model_api``: two models, three customers, two workers; a plot of the quotas used."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from celery_ratelimit.testing import embedded_server

from .endpoint import WINDOW, Call, Endpoint, Quota, serving

QUOTAS = {"large": Quota(requests=240, tokens=120_000), "small": Quota(requests=240, tokens=300_000)}
CUSTOMERS = ("acme", "bolt", "corp")


def run(seconds: float) -> list[Call]:
    """The calls that the endpoint has seen."""
    endpoint, chance = Endpoint(QUOTAS), random.Random(1)
    with embedded_server() as server, serving(endpoint) as address:
        os.environ.update(CELERY_BROKER_URL=server.url, MODEL_API=address)
        from .app import complete

        for number in range(int(9 * seconds)):
            tokens = chance.randint(100, 900)
            estimate = round(tokens * chance.uniform(0.5, 2))
            complete.delay(("large", "small")[number % 2], CUSTOMERS[number % 3], tokens, estimate)
        command = [sys.executable, "-m", "celery", "-A", "example_project.model_api.app", "worker", "-c", "2"]
        workers = [subprocess.Popen([*command, "-n", f"model{number}@%h", "-l", "WARNING"]) for number in range(2)]
        try:
            time.sleep(seconds)
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
    return endpoint.calls


def draw(calls: list[Call], path: Path) -> None:
    """Write the plot to ``path`` (PNG): shares of both quotas that were used in the last minute, one panel a model."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    first = calls[0].at
    figure, panels = plt.subplots(len(QUOTAS), 1, sharex=True, figsize=(10, 6), layout="constrained")
    for axes, (model, quota) in zip(panels, QUOTAS.items(), strict=True):
        own = [call for call in calls if call.model == model]
        refused = [call.at - first for call in own if call.status == 429]
        taken = [call for call in own if call.status == 200]
        times = [call.at for call in taken]
        for name, most, each in (
            ("requests", quota.requests, [1] * len(taken)),
            ("tokens", quota.tokens, [call.tokens for call in taken]),
        ):
            shares, start, used = [], 0, 0
            for at, amount in zip(times, each, strict=True):
                used += amount
                while times[start] <= at - WINDOW:
                    used -= each[start]
                    start += 1
                shares.append(used / most)
            axes.plot([at - first for at in times], shares, label=f"{name} of {most:,}/m")
        axes.plot(refused, [1.0] * len(refused), "rx", label=f"{len(refused)} refused")
        axes.axhline(1.0, color="#0f172a", ls=(0, (5, 3)), lw=1.4)
        axes.set(title=model, ylim=(0, 1.3), ylabel="used in the last minute")
        axes.legend(loc="upper left", ncols=3)
    panels[-1].set_xlabel("seconds since the first call")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    options: Any = parser.add_argument
    options("--seconds", type=float, default=120.0)
    options("--output", type=Path, default=Path("demo-output/model-api.png"))
    given = parser.parse_args()
    calls = run(given.seconds)
    draw(calls, given.output)
    print(f"{Counter(call.status for call in calls)}, tokens by customer: {tokens_by_customer(calls)}: {given.output}")


def tokens_by_customer(calls: list[Call]) -> dict[str, int]:
    return {
        name: sum(call.tokens for call in calls if call.customer == name and call.status == 200) for name in CUSTOMERS
    }


if __name__ == "__main__":
    main()
