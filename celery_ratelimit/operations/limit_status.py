"""The status of a limit and of its parking lots: what is in force, used and left, what waits and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt

from ..backlog.fleet_registry import PublishFailure
from ..backlog.messages import LotSnapshot
from ..counts.shadow_report import ShadowReport
from .bucket_status import MIN_USE, BucketStatus
from .forecast import REPORTED_AFTER, Forecast, Throughput, forecast, window

__all__ = ["LimitStatus"]


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """The status of one limit.

    Attributes:
        name: of the limit.
        standing: what is in force, what is left, and how many requests have a slot. Of a limit with keys what is left
            has no meaning.
        by_key: whether the limit has keys.
        parked: parked tasks.
        lots: parking lots in which they are, one for each key.
        oldest: when the first parked task was throttled, in seconds since 1970; ``None``: no task is parked, or there
            are too many lots to read.
        used: permits taken in each period of the rate in force (a second, of ``"100/s"``), on average over the last
            ten complete seconds, or the last period if that is longer, up to a day. Of a concurrency limit: held
            permits. ``None``: not known, or not counted (``ratelimit_counts``).
        share: ``used`` as a share of the rate in force; a burst may exceed 1.0. ``None``: not known, or the limit has a
            bucket for each key or worker.
        used_in_minute: as ``used``, over the last minute; ``None``: not known, or ``used`` is of a minute or more.
        queues: queues to which its tasks are sent.
        queued: messages that wait in these queues and their return queues; ``None``: the broker does not say.
        attended: whether a worker has this limit, or no task is parked.
        tasks: names of its tasks.
        failures: its tasks that have left the store and cannot be published, with the broker's errors.
        shadow_report: what the limit would have done, while it is in shadow.
        parking_lots: these; ``None``: too many to read.
        key_settings: ``"p"`` (a pause) or ``"r"`` (a rate) with each key that has one of its own.
        of_keys: the status of keys with settings of their own, if they have a lot or the limit was asked for by its
            name; and of the one with the dearest other lot.
        held_up: why none of its tasks can start; ``""``: they can.
        held_back: why some tasks of a lot have no turn, by its key.
        throughput: of its workers.
        upstream: what upstreams have caused in the last hour, by outcome (:data:`celery_ratelimit.observing.UPSTREAM`);
            empty as well if the limit was not asked for by its name.
    """

    name: str
    standing: BucketStatus
    by_key: bool
    parked: int
    lots: int
    oldest: float | None
    queues: tuple[str, ...]
    queued: int | None
    attended: bool
    tasks: tuple[str, ...]
    failures: tuple[PublishFailure, ...]
    shadow_report: ShadowReport | None
    parking_lots: Sequence[LotSnapshot] | None
    key_settings: Sequence[tuple[str, str]]
    of_keys: Mapping[str, BucketStatus]
    held_up: str
    held_back: Mapping[str, str]
    throughput: Throughput = Throughput()  # noqa: RUF009
    upstream: Mapping[str, int] = field(default_factory=dict)
    used: float | None = None
    share: float | None = None
    used_in_minute: float | None = None

    @property
    def forecast(self) -> Forecast:
        """When all parked tasks and all messages in the queues have had their turn, if no more come.

        Lots of keys drain side by side; to which key a message in a queue belongs is not known.
        """
        if self.parking_lots is None:
            return Forecast(None, reason="there are too many parking lots to read")
        code = self.standing.config.code
        cost = code.cost if code is not None and isinstance(code.cost, int) else 1
        queued = 0 if self.by_key or self.state == "shadow" else cost * (self.queued or 0)
        standings = self.of_keys if self.by_key else {"": self.standing, **self.of_keys}
        known = [(lot, standings[lot.key]) for lot in self.parking_lots if lot.key in standings]
        if not known:
            if self.by_key and self.queued:
                return Forecast(None, reason="the keys of the messages in the queues are not known")
            is_idle = not queued and not self.standing.waiting
            return Forecast(0.0) if is_idle else forecast(queued, self.standing, self.throughput, self.held_up)
        turns = [(lot.key, self.last_turn(lot, standing, queued)) for lot, standing in known]
        key, last = max(turns, key=lambda each: inf if each[1].seconds is None else each[1].seconds)
        is_its_own = key and last.reason and self.of_keys[key].config.paused > self.standing.config.paused + 1.0
        return replace(last, reason=f"key {key!r}: {last.reason}") if is_its_own else last

    @property
    def drains_in(self) -> float | None:
        """Seconds until then; ``None``: not known."""
        return self.forecast.seconds

    def last_turn(self, lot: LotSnapshot, standing: BucketStatus, queued: int = 0) -> Forecast:
        """The turn of the last task of a lot, behind it messages that need so many permits."""
        held_up = self.held_up or self.held_back.get(lot.key, "")
        return forecast(lot.cost - lot.cost / lot.parked + queued, standing, self.throughput, held_up)

    @property
    def settled_keys(self) -> list[BucketStatus]:
        """The keys of :attr:`of_keys` that have settings of their own."""
        return [self.of_keys[key] for key in dict.fromkeys(key for _, key in self.key_settings) if key in self.of_keys]

    @property
    def served(self) -> list[tuple[LotSnapshot, BucketStatus]]:
        """The lots whose bucket is not paused, each with what is in force there."""
        standings = [(lot, self.of_keys.get(lot.key, self.standing)) for lot in self.parking_lots or ()]
        return [(lot, standing) for lot, standing in standings if not standing.config.paused]

    @property
    def age(self) -> float:
        """Seconds since when the backlog, its rates and its pauses are as they are. How long messages have been in
        queues is not known: if no permit holds them up, the last seconds say how fast workers start them.
        """
        changes = [each.config.changed for each in (self.standing, *self.of_keys.values())]
        if self.queued and not self.parked and not self.by_key and self._lets_start:
            return min(self.standing.now - max(changes), MIN_USE + REPORTED_AFTER)
        return self.standing.now - max(min([lot.oldest for lot, _ in self.served], default=inf), *changes)

    @property
    def _lets_start(self) -> bool:
        """Whether a permit is free; of a limit without a rate, also if none is: workers say how soon one is."""
        return self.state not in ("paused", "shadow") and (self.standing.free >= 1 or not self.standing.interval)

    def measured(self, permits: int, lately: int, last: float) -> Throughput:
        """The throughput, by the permits that were taken within the window of its age.

        Or within the ``last`` seconds, if workers started clearly more: they were stopped before, or are more now.
        """
        seconds, served, standing, age = window(self.age), self.served, self.standing, self.age
        if last < seconds and lately - 2 * sqrt(lately + 1) > permits * last / seconds:
            permits, seconds, age = lately, last, last
        earlier = [each.interval for lot, each in served if lot.oldest <= standing.now - seconds]
        allowed = sum(1 / interval for interval in (earlier if served else [standing.interval]) if interval)
        if seconds and not served:
            allowed += max(0.0, standing.free - 1) / seconds  # a burst that was not taken either
        backlog = sum(lot.cost for lot, _ in served) if len(served) > 1 else inf
        gap, lots = max(standing.window, standing.interval), max(1, len(served))
        return Throughput(seconds, permits, allowed, gap, lots, backlog, age if served else 0.0)

    @property
    def paused_until(self) -> float | None:
        """The end of its pause, in seconds since 1970; ``None``: it is not paused."""
        paused = self.standing.config.paused
        return self.standing.now + paused if paused else None

    @property
    def remaining(self) -> int | None:
        """Permits that are left; ``None`` for a limit with keys, or one that this code does not have."""
        return None if self.by_key or self.standing.config.in_force is None else self.standing.remaining

    @property
    def state(self) -> str:
        """In one word: ``"shadow"``, ``"paused"``, ``"backlogged"``, ``"at its limit"``, ``"active"`` or ``"idle"``."""
        standing = self.standing
        if self.shadow_report is not None:
            return "shadow"
        if standing.config.paused:
            return "paused"
        if self.parked:
            return "backlogged"
        if self.remaining is not None and (
            standing.waiting or standing.retry_after > standing.interval or (standing.size > 1 and not self.remaining)
        ):
            return "at its limit"
        in_use = bool(self.used) or (
            self.remaining is not None and (standing.reset_after > 0 or self.remaining < standing.size)
        )
        return "active" if in_use else "idle"
