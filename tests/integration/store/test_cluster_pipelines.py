"""Commands that are sent to the nodes of a cluster at once, when a connection is lost while they are sent."""

from __future__ import annotations

import itertools

import pytest
import redis

from benchmarks.servers import Cluster
from celery_ratelimit import Limit, Limiter
from celery_ratelimit.store.cluster import ClusterLink, slot_of
from celery_ratelimit.store.resp import bulk, text
from tests.conftest import PATIENT


def names_on(cluster: Cluster, node: int, number: int) -> list[str]:
    """Hash tags of different slots that one node has."""
    names = (f"limit{n}" for n in itertools.count())
    return list(itertools.islice((name for name in names if cluster.owner(slot_of(name)) == node), number))


def get(name: str) -> bytes:
    return b"*2\r\n" + bulk("GET", f"{{{name}}}")


def disconnect(cluster: Cluster, node: int) -> None:
    """The node closes every connection; the first command that is sent then is answered with a reset."""
    cluster.clients[node].client_kill_filter(_type="normal", skipme=True)


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_no_command_gets_the_reply_of_another_when_a_connection_is_lost(cluster_store: Cluster, number: int) -> None:
    names, there = names_on(cluster_store, 0, number), names_on(cluster_store, 1, 1)
    with Limiter.from_url(cluster_store.url + PATIENT) as limiter:
        for name in [*names, *there]:
            limiter.client.set(f"{{{name}}}", name, ex=60)
        link, commands = limiter._asker.link, [get(name) for name in [*names, *there]]
        assert isinstance(link, ClusterLink)
        assert list(map(text, link.exchange_all(commands))) == [*names, *there]
        disconnect(cluster_store, 0)
        *replies, other = link.exchange_all(commands)
        assert text(other) == there[0], "the connection to the other node is whole"
        for name, reply in zip(names, replies, strict=True):
            assert isinstance(reply, redis.ConnectionError) or text(reply) == name
        assert list(map(text, link.exchange_all(commands))) == [*names, *there], "nothing is left to be read"


@pytest.mark.parametrize("number", [2, 3, 5])
def test_decision_over_several_slots_is_made_after_a_lost_connection(cluster_store: Cluster, number: int) -> None:
    limits = [Limit("1/m", burst=9, name=name) for name in names_on(cluster_store, 0, number)]
    with Limiter.from_url(cluster_store.url + PATIENT, counts=False) as limiter:
        assert limiter.acquire(limits).allowed
        disconnect(cluster_store, 0)
        decision = limiter.acquire(limits)
        assert decision.allowed
        assert [state.name for state in decision.states] == [limit.name for limit in limits]
        assert [state.remaining for state in decision.states] == [7] * number
