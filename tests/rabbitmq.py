"""A RabbitMQ of the suite's own: Debian's server as a node with a private name, ports, cookie and data."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import VERSION
from kombu import exceptions

from celery_ratelimit.testing import free_port

__all__ = [
    "Broker",
    "RabbitMQ",
    "find_server",
    "needs_quorum_queues",
    "running_node",
    "shared_node",
    "skip_without_server",
]

needs_quorum_queues = pytest.mark.skipif(VERSION[:2] < (5, 5), reason="Celery consumes quorum queues since 5.5")

#: Virtual hosts that are made at a time. Each costs 0.06 s of the processor, and a call of ``rabbitmqctl`` 0.7 s.
HOSTS = 40

#: Users who may do everything; the password is the name.
USERS = ("guest", "other")
#: A user who may configure all but return queues, and what belongs to them.
LOCKED = "locked"

#: Debian's wrapper in ``/usr/sbin`` insists on the user ``rabbitmq`` and on the system's node. What it wraps does not.
_WRAPPED = "/usr/lib/rabbitmq/bin"

_CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{port}
load_definitions = {definitions}
log.file.level = warning
"""


def find_server() -> str | None:
    """The path of ``rabbitmq-server``, if it and Erlang's port mapper are there."""
    server = shutil.which("rabbitmq-server", path=os.pathsep.join([_WRAPPED, os.environ.get("PATH", os.defpath)]))
    return server if server and shutil.which("epmd") else None


def skip_without_server() -> None:
    if find_server() is None:
        pytest.skip("there is no rabbitmq-server on this machine: apt-get install rabbitmq-server")


