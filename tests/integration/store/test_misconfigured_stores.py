"""Misconfigured stores: wrong certificates and servers that are no Sentinel are errors that say what to change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_ratelimit import Limit, Limiter, StoreUnavailable
from celery_ratelimit.errors import StoreMisconfigured
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.conftest import PATIENT
from tests.integration.limiter.either import KINDS, opened
from tests.integration.store.tls import TLS, tls

__all__ = ["tls"]

API = Limit("1/s", name="api")


def ask(kind: Any, url: str) -> None:
    with opened(kind, lambda kind: kind.from_url(url)) as limiter:
        limiter.acquire(API)


EACH_KIND = pytest.mark.parametrize("kind", KINDS)


CASES: dict[str, tuple[Callable[[TLS], str], str]] = {
    "no CA": (lambda tls: f"rediss://127.0.0.1:{tls.port}", "name the CA's, .ssl_ca_certs=/path"),
    "another CA": (
        lambda tls: f"rediss://127.0.0.1:{tls.port}?ssl_ca_certs={tls.file('other.pem')}",
        "name the CA's, .ssl_ca_certs=/path",
    ),
    "no such file": (
        lambda tls: f"rediss://127.0.0.1:{tls.port}?ssl_ca_certs={tls.file('absent.pem')}",
        "a file that the URL names does not exist here",
    ),
    "no certificate": (
        lambda tls: f"rediss://127.0.0.1:{tls.port}?ssl_ca_certs={tls.file('server.key')}",
        "a file that the URL names is no certificate",
    ),
    "another host": (
        lambda tls: (
            f"rediss://127.0.0.1:{tls.elsewhere}?ssl_ca_certs={tls.file('elsewhere.pem')}&ssl_check_hostname=true"
        ),
        "its certificate is for another host",
    ),
    "asks for a certificate": (
        lambda tls: f"rediss://127.0.0.1:{tls.asking}?ssl_ca_certs={tls.file('server.pem')}",
        "it asks for a certificate of its clients",
    ),
    "asks for another certificate": (
        lambda tls: (
            f"rediss://127.0.0.1:{tls.asking}?ssl_ca_certs={tls.file('server.pem')}"
            f"&ssl_certfile={tls.file('other.pem')}&ssl_keyfile={tls.file('other.key')}"
        ),
        "signed by a CA that is known there|certificate of its clients",
    ),
    "TLS to plain": (
        lambda tls: f"rediss://127.0.0.1:{tls.plain}",
        "it does not speak TLS: begin the URL with redis://",
    ),
    "plain to TLS": (lambda tls: f"redis://127.0.0.1:{tls.port}", "it speaks TLS: begin the URL with rediss://"),
}


@pytest.mark.slow
@EACH_KIND
@pytest.mark.parametrize("cluster", [False, True], ids=["one server", "a cluster"])
@pytest.mark.parametrize("case", CASES)
def test_tls_error_says_what_to_change(tls: TLS, kind: Any, cluster: bool, case: str) -> None:
    url, mend = CASES[case]
    written = url(tls).replace("://", "+cluster://") if cluster else url(tls)
    written += f"{'&' if '?' in written else '?'}{PATIENT[1:]}"
    with pytest.raises(StoreMisconfigured, match=mend) as caught:
        ask(kind, written)
    assert str(tls.directory) not in str(caught.value)


@EACH_KIND
def test_valid_certificates_are_accepted(tls: TLS, kind: Any) -> None:
    for required in ("required", "CERT_REQUIRED"):  # as Celery writes it
        ask(
            kind,
            f"rediss://127.0.0.1:{tls.port}{PATIENT}&ssl_cert_reqs={required}&ssl_ca_certs={tls.file('server.pem')}",
        )
    own = f"&ssl_certfile={tls.file('server.pem')}&ssl_keyfile={tls.file('server.key')}"
    ask(kind, f"rediss://127.0.0.1:{tls.asking}{PATIENT}&ssl_ca_certs={tls.file('server.pem')}{own}")


@EACH_KIND
def test_server_that_is_no_sentinel_is_an_error(server: EmbeddedServer, kind: Any) -> None:
    with pytest.raises(StoreMisconfigured, match="it is a server and no Sentinel: name the Sentinels"):
        ask(kind, f"sentinel://127.0.0.1:{server.port}?service_name=limits")


# -- What waiting does mend --------------------------------------------------------------------------------------------


@EACH_KIND
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "rediss+cluster"])
def test_missing_server_is_an_outage(kind: Any, scheme: str) -> None:
    with pytest.raises(StoreUnavailable):
        ask(kind, f"{scheme}://127.0.0.1:1")


@EACH_KIND
def test_hung_server_is_an_outage(kind: Any) -> None:
    with embedded_server() as hanging:
        hanging.freeze()
        for scheme in ("redis", "rediss"):
            with pytest.raises(StoreUnavailable):
                ask(kind, f"{scheme}://127.0.0.1:{hanging.port}")


def test_protocol_of_a_store_that_has_served_is_not_checked() -> None:
    with embedded_server() as own, Limiter.from_url(own.url) as limiter:
        limiter.acquire(API)
        with redis.Redis.from_url(own.url) as admin:
            before = admin.info("stats")["total_connections_received"]
            admin.execute_command("CLIENT", "NO-EVICT", "on")
            own.freeze()
            try:
                with pytest.raises(StoreUnavailable):
                    limiter.acquire(API)
            finally:
                own.thaw()
            assert admin.info("stats")["total_connections_received"] == before


@EACH_KIND
def test_missing_socket_is_an_outage_whose_error_hides_the_path(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        ask(kind, f"unix://{tmp_path}/s3cr3t.sock")
    assert "s3cr3t" not in f"{caught.value} {caught.value.__cause__}"
