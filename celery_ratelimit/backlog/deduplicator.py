"""Reports messages that return from parking lots; the store replies which copy of a message may run.

The report is part of the script in which one of the arrived requests acquires its permit. If none of them acquires for
some time, a separate script reports them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .._celery import Worker
from .._celery.saved_message import copy_in, marker_in
from ..limiter.limit_request import LimitRequest
from ..store_calls.outage import Outage
from . import tuning
from .messages import Bucket
from .scripts import Scripts

if TYPE_CHECKING:
    from .backlog import Backlog

__all__ = ["Along", "CopyReportWithAcquire", "CopyReporter", "Deduplicator", "GateRequest"]


class Along(NamedTuple):
    """Copies of returned tasks, which the script checks for duplicates in the call that acquires.

    Attributes:
        keys: of their parking lots, in wire form.
        number: of these keys.
        copies: for each lot the number of copies, and two values for each, see ``lua/filter_copies_and_acquire.lua``.
        places: for each request its position among the copies, from 1; 0: it is no copy.
    """

    keys: Sequence[bytes]
    number: int
    copies: Sequence[str | int]
    places: Sequence[int]


class CopyReporter:
    """Reports delivered copies of one fleet's messages; the store replies which of them may run."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    def arrive(self, bucket: Bucket, copies: Mapping[str, int]) -> set[str]:
        """Report copies that the broker delivered. Returns the ids of copies that must not run: another copy does."""
        return {id for _, id in self.arrive_all({bucket: copies})}

    def arrive_all(self, copies_of: Mapping[Bucket, Mapping[str, int]]) -> set[tuple[Bucket, str]]:
        """:meth:`arrive` for the parking lots of one of :meth:`Backlog.parts`."""
        arguments = 0, 0, 0, 0, *_arguments(copies_of)
        _, reply = self._scripts.of_lots("filter_copies_and_acquire", list(copies_of), *arguments)
        asked = [(bucket, id) for bucket, copies in copies_of.items() for id in copies]
        return {each for each, may in zip(asked, reply, strict=True) if int(may) != 1}

    def along(self, copies_of: Mapping[Bucket, Mapping[str, int]], asking: Sequence[tuple[str, int]]) -> Along:
        """The report of :meth:`arrive_all`, for the call in which some of these copies acquire their permits."""
        every = [pair for those in copies_of.values() for pair in those.items()]
        places = [every.index(pair) + 1 if pair in every else 0 for pair in asking]
        number, keys = self._scripts.keys_of_lots(list(copies_of))
        return Along(keys, number, _arguments(copies_of), places)

    def can_be_told_along(self, demands: Sequence[LimitRequest], bucket: Bucket) -> bool:
        """Whether one script can access the limits of a request and the parking lot that it returns from."""
        buckets = [(demand.name, demand.key) for demand in demands]
        return bucket in buckets and self._scripts.asker.core.takes_one_script(demands)


def _arguments(copies_of: Mapping[Bucket, Mapping[str, int]]) -> list[str | int]:
    """The last values of ARGV of ``lua/filter_copies_and_acquire.lua``."""
    arguments: list[str | int] = []
    for copies in copies_of.values():
        arguments += [len(copies), *[value for pair in copies.items() for value in pair]]
    return arguments


class GateRequest(Protocol):
    """A request in the worker's gate.

    Attributes:
        request: Celery's.
        queue: that it came from.
        id: by which the store knows its task.
        demands: its limits.
        shadow: its limits in shadow mode.
        token, attempt: see :class:`~celery_ratelimit.backlog.messages.ToPark`.
        coalesce_key: the same for tasks of which one is to wait.
        gone: the broker has its message again, and delivers it anew.
    """

    request: Any
    queue: str
    id: str
    demands: tuple[LimitRequest, ...]
    shadow: tuple[LimitRequest, ...]
    token: str
    attempt: int
    coalesce_key: str

    @property
    def gone(self) -> bool: ...


class CopyReportWithAcquire:
    """A report of copies that is sent with a call that acquires permits, and the store's reply.

    Attributes:
        along: the report.
        may: for each copy whether it may run; empty until the store has replied.
        answered: how many of the acquiring requests have a reply.
    """

    def __init__(self, along: Along) -> None:
        self.along = along
        self.may: Sequence[bool] = ()
        self.answered = 0


