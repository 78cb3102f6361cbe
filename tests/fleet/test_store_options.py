"""Stores of ordinary deployments: TLS in Celery's settings alone, and passwords that change while workers run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from celery_ratelimit import Limiter
from celery_ratelimit.cli import ratelimit
from tests.fleet_of import NewFleet, assert_never_over, errors, until
from tests.integration.store.tls import tls, tls_server

__all__ = ["tls", "tls_server"]


@pytest.mark.parametrize("scheme", ["rediss", pytest.param("redis", marks=pytest.mark.slow)])
def test_store_uses_tls_options_of_the_broker(new_fleet: NewFleet, tls_server: tuple[int, Path], scheme: str) -> None:
    port, certificate = tls_server
    tls = {"ssl_cert_reqs": "required", "ssl_ca_certs": str(certificate)}
    broker = f"{scheme}://127.0.0.1:{port}/0"
    patient = {"socket_timeout": 10.0}
    with new_fleet(rate="20/s", broker=broker, broker_use_ssl=tls, ratelimit_store_options=patient) as fleet:
        fleet.send_each("retry", range(40))
        fleet.start(number=2)
        fleet.wait_for_each(range(40), 20)
        assert_never_over(fleet.permits(), 20)
        for index in (0, 1):
            assert not errors(fleet.log(index))
        for arguments in (["status"], ["check", "--fleet"]):
            found = CliRunner().invoke(ratelimit, arguments, obj=SimpleNamespace(app=fleet.sender))
            assert "TLS" not in found.output
            assert "does not answer" not in found.output
        assert Limiter.from_app(fleet.sender).check_store() == []


def test_check_names_a_wrong_ca_of_the_broker(tls_server: tuple[int, Path], tmp_path: Path) -> None:
    port, _ = tls_server
    other = tmp_path / "other.pem"
    request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=other", "-keyout", "/dev/null"]
    subprocess.run([*request, "-out", str(other)], check=True, capture_output=True)
    app = Celery("sender", broker=f"rediss://127.0.0.1:{port}/0", set_as_current=False)
    app.conf.update(broker_use_ssl={"ssl_cert_reqs": "required", "ssl_ca_certs": str(other)})
    app.conf.ratelimit_queues = {"celery": "1/s"}
    found = CliRunner().invoke(ratelimit, ["check", "--fleet"], obj=SimpleNamespace(app=app))
    assert found.exit_code == 1
    (line,) = [line for line in found.output.splitlines() if "the limiter's store" in line]
    assert "not signed by a CA that is known here" in line
    assert "or ssl_ca_certs in broker_use_ssl" in line


def test_replaced_token_and_failing_credential_provider_lose_no_task(
    new_fleet: NewFleet, store: redis.Redis, tmp_path: Path
) -> None:
    """The store takes the token that is in a file. A provider that fails counts as an outage: no task fails for it."""
    token = tmp_path / "token"
    token.write_text("first")
    store.execute_command("ACL", "SETUSER", "iam", "reset", "on", ">first", "~*", "&*", "+@all")
    options = {"credential_provider": "tests.apps.tokens.Tokens"}
    try:
        with new_fleet(rate="20/s", ratelimit_store_options=options) as fleet:
            fleet.env["TEST_TOKEN"] = str(token)
            fleet.send_each("retry", range(100))
            fleet.start(number=2)
            fleet.wait_for(20, 20)
            assert b"user=iam" in store.execute_command("CLIENT", "LIST").encode()
            store.execute_command("ACL", "SETUSER", "iam", "resetpass", ">second")
            token.write_text("second")
            assert store.execute_command("CLIENT", "KILL", "USER", "iam") > 0
            fleet.wait_for_each(range(100), 20)
            assert_never_over(fleet.permits(), 20)

            fleet.send_each("wait", range(100, 160))
            fleet.wait_for(110, 20)
            token.unlink()
            assert store.execute_command("CLIENT", "KILL", "USER", "iam") > 0
            until(lambda: "credential provider has raised" in fleet.log(), 20, "the outage")
            token.write_text("second")
            fleet.wait_for_each(range(160), 20)
            assert_never_over([permit for permit in fleet.permits() if permit.index >= 100], 20)
            assert not errors(fleet.log(0) + fleet.log(1))
    finally:
        store.execute_command("ACL", "DELUSER", "iam")
