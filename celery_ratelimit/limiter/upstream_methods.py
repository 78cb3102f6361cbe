"""The limiters' method for an upstream that has refused a call. It is an operation."""

from __future__ import annotations

import json
import random
from typing import NamedTuple

from ..errors import ConfigurationError, shown
from ..feedback import LONGEST_RETRY_AFTER
from ..limits.any_limit import AnyLimit
from ..limits.key_rates import limit_of_key
from ..limits.rate_limit import Limit
from ..store.keys import bucket_key, changes_key, history_key, key_settings_key, short, touched_key
from ..store.resp import bulk
from .admin_methods import AdminMethods
from .argument_checks import microseconds, seconds_of
from .limit_request import LimitRequest
from .operation import Operation, RunScript, limiter_method, run_all
from .report_counts import count_upstream
from .script_calls import ARGUMENTS, KEYS
from .script_operations import Operations
from .setting_operations import note_of

__all__ = ["Paused", "UpstreamMethods", "report_throttle"]

#: Seconds: the longest pause where the upstream has not said for how long; and the share of a pause that may be added.
MAX_PAUSE, JITTER = 60.0, 0.25


class UpstreamMethods(AdminMethods):
    """Report what an upstream has answered."""

    @limiter_method
    def throttled(
        self,
        name: str | AnyLimit,
        *,
        key: str | None = None,
        retry_after: float | None = None,
        granted_at: int | None = None,
        by: str | None = None,
        reason: str = "",
        force: bool = False,
    ) -> Operation[float]:
        """Pause a limit whose upstream has refused a call, usually with status 429.

        The pause lasts for ``retry_after``, a day at most. If the upstream has not said how long, it lasts as long as
        a permit takes to come back, and at least a second; it doubles while calls are refused, up to a minute, and
        is up to a quarter longer by chance. A pause never shortens a longer one. Afterwards calls leave at the rate: a
        token bucket has no burst then.

        The rate of a limit with ``adaptive`` falls; without ``retry_after`` it is not paused besides, until its rate is
        at the floor.

        Args:
            name: the limit's name, or the limit.
            key: pauses only this bucket of a limit with keys.
            retry_after: seconds for which the upstream wants no calls. ``None``, or 0 and less: it has not said.
            granted_at: when the permit of the refused call was good, in microseconds of the store's clock. Several
                calls that were on their way double the pause once. Default: now.
            by, reason: author and reason, for :meth:`history`; default author: user and host.
            force: see :meth:`set_rate`.

        Returns:
            Seconds from now until the pause ends; 0.0: the limit is not paused.
        """
        known, code = yield from self._named(name, key, force)
        limit, note = limit_of_key(code or Limit("1/s"), short(key or "")), note_of(by, reason)
        demand = LimitRequest(limit, known, short(key or ""))
        is_known = code is not None
        return (
            yield from report_throttle(self._core, demand, note, retry_after, granted_at, is_known=is_known)
        ).seconds


class Paused(NamedTuple):
    """A pause that an upstream has caused.

    Attributes:
        seconds: from now.
        wait: seconds until permits are good that were taken for the refused task; ``None``: none were taken.
        granted_at: when they are good, in microseconds of the store's clock.
    """

    seconds: float
    wait: float | None = None
    granted_at: int = 0


def report_throttle(
    core: Operations,
    demand: LimitRequest,
    note: str,
    retry_after: float | None,
    granted_at: int | None,
    *,
    is_known: bool = True,
    takes: bool = False,
    outcome: str = "upstream_refused",
) -> Operation[Paused]:
    """:meth:`UpstreamMethods.throttled` for a bucket.

    Args:
        demand: the limit request, whose cost is that of the refused call.
        note: author and reason.
        is_known: whether its limit is that of the code.
        takes: whether permits are taken for the refused task, the first ones after the pause: if they are good within a
            second, and the limit is a token bucket without a reserve.
        outcome: that is counted.
    """
    seconds = 0.0 if retry_after is None else max(0.0, min(seconds_of("retry_after", retry_after), LONGEST_RETRY_AFTER))
    if granted_at is not None and (isinstance(granted_at, bool) or not isinstance(granted_at, int) or granted_at < 0):
        raise ConfigurationError(f"granted_at={shown(granted_at)} must be a whole number of microseconds since 1970")
    yield from count_upstream(core, demand.name, outcome)
    if isinstance(demand.limit, Limit) and demand.limit.adaptive is not None:
        adaptive = demand.limit.adaptive
        share = yield from core.settings.reduce_rate(demand.name, demand.key, adaptive, granted_at, note)
        if not seconds and share > adaptive.floor + 1e-6:
            return Paused(0.0)
    number, packed_keys, arguments = core.calls.packed((demand,))
    prefix, name = core.calls.prefix, demand.name
    more = [each(prefix, name) for each in (changes_key, touched_key, history_key, key_settings_key)]
    keys = [*more, bucket_key(prefix, name, demand.key, "refused")]
    interval = microseconds(demand.interval) if is_known else 0
    most, jitter = microseconds(MAX_PAUSE), int(random.uniform(0, JITTER) * 1e6)
    first = (
        microseconds(seconds),
        granted_at or 0,
        interval,
        most,
        jitter,
        demand.key,
        note,
        *_ramp(demand.limit, note),
        int(takes),
    )
    size = KEYS * number + len(keys)
    call = size, size + len(first) + ARGUMENTS, [packed_keys, bulk(*keys), bulk(*first), arguments]
    (reply,) = yield from run_all([RunScript(core.scripts.report_throttle, call)])
    pause, wait, granted_at = map(int, reply)
    return Paused(pause / 1e6, None if wait < 0 else wait / 1e6, granted_at)


def _ramp(limit: AnyLimit, note: str) -> tuple[int, str]:
    """Microseconds of the ramp after a pause, and the note of the rate that is stored for so long."""
    if not isinstance(limit, Limit) or not limit.resume_over:
        return 0, ""
    slow = {"rate": limit.rate, "burst": limit.burst, "headroom": limit.headroom, "warmup": limit.resume_over}
    return microseconds(limit.resume_over), json.dumps({"limit": slow, **json.loads(note)})
