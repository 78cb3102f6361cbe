"""Stores of several servers, for benchmarks and tests: a cluster of three masters, and a master behind Sentinels."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import redis
from redis.crc import key_slot

from celery_ratelimit.testing import EmbeddedServer, free_port

__all__ = ["Cluster", "Sentinels", "cluster", "sentinels", "until"]

SLOTS = 16384


def until(done: Any, timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {timeout:g} s")
        time.sleep(0.02)


class Cluster:
    """Three masters without replicas. ``clients`` are one of each node, ``nodes`` their servers."""

    def __init__(self) -> None:
        self.nodes = [
            EmbeddedServer(
                options=[
                    *("--cluster-enabled", "yes", "--cluster-node-timeout", "15000"),
                    *("--cluster-port", str(free_port()), "--cluster-allow-replica-migration", "no"),
                ]
            )
            for _ in range(3)
        ]
        self.clients: list[redis.Redis] = []

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            node.start()
        self.clients = [redis.Redis(port=node.port, decode_responses=True) for node in self.nodes]
        share = SLOTS // 3
        bounds = [(0, share), (share + 1, 2 * share), (2 * share + 1, SLOTS - 1)]
        for number, (client, (first, last)) in enumerate(zip(self.clients, bounds, strict=True)):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node in self.nodes[1:]:
            bus = node.options[node.options.index("--cluster-port") + 1]
            self.clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Return when each node reaches the others."""
        until(lambda: all(self._is_whole(client) for client in self.clients), 20, "a cluster of three")

    @staticmethod
    def _is_whole(client: redis.Redis) -> bool:
        info = client.cluster("INFO")
        return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3" and info["cluster_size"] == "3"

    def owner(self, slot: int) -> int:
        """Which node has a slot."""
        for number, client in enumerate(self.clients):
            nodes = client.execute_command("CLUSTER", "NODES")
            mine = next(line for line in nodes.splitlines() if "myself" in line)
            for span in mine.split()[8:]:
                first, _, last = span.partition("-")
                if first.isdigit() and int(first) <= slot <= int(last or first):
                    return number
        raise AssertionError(f"nobody has slot {slot}")

    def move_slot(self, tag: str, pause: float = 0.0) -> None:
        """Move the slot of a hash tag to the next node, key by key, as ``redis-cli --cluster reshard`` does.

        Args:
            pause: seconds between the announcement and the move, in which callers are told to ask again.
        """
        slot = key_slot(tag.encode())
        source = self.owner(slot)
        target = (source + 1) % 3
        ids = [client.execute_command("CLUSTER", "MYID") for client in self.clients]
        self.clients[target].execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        self.clients[source].execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        time.sleep(pause)
        while keys := self.clients[source].execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            port = self.nodes[target].port
            self.clients[source].execute_command("MIGRATE", "127.0.0.1", port, "", 0, 5000, "KEYS", *keys)
        for number in (target, source, 3 - target - source):
            self.clients[number].execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])

    def flush(self) -> None:
        for client in self.clients:
            client.flushall()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for node in self.nodes:
            node.close()


class Sentinels:
    """A master, a replica, and three Sentinels of which two have to agree that the master is gone."""

    NAME = "limits"

    def __init__(self) -> None:
        self.servers = [EmbeddedServer(), EmbeddedServer()]
        self.ports = [free_port() for _ in range(3)]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """As Celery writes it; who has no ``master_name`` for it adds ``?service_name=limits``."""
        return ";".join(f"sentinel://127.0.0.1:{port}" for port in self.ports)

    @property
    def master(self) -> EmbeddedServer:
        """The server that the Sentinels name."""
        with self._ask(0) as sentinel:
            _, port = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.NAME)
        return next(server for server in self.servers if server.port == int(port))

    def start(self) -> None:
        master, replica = self.servers
        master.start()
        replica.options = ("--replicaof", "127.0.0.1", str(master.port), "--repl-diskless-sync-delay", "0")
        replica.start()
        with redis.Redis(port=replica.port) as client:
            until(lambda: client.info("replication")["master_link_status"] == "up", 20, "a replica that keeps up")
        for port in self.ports:
            conf = master.directory / f"sentinel{port}.conf"
            conf.write_text(
                f"port {port}\nbind 127.0.0.1\n"
                f"sentinel monitor {self.NAME} 127.0.0.1 {master.port} 2\n"
                f"sentinel down-after-milliseconds {self.NAME} 1200\n"
                f"sentinel failover-timeout {self.NAME} 6000\n"
            )
            command = [master.binary, str(conf), "--sentinel"]
            self._processes.append(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            )
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Until every Sentinel knows the others and a replica that keeps up."""
        until(lambda: all(self._is_whole(number) for number in range(3)), 120, "a master with a replica")

    def _is_whole(self, number: int) -> bool:
        try:
            with self._ask(number) as sentinel:
                state = sentinel.sentinel_master(self.NAME)
                replicas = sentinel.sentinel_slaves(self.NAME)
            known = state["num-other-sentinels"] == 2 and state["flags"] == "master"
            return known and any(each["flags"] == "slave" for each in replicas) and self._keeps_up(state["port"])
        except redis.RedisError:
            return False

    def _keeps_up(self, master: int) -> bool:
        """Whether the other server follows this one."""
        other = next(server for server in self.servers if server.port != master)
        with redis.Redis(port=other.port, decode_responses=True) as client:
            said = client.info("replication")
        return (said["role"], said.get("master_port"), said.get("master_link_status")) == ("slave", master, "up")

    @contextlib.contextmanager
    def _ask(self, number: int) -> Iterator[redis.Redis]:
        with redis.Redis(port=self.ports[number], decode_responses=True, socket_timeout=2) as sentinel:
            yield sentinel

    def fail_over(self) -> EmbeddedServer:
        """Kill the master, and wait until the Sentinels have made the replica the new one, which is returned."""
        lost = self.master
        lost.kill()
        until(lambda: all(self._names(number) not in (lost.port, 0) for number in range(3)), 40, "a failover")
        return self.master

    def hand_over(self) -> EmbeddedServer:
        """A planned failover, to the replica, which is returned. The old master is well: it serves on for ten seconds
        whoever is connected to it, and what it has taken then is thrown away.
        """
        old = self.master
        with self._ask(0) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", self.NAME)
        until(lambda: self.master is not old, 20, "a failover")
        return self.master

    def _names(self, number: int) -> int:
        """The port of the master that a Sentinel names; 0 if it believes it dead."""
        with self._ask(number) as sentinel:
            state = sentinel.sentinel_master(self.NAME)
        return int(state["port"]) if state["flags"] == "master" else 0

    def mend(self) -> None:
        """Start whatever is dead, as a replica of who is master now."""
        for server in self.servers:
            if server._process is None:
                server.options = ("--replicaof", "127.0.0.1", str(self.master.port), "--repl-diskless-sync-delay", "0")
                server.start()
        self.wait_until_whole()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for server in self.servers:
            server.close()


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A running :class:`Cluster`, gone at the end of the block."""
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def sentinels() -> Iterator[Sentinels]:
    """Running :class:`Sentinels`, gone at the end of the block."""
    made = Sentinels()
    try:
        made.start()
        yield made
    finally:
        made.close()
