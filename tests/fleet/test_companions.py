"""Tasks of other packages and with options of Celery's that change how a task is called or ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from celery.exceptions import TaskRevokedError

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet

APP = "tests.apps.companions"


def test_a_task_with_models_has_a_limit_for_each_tenant_by_a_field(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with Fleet(server, tmp_path, app=APP) as fleet:
        fleet.start("-P", "threads", "-c", "2")
        orders = [("ann", 2), ("ann", 1), ("bob", 3)]
        sent = [
            fleet.sender.send_task("modelled", ({"tenantId": tenant, "weight": weight}, n))
            for n, (tenant, weight) in enumerate(orders)
        ]
        assert [result.get(timeout=20) for result in sent] == ["ann 2", "ann 1", "bob 3"]
        with pytest.raises(TaskRevokedError, match="throttled by limit"):
            fleet.sender.send_task("modelled", ({"tenantId": "ann"}, 3)).get(timeout=20)
        with pytest.raises(Exception, match="ValidationError"):
            fleet.sender.send_task("modelled", ({"tenantId": "cid", "weight": "heavy"}, 4)).get(timeout=20)
        assert fleet.started() == 3
