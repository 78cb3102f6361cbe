"""Rate limits: frozen data without I/O, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ConfigurationError, ImpossibleRequest, shown
from .adaptive import Adaptive
from .any_limit import (
    AnyLimit,
    check_cost,
    check_max_parked,
    check_missing_key,
    check_name_and_keys,
    check_shadow,
    is_number,
)
from .breaker import Breaker
from .exactness_checks import WINDOWS, check_exact, check_room_for_costs
from .key_rates import rates_of
from .limit_option_checks import check_options, switch_of
from .parse_rate import Rate, parse_rate, parse_window
from .priority_reserve import MILLION, PriorityReserve, priority_reserve_of
from .share_weights import Weights

__all__ = ["ALGORITHMS", "METHODS", "Limit"]

#: The values of ``Limit(algorithm=...)``.
ALGORITHMS = ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log")
#: The files of the algorithms in ``lua/algorithms/``: the values of ``Limit.method``.
METHODS = (*ALGORITHMS, "stepped_bucket", "warm_up", "concurrency")
_WINDOWS = WINDOWS


@dataclass(frozen=True)
class Limit(AnyLimit):
    """At most so many permits in an interval, counted over all processes.

    A refusal is not an error: the decision says how long to wait. ``docs/algorithms.md`` plots each algorithm's
    admissions, and says when to choose it.

    Args:
        rate: count per period: ``"100/s"``, ``"5/10s"``, ``"1000/h"``, ``"10 per 2 minutes"``, ``"0.5/s"``;
            units s, m, h, d.
        burst: permits that may be used at once after a rest. 1 spreads evenly, as Celery's own
            ``rate_limit`` does; ``burst=100`` lets 100 go together. Token bucket only.
        algorithm: the law that holds for permits in any interval of length T:

            - ``"token_bucket"``: ``burst + rate*T``.
            - ``"leaky_bucket"``: ``1 + rate*T``, one at a time, and at most ``capacity`` waiting.
            - ``"fixed_window"``: the count in each window; up to twice that across the border of two.
            - ``"sliding_window"``: the count in any ``period*(1 - 1/sub_windows)``; at worst nearly twice that in a
              whole period. An estimate from sub-windows, cheap for large counts.
            - ``"sliding_log"``: the count in any window of one period, exactly. Keeps an entry for each call.
        name: the bucket's name in the store, in metrics and in messages. Default: the name of the task, the queue or
            the quota that the limit belongs to. Two limits of one name share a bucket.
        key: the bucket that a call uses: none (a single bucket), a template over the task's arguments
            (``"tenant:{tenant_id}"``, ``"{order.tenant_id}"``; positional ones are bound by name), or a callable that
            gets the task's arguments and returns a string.
        rates: rates of single keys, in place of ``rate``: ``{"gpt-large": "10000/m", "*": "200000/m"}``, where ``"*"``
            stands for all others; or a callable that gets a key and returns its rate (``None``: ``rate``), or another
            mapping. ``docs/model-apis.md``.
        rates_ttl: seconds for which a callable's or a mapping's answer is cached, in each process.
        missing_key: a call whose arguments give no key (an argument of ``key`` is missing or ``None``, or the callable
            returns ``None``): ``"error"``, ``"exempt"`` (the limit does not apply to it) or ``"shared"`` (all such
            calls have one bucket, of the key ``(missing)``). Default: ``ratelimit_missing_key``, else ``"error"``.
        cost: permits that a call takes: a whole number, the name of an argument that holds it (or of its part,
            ``"order.weight"``), or a callable that gets the task's arguments and returns it.
        refill: token bucket: ``"continuous"``, or ``"interval"``: the whole count comes at once every period, and the
            law is ``burst + count*(floor(T/period) + 1)``.
        debt: token bucket: permits by which a call may overdraw a bucket that holds at least one; later calls pay. The
            law is ``burst + debt + rate*T``.
        warmup: token bucket: seconds of use in which the rate rises from a third to the whole, after a start or a
            rest. The next call pays a call's cost, no permits are saved up, and ``burst`` only bounds a call's cost.
        resume_over: token bucket: seconds in which the rate rises from a tenth to the whole after a pause that an
            upstream has caused (:class:`UpstreamThrottled`, :meth:`Limiter.throttled`). Not while a rate is stored.
        priority_reserve: token bucket: shares of the burst kept for messages of high priority: ``{0: 0.2}`` keeps a
            fifth for priority 0 and higher priorities, in the broker's order. A call leaves the shares of
            priorities higher than its own. Calls of all priorities share the whole rate.
        adaptive: token bucket: ``True``, or an :class:`Adaptive`: the rate falls where the upstream refuses calls, and
            recovers. ``docs/upstream.md``.
        breaker: ``True``, or a :class:`Breaker`: while tasks fail, one at a time tries, and the rest waits in the
            backlog. ``docs/upstream.md``.
        capacity: leaky bucket: how many calls may wait. If the queue is full, a call is refused at once
            (``Decision.queue_full``), and a task is handled by its ``overflow``. Default: any number.
        align: fixed window: ``"clock"`` (whole periods since 1970, so days are UTC days), or ``"first"``: a window
            begins with the first call after the last window.
        sub_windows: sliding window: number of sub-windows in a period, at most 1,000.
        fair: a template or callable, as ``key``, for the keys that share the limit: keys with waiting tasks get permits
            by weight. ``docs/fairness.md``.
        weights: weights by the keys of ``fair``: of weights 4 and 1, the first gets four fifths. 0 holds tasks back.
            Default: 1.
        per_worker: counts for each worker node, not for the fleet; outside of a worker, for each machine.
        headroom: the share of the rate that is kept back, from 0 to below 1. Calls follow their permits at varying
            distances, so an upstream that counts strict windows sees them closer together. The headroom lengthens a
            window, or lowers its count if the window is aligned to the clock. For costs that are settled only after
            their calls, lower the rate as well. ``docs/model-apis.md``.
        shadow: only simulates the limit, which then delays nothing. ``docs/shadow.md``.
        max_parked: most tasks that are parked for the limit, or for each key of it. Another throttled task is handled
            by its ``overflow``. Default: any number. ``docs/parking.md``.

    Raises:
        ConfigurationError: an unreadable rate, an impossible value, or an option of another algorithm.

    Warning:
        A token bucket with a burst lets up to twice the burst through in one period right after a rest
        (``burst`` at once, then the refill). For an upstream that counts strict windows, use ``burst=1`` or
        ``algorithm="sliding_log"``, and headroom.

    The token bucket is the generic cell rate algorithm (ITU-T I.371), kept as one timestamp; the warm-up is Guava's
    SmoothWarmingUp.
    """

    rate: str
    burst: int = 1
    algorithm: str = "token_bucket"
    name: str | None = None
    key: str | Callable[..., str] | None = None
    rates: Any = None
    rates_ttl: float = 60.0
    missing_key: str | None = None
    cost: int | str | Callable[..., int] = 1
    refill: str = "continuous"
    debt: int = 0
    warmup: float = 0.0
    resume_over: float = 0.0
    priority_reserve: Any = None
    adaptive: Any = None
    breaker: Any = None
    capacity: int | None = None
    align: str = "clock"
    sub_windows: int = 10
    headroom: float = 0.0
    per_worker: bool = False
    fair: str | Callable[..., str] | None = None
    weights: Mapping[str, float] = Weights("", {})
    shadow: bool = False
    max_parked: int | None = None

    def __init__(
        self,
        rate: str,
        *,
        burst: int = 1,
        algorithm: str = "token_bucket",
        name: str | None = None,
        key: str | Callable[..., str] | None = None,
        rates: Mapping[str, str] | Callable[[str], str | None] | None = None,
        rates_ttl: float = 60.0,
        missing_key: str | None = None,
        cost: int | str | Callable[..., int] = 1,
        refill: str = "continuous",
        debt: int = 0,
        warmup: float = 0.0,
        resume_over: float = 0.0,
        priority_reserve: Mapping[int, float] | PriorityReserve | None = None,
        adaptive: bool | Adaptive | None = None,
        breaker: bool | Breaker | None = None,
        capacity: int | None = None,
        align: str = "clock",
        sub_windows: int = 10,
        headroom: float = 0.0,
        per_worker: bool = False,
        fair: str | Callable[..., str] | None = None,
        weights: Mapping[str, float] | None = None,
        shadow: bool = False,
        max_parked: int | None = None,
    ) -> None:
        given = {each: value for each, value in locals().items() if each != "self"}
        # A frozen dataclass has no other way to set what its own __init__ was given.
        for attribute, value in given.items():
            object.__setattr__(self, attribute, value)
        label = f"Limit({shown(rate)}{f', name={shown(name)}' if name else ''})"
        parse_rate(rate)
        check_shadow(label, shadow)
        check_max_parked(label, max_parked)
        check_missing_key(label, missing_key, key)
        example = "an Adaptive(floor=…, recover=…)"
        object.__setattr__(self, "adaptive", switch_of(label, "adaptive", adaptive, Adaptive, example))
        example = "a Breaker(open_after=…, half_open_every=…)"
        object.__setattr__(self, "breaker", switch_of(label, "breaker", breaker, Breaker, example))
        if algorithm not in ALGORITHMS:
            hint = ": use Concurrency(4) to limit tasks that run at once" if algorithm == "concurrency" else ""
            raise ConfigurationError(
                f"{label}: algorithm={shown(algorithm)} is not one of {', '.join(ALGORITHMS)}{hint}"
            )
        if not is_number(headroom) or not 0 <= headroom < 1:
            raise ConfigurationError(f"{label}: headroom={shown(headroom)} must be a share from 0 to below 1")
        check_options(self, label)
        if algorithm in _WINDOWS or refill == "interval":
            parsed = parse_window(rate, headroom, keep_period=algorithm == "fixed_window" and align == "clock")
        else:
            parsed = parse_rate(rate, headroom)
        object.__setattr__(self, "parsed", parsed)
        check_exact(self, label, parsed)
        object.__setattr__(self, "weights", check_name_and_keys(label, name, key, fair, weights))
        if priority_reserve is not None:
            dearest = cost if isinstance(cost, int) else 1
            object.__setattr__(self, "priority_reserve", priority_reserve_of(label, priority_reserve, burst, dearest))
        if isinstance(cost, str) or callable(cost):
            check_room_for_costs(self, label)
        else:
            try:
                object.__setattr__(self, "cost", check_cost(name or rate, cost, self.most))
            except ImpossibleRequest as error:
                raise ConfigurationError(f"{label}: {error}") from None
        object.__setattr__(self, "rates", rates_of(label, self))

    def __hash__(self) -> int:
        # Limits are hashed at every call: the hash is computed once, and again in another process.
        try:
            known: int = self.__dict__["_hash"]
            return known
        except KeyError:
            value = hash(tuple(getattr(self, each.name) for each in fields(self)))
            object.__setattr__(self, "_hash", value)
            return value

    def __repr__(self) -> str:
        said = [repr(self.rate)]
        said += [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)[1:]
            if getattr(self, each.name) != each.default
        ]
        return f"Limit({', '.join(said)})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    if TYPE_CHECKING:
        parsed: ClassVar[Rate]  # the rate less the headroom; set once, in __init__

    @property
    def interval(self) -> float:
        """The emission interval in seconds: the mean time in which one permit comes back."""
        return self.parsed.interval

    @property
    def size(self) -> int:
        """The most permits that the limit holds: its burst, or the count of its window."""
        return self.parsed.count if self.algorithm in _WINDOWS else self.burst

    @property
    def most(self) -> int:
        """The most permits that one request can ever have."""
        return self.size + self.debt

    @property
    def method(self) -> str:
        """The algorithm's name in ``lua/algorithms/``."""
        if self.refill == "interval":
            return "stepped_bucket"
        return "warm_up" if self.warmup else self.algorithm

    @property
    def extra(self) -> int:
        """The algorithm's additional parameter, see its Lua file."""
        if self.algorithm == "leaky_bucket":
            return -1 if self.capacity is None else self.capacity
        if self.algorithm == "sliding_window":
            return self.sub_windows
        if self.algorithm == "fixed_window":
            return int(self.align == "first")
        return math.ceil(self.warmup * 1e6) or self.debt

    def wire(self, cost: int, leaves: int | None = None) -> tuple[str | int, ...]:
        """The arguments that ``lua/include/read_limits.lua`` reads; ``leaves``: see :class:`LimitRequest`."""
        extra = self.extra
        if isinstance(self.priority_reserve, PriorityReserve):
            most = self.priority_reserve.most
            extra = -((most if leaves is None else leaves) * MILLION + most)
        return self.method, self.parsed.count, self.parsed.period_us, self.size, cost, extra

    def __str__(self) -> str:
        burst = f", burst {self.burst}" if self.burst > 1 and self.algorithm == "token_bucket" else ""
        rates = f", rates {self.rates.by}" if self.rates is not None else ""
        return f"{self.name or 'limit'}: {self.rate}{burst}{rates}"