class Deduplicator:
    """Reports the returned messages of one worker, and keeps the store's replies: which copies must not run."""

    def __init__(self, worker: Worker, parking: Backlog, outage: Outage) -> None:
        self._worker, self._parking, self._outage = worker, parking, outage
        self._arriving: dict[Bucket, dict[str, int]] = {}
        self._since: dict[Bucket, float] = {}  # when the first message of a bucket arrived
        self._barred: set[tuple[str, int]] = set()
        self._beside: set[tuple[str, int]] = set()  # copies that arrived before the report of an earlier copy
        self._telling = threading.Lock()
        self._at_once = False
        self._cancel_telling: Callable[[], None] | None = None

    def on_message(self, message: Any) -> None:
        """Note an arrived message. If it returns from a parking lot, the next report to the store includes it."""
        copy = copy_in(message)
        if copy:
            name, key = copy["lot"]
            self._note((name, key), {str(copy["id"]): int(copy["copy"])})
            self._since.setdefault((name, key), time.monotonic())
            if self._cancel_telling is None:
                self._cancel_telling = self._worker.timers.call_after(tuning.REPORT_DELAY, self._tell)

    def forget(self, held: GateRequest) -> None:
        """A request is sent back: the worker that has it next reports it."""
        bucket = tuple(copy_in(held.request.message).get("lot", ()))
        copies = self._arriving.get(bucket, {})
        if copies.pop(held.id, None) is not None and not copies:
            self._take(bucket)

    def asks_along(self, held: GateRequest) -> bool:
        """Whether a request is reported in the call that acquires its permit; the reply says whether it may run."""
        if self._telling.locked():  # where greenlets switch, the reply is on its way
            return False
        copy = copy_in(held.request.message)
        if not copy or (_may_have_copies(held.request) and len(held.demands) + len(held.shadow) > 1):
            return False  # the second: it may be parked in the parking lot of another limit
        name, key = copy["lot"]
        has_come = self._arriving.get((name, key), {}).get(held.id) == int(copy["copy"])
        return has_come and self._parking.can_park and self._parking.copies.can_be_told_along(held.demands, (name, key))

    @contextmanager
    def told_along(self, asking: Sequence[GateRequest]) -> Iterator[CopyReportWithAcquire | None]:
        """Report arrived copies in the call in which these requests acquire. ``None``: there are none to report."""
        those = [held for held in asking if self.asks_along(held)]
        if not those:
            yield None
            return
        pairs = [(held.id, int(copy_in(held.request.message).get("copy", 0))) for held in asking]
        lots = dict.fromkeys(tuple(copy_in(held.request.message)["lot"]) for held in those)
        with self._telling:
            copies_of = {lot: self._take(lot) for lot in lots}
            told = CopyReportWithAcquire(self._parking.copies.along(copies_of, pairs))
            try:
                yield told
            finally:
                if told.may:
                    self._bar(copies_of, told.may)
                    self._barred.difference_update(pairs[: told.answered])  # these requests have their replies
                else:
                    self._put_back(copies_of)

    def may_run(self, held: GateRequest) -> bool:
        """Whether a request is the one copy of its task that may run.

        Raises:
            Exception: the error of the store, if this has to call it.
        """
        request = held.request
        said = copy_in(request.message)
        copy = int(said.get("copy", 0))
        if _may_have_copies(request):  # in the parking lot of any of its limits
            buckets = [(demand.name, demand.key) for demand in (*held.demands, *held.shadow)]
            return not any(self._parking.copies.arrive(bucket, {held.id: copy}) for bucket in buckets)
        if copy and (self._telling.locked() or any(held.id in copies for copies in self._arriving.values())):
            self._tell_all()
        if (held.id, copy) in self._barred:
            self._barred.discard((held.id, copy))
            return False
        if (held.id, copy) in self._beside:
            name, key = said["lot"]
            may = not self._parking.copies.arrive((name, key), {held.id: copy})
            self._beside.discard((held.id, copy))
            return may
        return True

    def tell_soon(self) -> None:
        """Report at once after an outage: a worker that polls the parking lots may return arrived tasks once more."""
        self._at_once = bool(self._arriving)
        if self._arriving and self._cancel_telling is None:
            self._cancel_telling = self._worker.timers.call_after(0, self._tell)

    def _tell(self) -> None:
        self._cancel_telling = None
        if self._outage:
            self._cancel_telling = self._worker.timers.call_after(tuning.POLL_INTERVAL, self._tell)
            return
        rest = min(self._since.values(), default=float("inf")) + tuning.REPORT_DELAY - time.monotonic()
        if 0 < rest <= tuning.REPORT_DELAY and not self._at_once:
            self._cancel_telling = self._worker.timers.call_after(rest, self._tell)
        elif self._parking.can_park:
            self._at_once = False
            self._outage.ask(self._tell_all, None)

    def _tell_all(self) -> None:
        with self._telling:  # where greenlets switch, more messages arrive during the call
            while self._arriving:
                copies_of = {bucket: self._take(bucket) for bucket in self._parking.parts(self._arriving)[0]}
                try:
                    barred = self._parking.copies.arrive_all(copies_of)
                except BaseException:
                    self._put_back(copies_of)
                    raise
                every = [(bucket, id) for bucket, copies in copies_of.items() for id in copies]
                self._bar(copies_of, [each not in barred for each in every])

    def _put_back(self, copies_of: Mapping[Bucket, Mapping[str, int]]) -> None:
        """Keep copies for the next report: the store has not replied."""
        for bucket, copies in copies_of.items():
            came, self._arriving[bucket] = self._arriving.get(bucket, {}), dict(copies)
            self._note(bucket, came)
            self._since.setdefault(bucket, time.monotonic())

    def _note(self, bucket: Bucket, copies: Mapping[str, int]) -> None:
        """Note arrived copies. Of two copies of a task the first is in the report; the other has a call of its own."""
        arriving = self._arriving.setdefault(bucket, {})
        for id, copy in copies.items():
            if arriving.setdefault(id, copy) != copy:
                self._beside.add((id, copy))

    def _take(self, bucket: Bucket) -> dict[str, int]:
        """Take out the copies of one parking lot, to report them now."""
        self._since.pop(bucket, None)
        return self._arriving.pop(bucket)

    def _bar(self, copies_of: Mapping[Bucket, Mapping[str, int]], may: Sequence[bool]) -> None:
        every = [pair for copies in copies_of.values() for pair in copies.items()]
        self._barred.difference_update(every)  # the copies of a task that was sent again have the same numbers
        self._barred.update(pair for pair, runs in zip(every, may, strict=True) if not runs)

    def close(self) -> None:
        if self._cancel_telling is not None:
            self._cancel_telling()
            self._cancel_telling = None
        self._arriving.clear()
        self._beside.clear()
        self._since.clear()


def _may_have_copies(request: Any) -> bool:
    """Whether a worker has had this message, and may have parked it or sent it back without acknowledging it."""
    return bool(request.delivery_info.get("redelivered") or marker_in(request.message).get("again"))
