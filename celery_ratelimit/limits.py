"""What a limit is: frozen data, checked when it is made, with no I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from string import Formatter
from typing import Any

from .errors import ConfigurationError, ImpossibleRequest

__all__ = ["ALGORITHMS", "Limit", "Rate", "check_cost", "parse_rate"]

#: The algorithms that ``lua/include/`` has a file for.
ALGORITHMS = ("token_bucket",)

#: Whole numbers below this stay exact in Lua, whose numbers are doubles.
_EXACT = 2**53

_UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
}
_RATE = re.compile(
    r"\s*(?P<count>\d+(?:\.\d+)?)\s*(?:/|per\b)\s*(?P<span>\d+(?:\.\d+)?)?\s*(?P<unit>[a-z]+)\s*",
    re.IGNORECASE,
)
_RATE_HELP = 'write a count per period, such as "100/s", "5/10s", "1000/h", "0.5/s" or "10 per 2 minutes"'


@dataclass(frozen=True, slots=True)
class Rate:
    """``count`` permits in every ``period`` microseconds, both whole: the emission interval is their quotient.

    Kept as a fraction because most intervals are not whole microseconds: 3/s is one permit in 333,333⅓.
    """

    count: int
    period_us: int

    @property
    def per_second(self) -> float:
        return self.count * 1_000_000 / self.period_us

    @property
    def interval(self) -> float:
        """The emission interval in seconds: the time after which one permit has come back."""
        return self.period_us / self.count / 1_000_000


def parse_rate(text: str) -> Rate:
    """Read a rate such as ``"100/s"``. Raises :class:`ConfigurationError` that names the text."""
    if not isinstance(text, str):
        raise ConfigurationError(f"cannot read the rate {text!r}: {_RATE_HELP}")
    return _parse_rate(text)


@lru_cache(maxsize=1024)
def _parse_rate(text: str) -> Rate:
    match = _RATE.fullmatch(text)
    unit = _UNITS.get(match["unit"].lower()) if match else None
    if match is None or unit is None:
        raise ConfigurationError(f"cannot read the rate {text!r}: {_RATE_HELP}; units are s, m, h and d")
    period = Fraction(match["span"] or 1) * unit * 1_000_000
    if period <= 0:
        raise ConfigurationError(f"the rate {text!r} has a period of zero: {_RATE_HELP}")
    per_us = Fraction(match["count"]) / period
    if per_us == 0:
        raise ConfigurationError(
            f"the rate {text!r} would never let anything through: {_RATE_HELP}, or do not start these workers"
        )
    if per_us > 1:
        raise ConfigurationError(f"the rate {text!r} is above one permit a microsecond, the finest step kept")
    # In lowest terms, then widened so that both are whole.
    rate = Rate(count=per_us.numerator, period_us=per_us.denominator)
    if rate.count >= 10**9 or rate.period_us >= 10**15:
        raise ConfigurationError(f"the rate {text!r} has more digits than can be kept exactly: round it to nine digits")
    return rate


def check_cost(name: str, cost: Any, burst: int) -> int:
    """A cost as a whole number of permits that the limit ``name`` can grant; raises what is wrong with it."""
    number = isinstance(cost, (int, float)) and not isinstance(cost, bool) and math.isfinite(cost)
    if not number or cost != int(cost) or cost < 1:
        raise ConfigurationError(
            f"limit {name!r}: cost={cost!r} is not a whole number of permits of at least 1; "
            "to charge fractions, scale the rate, the burst and every cost by the same factor"
        )
    if cost > burst:
        raise ImpossibleRequest(name, int(cost), burst)
    return int(cost)


@dataclass(frozen=True)
class Limit:
    """At most ``burst + rate·T`` permits in any interval of length ``T``, counted over every process that asks.

    A permit that is not there is not an error: the decision says how long to wait for it.

    Args:
        rate: count per period: ``"100/s"``, ``"5/10s"``, ``"1000/h"``, ``"10 per 2 minutes"``, ``"0.5/s"``;
            units s, m, h, d.
        burst: permits that may be used at once after a rest. 1 spreads evenly, as Celery's own
            ``rate_limit`` does; ``burst=100`` lets 100 go together.
        algorithm: ``"token_bucket"``.
        name: what the bucket is called in the store, in metrics and in messages. Default: the name of the
            task, the queue or the quota that the limit belongs to. Two limits of one name share a bucket.
        key: which bucket of this limit a call uses: none (a single bucket), a template over the task's
            arguments (``"tenant:{tenant_id}"``; positional ones are bound by name), or a callable that gets
            the task's arguments and returns a string.
        cost: permits a call takes: a whole number, the name of an argument that holds it, or a callable that
            gets the task's arguments and returns it.

    Raises:
        ConfigurationError: a rate that cannot be read, or an impossible burst, key, cost or algorithm.

    Warning:
        A token bucket with a burst lets up to twice the burst through in one period right after a rest
        (``burst`` at once, then the refill). For an upstream that counts strict windows, use ``burst=1`` or
        subtract the burst from the rate.

    The algorithm is the generic cell rate algorithm (ITU-T I.371), a token bucket kept as one timestamp.
    """

    rate: str
    burst: int = 1
    algorithm: str = "token_bucket"
    name: str | None = None
    key: str | Callable[..., str] | None = None
    cost: int | str | Callable[..., int] = 1

    def __init__(
        self,
        rate: str,
        *,
        burst: int = 1,
        algorithm: str = "token_bucket",
        name: str | None = None,
        key: str | Callable[..., str] | None = None,
        cost: int | str | Callable[..., int] = 1,
    ) -> None:
        who = f"Limit({rate!r}{f', name={name!r}' if name else ''})"
        parsed = parse_rate(rate)
        if isinstance(burst, bool) or not isinstance(burst, int) or burst < 1:
            raise ConfigurationError(f"{who}: burst={burst!r} must be a whole number of at least 1")
        if burst * parsed.period_us // parsed.count >= _EXACT // 8:
            raise ConfigurationError(
                f"{who}: burst={burst} at this rate would take {burst * parsed.interval / 3.15e7:.0f} years to "
                "refill, more than can be kept exactly: lower the burst or raise the rate"
            )
        if algorithm not in ALGORITHMS:
            raise ConfigurationError(f"{who}: algorithm={algorithm!r} is not one of {', '.join(ALGORITHMS)}")
        if name is not None and (not isinstance(name, str) or not name):
            raise ConfigurationError(f"{who}: name={name!r} must be a text that is not empty")
        if key is not None and not isinstance(key, str) and not callable(key):
            raise ConfigurationError(
                f"{who}: key={key!r} must be a template such as 'tenant:{{tenant_id}}', or a callable"
            )
        if isinstance(key, str):
            _check_template(who, key)
        if not isinstance(cost, str) and not callable(cost):
            try:
                cost = check_cost(name or rate, cost, burst)
            except ImpossibleRequest as error:
                raise ConfigurationError(f"{who}: {error}") from None
        # A frozen dataclass has no other way to set what its own __init__ was given.
        for attribute, value in (
            ("rate", rate),
            ("burst", burst),
            ("algorithm", algorithm),
            ("name", name),
            ("key", key),
            ("cost", cost),
        ):
            object.__setattr__(self, attribute, value)

    def __hash__(self) -> int:
        # Limits are looked up at every call: their hash is worked out once, and anew in another process.
        try:
            known: int = self.__dict__["_hash"]
            return known
        except KeyError:
            value = hash((self.rate, self.burst, self.algorithm, self.name, self.key, self.cost))
            object.__setattr__(self, "_hash", value)
            return value

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @property
    def parsed(self) -> Rate:
        return parse_rate(self.rate)

    def __str__(self) -> str:
        burst = f", burst {self.burst}" if self.burst > 1 else ""
        return f"{self.name or 'limit'}: {self.rate}{burst}"


def template_fields(template: str) -> list[str]:
    """The argument names that a key template uses: ``"a:{b.c}:{d}"`` uses ``b`` and ``d``."""
    parts = (field for _, field, _, _ in Formatter().parse(template) if field is not None)
    return [re.split(r"[.\[]", field, maxsplit=1)[0] for field in parts]


def _check_template(who: str, template: str) -> None:
    try:
        fields = template_fields(template)
    except ValueError as error:
        raise ConfigurationError(f"{who}: key={template!r} is not a template: {error}") from None
    for name in fields:
        if not name.isidentifier():
            raise ConfigurationError(
                f"{who}: key={template!r} must name the task's arguments, as in 'tenant:{{tenant_id}}', not {{{name}}}"
            )
