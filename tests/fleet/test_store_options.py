"""Stores of ordinary deployments: TLS in Celery's settings alone, and passwords that change while workers run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from click.testing import CliRunner

from celery_ratelimit import Limiter
from celery_ratelimit.cli import ratelimit
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, assert_never_over, errors, until
from tests.integration.test_stores import tls_server

__all__ = ["tls_server"]


@pytest.mark.parametrize("scheme", ["rediss", pytest.param("redis", marks=pytest.mark.slow)])
def test_tls_of_the_broker_is_the_stores(
    tls_server: tuple[int, Path], server: EmbeddedServer, store: redis.Redis, tmp_path: Path, scheme: str
) -> None:
    port, certificate = tls_server
    tls = {"ssl_cert_reqs": "required", "ssl_ca_certs": str(certificate)}
    broker = f"{scheme}://127.0.0.1:{port}/0"
    with Fleet(server, tmp_path, rate="20/s", broker=broker, broker_use_ssl=tls) as fleet:
        for index in range(40):
            fleet.send("retry", index)
        fleet.start(number=2)
        assert sorted(start.index for start in fleet.wait_for(40, 20)) == list(range(40))
        assert_never_over(fleet.permits(), 20)
        for index in (0, 1):
            assert not errors(fleet.log(index))
        for arguments in (["status"], ["check", "--fleet"]):
            found = CliRunner().invoke(ratelimit, arguments, obj=SimpleNamespace(app=fleet.sender))
            assert "TLS" not in found.output
            assert "does not answer" not in found.output
        assert Limiter.from_app(fleet.sender).check_store() == []


def test_a_token_that_is_replaced_while_workers_run(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    store.execute_command("ACL", "SETUSER", "iam", "reset", "on", ">first", "~*", "&*", "+@all")
    options = {"credential_provider": "tests.apps.tokens.Tokens"}
    try:
        with Fleet(server, tmp_path, rate="20/s", ratelimit_store_options=options) as fleet:
            fleet.env["TEST_TOKEN"] = str(token)
            for index in range(100):
                fleet.send("retry", index)
            fleet.start(number=2)
            fleet.wait_for(20, 20)
            assert b"user=iam" in store.execute_command("CLIENT", "LIST").encode()
            store.execute_command("ACL", "SETUSER", "iam", "resetpass", ">second")
            token.write_text("second")
            assert store.execute_command("CLIENT", "KILL", "USER", "iam") > 0
            assert sorted(start.index for start in fleet.wait_for(100, 20)) == list(range(100))
            assert_never_over(fleet.permits(), 20)
            assert not errors(fleet.log(0) + fleet.log(1))
    finally:
        store.execute_command("ACL", "DELUSER", "iam")


def test_a_credential_provider_that_fails_is_an_outage(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    """No task fails for it."""
    token = tmp_path / "token"
    token.write_text("first")
    store.execute_command("ACL", "SETUSER", "iam", "reset", "on", ">first", "~*", "&*", "+@all")
    options = {"credential_provider": "tests.apps.tokens.Tokens"}
    try:
        with Fleet(server, tmp_path, rate="20/s", ratelimit_store_options=options) as fleet:
            fleet.env["TEST_TOKEN"] = str(token)
            for index in range(60):
                fleet.send("wait", index)
            fleet.start()
            fleet.wait_for(10, 20)
            token.unlink()
            assert store.execute_command("CLIENT", "KILL", "USER", "iam") > 0
            until(lambda: "credential provider has raised" in fleet.log(), 20, "the outage")
            token.write_text("first")
            assert sorted(start.index for start in fleet.wait_for(60, 20)) == list(range(60))
            assert_never_over(fleet.permits(), 20)
            assert not errors(fleet.log())
    finally:
        store.execute_command("ACL", "DELUSER", "iam")
