"""Runs operations on the store and waits for the replies, for limiters and workers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from redis import Redis, RedisCluster
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..errors import RateLimitError, StoreMisconfigured, StoreUnavailable
from ..limits.decision import Decision
from ..store.choose_link import link_to
from ..store.cluster import ClusterLink
from ..store.connection_diagnosis import addresses_of, mend_by_asking
from ..store.keys import bucket_key
from ..store.link import Link
from ..store.script import Script
from ..store.startup_check import check_fitness
from ..store.store_errors import STORE_ERRORS, out_of_reach, trouble
from ..store.url import SOCKET_TIMEOUT
from .limit_request import LimitRequest
from .operation import KeysExist, Operation, RunScript, Sleep, UninterruptedAcquire
from .script_calls import Call, LeasesToRelease, call_of
from .script_operations import Operations
from .shadow import KnownShadows

__all__ = ["StoreRunner"]

R = TypeVar("R")


class StoreRunner:
    """Runs the operations of one limiter. Threads may share it; a fork opens connections of its own.

    Args:
        client: a ``redis.Redis`` or a ``redis.RedisCluster``.
        prefix: the start of every key in the store.
        replace_includes: Lua includes by name, with the text to use instead; tests freeze the clock with it.

    Attributes:
        core: makes the operations.
        shadows: the limits in shadow.
        link: the connections of scripts.
        clock: the caller's clock; ``memory://`` has one that tests can stop.
    """

    #: Whether a test answers in place of the store, see :mod:`celery_ratelimit.testing`.
    is_fake = False

    def __init__(self, client: Redis | RedisCluster, prefix: str, replace_includes: Mapping[str, str] | None) -> None:
        self.client = client
        self.prefix = prefix
        self.replace_includes = replace_includes
        self.link: Link = link_to(client)
        self.is_cluster: bool = isinstance(self.link, ClusterLink)
        self.core: Operations = Operations(prefix, replace_includes, is_cluster=self.is_cluster)
        self.shadows: KnownShadows = self.core.shadows
        self.clock: Any = getattr(client, "clock", time)
        self._served = False

    def close(self) -> None:
        """Close the connections that belong to no client."""
        self.link.close()

    # -- Limit requests --------------------------------------------------------------------------------------------

    def ask(self, demands: Sequence[LimitRequest], **how: Any) -> Decision:
        """Acquire the permits of ``demands``, all or none, in one round trip. See :meth:`Operations.ask`."""
        return self.drive(self.core.ask(demands, **how))

    def forget(self, demands: Sequence[LimitRequest], *, id: str) -> None:
        """Drop the slots of ``id``, a request that will not return. Idempotent."""
        self.drive(self.core.forget(demands, id=id))

    def release(self, ended: Sequence[LeasesToRelease]) -> int:
        """Release the leases of many holders in one round trip. Idempotent. Returns their number."""
        return self.drive(self.core.release_all(ended))

    def renew(self, leases: Sequence[tuple[LimitRequest, str]]) -> list[bool]:
        """Renew the leases of many holders in one round trip. False for each that has expired."""
        return self.drive(self.core.renew(leases))

    def run_script(self, script: Script, *call: Any) -> Any:
        """Run a script, see :class:`~celery_ratelimit.store.script.Script`."""
        return self.store(script, self.link, *call)

    def command(self, *command: str | int) -> Any:
        """Send a command on the connections of scripts."""
        return self.store(self.link.call, *command)

    # -- The store's state -----------------------------------------------------------------------------------------

    def ping(self) -> None:
        """Raise :class:`StoreUnavailable` unless the store answers."""
        if self.is_cluster:
            self.store(partial(self.client.ping, target_nodes=RedisCluster.PRIMARIES))  # finds a lost node's successor
        else:
            self.command("PING")

    def probe(self) -> None:
        """Write as requests do, to a key that nothing else uses. A full store would still answer a ``PING``."""
        self.ping()
        link = self.link
        names = link.name_for_each_node("start-up") if isinstance(link, ClusterLink) else ["start-up"]
        for name in names:
            self.run_script(self.core.scripts.check_permissions, *call_of([bucket_key(self.prefix, name, "", "probe")]))

    def memory(self) -> tuple[int, int]:
        """Bytes in use, and ``maxmemory``, of a cluster's fullest node; zeros: it may not be asked, or has no bound."""
        nodes = {"target_nodes": RedisCluster.PRIMARIES} if self.is_cluster else {}
        try:
            said = self.store(partial(self.client.info, "memory", **nodes))
        except StoreMisconfigured:  # its user may not ask
            return 0, 0
        each = [said] if "maxmemory" in said else said.values()
        found = [(int(one["used_memory"]), int(one["maxmemory"])) for one in each]
        return max(found, key=lambda pair: pair[0] / pair[1] if pair[1] else 0.0)

    def check_store(self) -> list[str]:
        """See :meth:`Limiter.check_store`."""
        self.ping()
        node = {"target_nodes": self.client.get_default_node()} if self.is_cluster else {}
        try:
            warnings = check_fitness(lambda section: self._store_says(section, node))
        except STORE_ERRORS as error:  # it answered before, and now fails
            raise trouble(error) from error
        self.probe()
        return warnings

    def _store_says(self, section: str, node: Mapping[str, Any]) -> Any:
        """A section of ``INFO``; a cluster's client may wrap it in the node's name."""
        said = self.client.info(section, **node)
        return next(iter(said.values())) if node and len(said) == 1 else said

    # -- Driving ---------------------------------------------------------------------------------------------------

    def drive(self, asks: Operation[R]) -> R:
        """Run an operation to its end: carry out its effects, and return its result."""
        step: Any = asks.send
        given: Any = None
        while True:
            try:
                asked = step(given)
            except StopIteration as end:
                answer: R = end.value
                return answer
            try:
                given, step = self._answer(asked), asks.send
            except BaseException as error:  # the operation may have permits to return
                given, step = error, asks.throw

    def _answer(self, asked: list[RunScript] | KeysExist | Sleep | UninterruptedAcquire) -> Any:
        match asked:
            case Sleep(seconds):
                return self.clock.sleep(seconds)
            case KeysExist(keys):
                return bool(self.store(self.client.exists, *keys))
            case UninterruptedAcquire():
                asked.answer = self.drive(self.core.ask_for_turn(asked))
                return asked.answer
            case _:
                return self._reply_to(asked)

    def _reply_to(self, questions: list[RunScript]) -> list[Any]:
        """Several scripts in one round trip; on a cluster, one for each node."""
        link = self.link
        if len(questions) < 2 or not link.takes_bytes:
            return [self._reply(*question) for question in questions]
        said = link.exchange_all([question.script.command(*question.call) for question in questions])
        made_known, again = set[Script](), list[int]()
        for place, (question, reply) in enumerate(zip(questions, list(said), strict=True)):
            if isinstance(reply, RedisTimeoutError):
                said[place] = trouble(reply)
            elif isinstance(reply, NoScriptError) and question.script in made_known:
                again.append(place)  # in a cluster another node may not know it yet
            elif isinstance(reply, Exception):  # run in the usual way, which handles the reason
                said[place] = self._reply(*question)
                made_known.add(question.script)
        for place, reply in zip(again, self._reply_to([questions[place] for place in again]), strict=True):
            said[place] = reply
        return said

    def _reply(self, script: Script, call: Call) -> Any:
        try:
            return self.run_script(script, *call)
        except RateLimitError as error:
            return error

    def store(self, call: Any, *args: Any) -> Any:
        """Call the client, or a script; translates its errors."""
        try:
            answer = call(*args)
        except STORE_ERRORS as error:
            raise self._trouble(error) from error
        self._served = True
        return answer

    def _trouble(self, error: Exception) -> RateLimitError:
        told = trouble(error)
        if not self._served and isinstance(told, StoreUnavailable):  # it has never answered
            mend = mend_by_asking(error, addresses_of(self.client), SOCKET_TIMEOUT)
            return told if mend is None else out_of_reach(error, mend)
        return told
