"""A model API enforces requests and tokens a minute, and estimates are off by -50 to +100 %: what is used and refused.

``python -m benchmarks.model_api``: four minutes.
"""

from __future__ import annotations

import sys
import time

from benchmarks.workers import Fleet
from example_project.model_api.endpoint import Endpoint, Quota, serving

#: As in ``benchmarks/apps/model_api.py``, which is imported by workers only.
QUOTAS = {"large": Quota(requests=600, tokens=120_000), "small": Quota(requests=300, tokens=300_000)}
FIRST, SECONDS = 60.0, 180.0  # the first minute, and what is measured after it


def measure(seconds: float = SECONDS) -> str:
    endpoint = Endpoint(QUOTAS)
    with serving(endpoint) as address, Fleet("model_api", rate=9, upstream=address) as workers:
        workers.send(range(int(9 * (FIRST + seconds) * 1.3)))
        workers.start()
        workers.wait_for_first()
        began = time.time()
        time.sleep(FIRST + seconds)
        starts = workers.starts()
        calls, ended = [*endpoint.calls], time.time()
    done = [start.index for start in starts if start.status != 429]
    lines = [f"2 workers x 2 processes, {len(calls)} calls, estimates off by -50 to +100 %, after the first minute:"]
    for model, quota in QUOTAS.items():
        own = [call for call in calls if call.model == model]
        later = [call for call in own if began + FIRST <= call.at < ended and call.status == 200]
        minutes = (ended - began - FIRST) / 60
        requests = len(later) / minutes / quota.requests
        tokens = sum(call.tokens for call in later) / minutes / quota.tokens
        refused = [call.at - began for call in own if call.status == 429]
        lines.append(
            f"{model}: {requests:.3f} of {quota.requests} requests/m used, {tokens:.3f} of {quota.tokens} tokens/m; "
            f"refused: {sum(at < FIRST for at in refused)} in the first minute, "
            f"{sum(at >= FIRST for at in refused)} after it"
        )
    lines.append(
        f"retried: {sum(start.status for start in starts if start.status != 429)}; "
        f"done more than once: {len(done) - len(set(done))}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    print(measure(float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS))