class Broker:
    """An empty virtual host: nothing that another test has declared is in it."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def locked_url(self) -> str:
        """Its address for a user who may not declare return queues."""
        return self.url.replace("guest:guest", f"{LOCKED}:{LOCKED}")

    def ready(self, *queues: str) -> int:
        """Messages of these queues that no consumer has; queues that do not exist have none."""
        return sum(found.message_count for found in map(self._declared, queues) if found is not None)

    def consumers(self, queue: str) -> int:
        return found.consumer_count if (found := self._declared(queue)) is not None else 0

    def has(self, queue: str) -> bool:
        return self._declared(queue) is not None

    def _declared(self, queue: str) -> Any:
        """Its counts, or None if there is no such queue."""
        with self.channel() as channel:
            try:
                return channel.queue_declare(queue, passive=True)
            except exceptions.ChannelError as error:
                if error.code != 404:
                    raise
                return None

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        with kombu.Connection(self.url) as connection:
            yield connection.default_channel

    def declare(self, queue: str) -> None:
        """Declare a durable queue without any arguments."""
        with self.channel() as channel:
            channel.queue_declare(queue, durable=True, auto_delete=False)

    def bind(self, queue: str, exchange: str) -> None:
        """Declare a fanout exchange for a queue."""
        with self.channel() as channel:
            channel.exchange_declare(exchange, "fanout", durable=True, auto_delete=False)
            channel.queue_bind(queue, exchange)

    def delete(self, queue: str) -> None:
        """Remove a queue with all that is in it, as somebody with a management page would."""
        with self.channel() as channel:
            channel.queue_delete(queue)


def _definitions(first: int) -> dict[str, Any]:
    """The users, and ``HOSTS`` virtual hosts with their rights."""
    hosts = [f"test{number}" for number in range(first, first + HOSTS)]
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    return {
        "users": [{"name": name, "password": name, "tags": "administrator"} for name in (*USERS, LOCKED)],
        "vhosts": [{"name": host} for host in hosts],
        "permissions": [
            *[{**rights, "user": name, "vhost": host} for host in hosts for name in USERS],
            *[{**rights, "user": LOCKED, "vhost": host, "configure": r"^(?!.*\.throttled).*$"} for host in hosts],
        ],
    }


class RabbitMQ:
    """One node on ``127.0.0.1``. It knows no other node, loads no plugin and reads nothing of ``/etc/rabbitmq``."""

    def __init__(self, known: Mapping[str, Any] | None = None) -> None:
        """``known``: what another process tells of its node, see :meth:`for_others`."""
        self._ports: list[int] = known["ports"] if known else [free_port(), free_port(), free_port()]
        self.port, self._mapper_port, self._nodes_port = self._ports
        self.directory = Path(known["directory"] if known else tempfile.mkdtemp(prefix="celery-ratelimit-rabbitmq-"))
        self._pids: list[int] = known["pids"] if known else []
        self._started: list[subprocess.Popen[bytes]] = []

    def for_others(self) -> dict[str, Any]:
        """What another process needs to use this node."""
        return {"ports": self._ports, "directory": str(self.directory), "pids": self._pids}

    def broker(self) -> Broker:
        """A virtual host that no test has had."""
        with _locked(self.directory / "given") as given:
            number = given["number"] = given.get("number", -1) + 1
            if number and number % HOSTS == 0:
                more = self.directory / f"definitions-{number}.json"
                more.write_text(json.dumps(_definitions(number)))
                self.ctl("import_definitions", str(more))
        return Broker(f"amqp://guest:guest@127.0.0.1:{self.port}/test{number}")

    def ctl(self, *command: str) -> None:
        """Run ``rabbitmqctl`` on the node."""
        subprocess.run([f"{_WRAPPED}/rabbitmqctl", *command], env=self._environment(), check=True, timeout=240)

    def start(self, timeout: float = 240.0) -> None:
        """Start the node and return when it takes connections; RuntimeError with its log if it does not."""
        server = find_server()
        if server is None:
            raise RuntimeError("there is no rabbitmq-server: apt-get install rabbitmq-server")
        env = self._environment()
        log = self.directory / "output.log"
        # Started here and not by the node, which would leave the port mapper behind as a daemon.
        mapper = ["epmd", "-address", "127.0.0.1", "-port", str(self._mapper_port)]
        with log.open("wb") as output:
            for command in (mapper, [server]):
                self._started.append(
                    subprocess.Popen(
                        command,
                        env=env,
                        cwd=self.directory,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        self._pids += [process.pid for process in self._started]
        deadline = time.monotonic() + timeout
        while not self._answers():
            if time.monotonic() > deadline or self._started[-1].poll() is not None:
                raise RuntimeError(f"{server} did not start on port {self.port}:\n{log.read_text(errors='replace')}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()  # fails quickly while nothing listens
            with kombu.Connection(f"amqp://guest:guest@127.0.0.1:{self.port}/test{HOSTS - 1}") as connection:
                connection.connect()
        except (OSError, *kombu.Connection("amqp://").connection_errors):
            return False
        return True

    def _environment(self) -> dict[str, str]:
        files = {
            "definitions.json": json.dumps(_definitions(0)),
            "rabbitmq.conf": _CONFIG.format(port=self.port, definitions=self.directory / "definitions.json"),
            "advanced.config": "[].\n",
            "enabled_plugins": "[].\n",
        }
        for name, text in files.items():
            (self.directory / name).write_text(text)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return {
            **inherited,
            "HOME": str(self.directory),  # where the cookie is made
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "RABBITMQ_NODENAME": f"celery-ratelimit-{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(self._nodes_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} -noinput "
            "+sbwt none +sbwtdcpu none +sbwtdio none",  # an idle scheduler sleeps
            "RABBITMQ_ALLOW_INPUT": "1",  # the script becomes the node, instead of having it as a child
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(self.directory / "conf.d"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.directory / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
        }

    def close(self) -> None:
        """Kill the node and its port mapper. What they start for themselves ends when they do."""
        for pid in reversed(self._pids):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
        self._pids.clear()
        self._started.clear()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def running_node() -> Iterator[RabbitMQ]:
    """A running :class:`RabbitMQ`, gone at the end of the block."""
    node = RabbitMQ()
    try:
        node.start()
        yield node
    finally:
        node.close()


@contextlib.contextmanager
def shared_node(directory: Path) -> Iterator[RabbitMQ]:
    """The node of all processes that share ``directory``: the first of them starts it, the last one closes it.

    A process that was killed does not count as a user.
    """
    path = directory / "rabbitmq"
    with _locked(path) as shared:
        node = RabbitMQ(shared.get("node"))
        if "node" not in shared:
            try:
                node.start()
            except BaseException:
                node.close()
                raise
        shared.update(node=node.for_others(), users=[*_alive(shared.get("users", [])), os.getpid()])
    try:
        yield node
    finally:
        with _locked(path) as shared:
            shared["users"] = [pid for pid in _alive(shared["users"]) if pid != os.getpid()]
            if not shared["users"]:
                node.close()
                shared.clear()


def _alive(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[dict[str, Any]]:
    """What the file contains, to be changed by one process at a time."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        content = json.loads(path.read_text()) if path.exists() else {}
        yield content
        new = path.with_suffix(".new")
        new.write_text(json.dumps(content))
        new.replace(path)
