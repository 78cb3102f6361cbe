"""The server that users' tests start: its own process answers at its port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer


@pytest.fixture
def new() -> Iterator[EmbeddedServer]:
    server = EmbeddedServer()
    yield server
    server.close()


def test_port_taken_meanwhile_is_left_to_the_other_server(server: EmbeddedServer, new: EmbeddedServer) -> None:
    new.port = server.port
    new.start()
    assert new.port != server.port
    with redis.Redis.from_url(new.url) as ours, redis.Redis.from_url(server.url) as theirs:
        assert ours.info("server")["run_id"] != theirs.info("server")["run_id"]


def test_restart_keeps_the_port_or_is_an_error(new: EmbeddedServer) -> None:
    new.start()
    port = new.port
    new.kill()
    new.start()
    assert new.port == port
    new.kill()
    other = EmbeddedServer()
    other.port = port
    try:
        other.start()
        with pytest.raises(RuntimeError, match=rf"did not start on port {port}:(.|\n)*already in use"):
            new.start()
    finally:
        other.close()


def test_server_that_cannot_start_is_an_error(new: EmbeddedServer) -> None:
    new.options = ("--no-such-option", "1")
    with pytest.raises(RuntimeError, match="did not start"):
        new.start()
