"""celery_ratelimit, and an upstream that refuses calls: one (``once``), or each tenth by chance (``tenth``).

The status that is noted for a call is 429 where it was refused; for the task that ends, how often it was retried.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

from benchmarks import TASK
from benchmarks.apps import RATE, _recorder, make_app
from celery_ratelimit import RateLimitedTask, UpstreamThrottled

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url

KIND, SECONDS = os.environ["BENCH_REFUSES"], float(os.environ["BENCH_RETRY_AFTER"])
REFUSED = f"{os.environ['BENCH_RECORDS']}/refused"


@app.task(name=TASK, base=RateLimitedTask, limits=f"{RATE}/s", bind=True, acks_late=bool(os.environ.get("BENCH_LATE")))
def call(self: Any, index: int) -> None:
    at = time.time()
    refuses = random.random() < 0.1 if KIND == "tenth" else index == 400 and not os.path.exists(REFUSED)
    _recorder().note(index, at, 429 if refuses else self.request.retries)
    if refuses:
        if KIND == "once":
            open(REFUSED, "w").close()
        raise UpstreamThrottled(SECONDS)
