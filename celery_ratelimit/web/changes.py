"""What can be changed on the page: by the functions of the command line, each with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery

from ..app.app_store import limiter_of
from ..errors import ConfigurationError, shown
from ..operations.parked_tasks import take_out
from ..operations.requested_limit import requested_limit
from ..operations.wording import in_force_now
from ..words import number_of, plain, seconds_of

__all__ = ["VERBS", "change"]


def change(app: Celery, name: str, fields: Mapping[str, str]) -> tuple[str, str]:
    """Change a limit as a form says.

    Returns:
        What was before and is now, for the page; and a line for the log.

    Raises:
        ConfigurationError: the form says what cannot be, or no reason.
    """
    verb, reason = fields.get("verb", ""), fields.get("reason", "").strip()
    if verb not in VERBS:
        raise ConfigurationError(f"{shown(verb)} is nothing that can be done here: {', '.join(VERBS)}")
    if not reason:
        raise ConfigurationError("say why: the reason stands in the history of this limit")
    by = f"{fields.get('by', '').strip() or 'unnamed'} (web page)"
    said = VERBS[verb](app, name, fields, {"by": by, "reason": reason})
    return said, plain(f"{verb} {name} by {by} ({reason}): {said}".replace("\n", ", "))


def _by_verb(do: Callable[[Any, str, Mapping[str, str], dict[str, Any]], Any]) -> Callable[..., str]:
    """A change of what is in force, told as the command line tells it."""

    def changed(app: Celery, name: str, fields: Mapping[str, str], author: dict[str, Any]) -> str:
        limiter, key = limiter_of(app), fields.get("key", "").strip() or None
        before = limiter.config(name, key=key)
        done = do(limiter, name, fields, {**author, "key": key})
        after = in_force_now(limiter.config(name, key=key, force=True))
        if done is False:
            return f"nothing to change: {after}"
        return f"was {in_force_now(before)}\nnow {after}"

    return changed


def _set(limiter: Any, name: str, fields: Mapping[str, str], author: dict[str, Any]) -> Any:
    rate, burst = fields.get("rate", "").strip(), fields.get("burst", "").strip()
    if burst and not re.fullmatch("[0-9]{1,99}", burst):
        raise ConfigurationError(f"burst {shown(burst)} must be a whole number of at least 1")
    meant = requested_limit(limiter, name, rate, int(burst) if burst else None)
    return limiter.set_rate(name, meant, for_=_for(fields), **author)


def _unset(limiter: Any, name: str, _: Mapping[str, str], author: dict[str, Any]) -> Any:
    return limiter.unset_rate(name, **author)


def _pause(limiter: Any, name: str, fields: Mapping[str, str], author: dict[str, Any]) -> Any:
    return limiter.pause(name, _for(fields) or 1e9, **author)


def _resume(limiter: Any, name: str, _: Mapping[str, str], author: dict[str, Any]) -> Any:
    return limiter.resume(name, **author)


def _weight(app: Celery, name: str, fields: Mapping[str, str], author: dict[str, Any]) -> str:
    share, said = fields.get("share", ""), fields.get("weight", "").strip()
    if not share:
        raise ConfigurationError("the weight of which share?")
    try:
        weight = None if said == "code" else float(said)
    except ValueError:
        raise ConfigurationError(f'weight {shown(said)} is neither a number nor "code"') from None
    limiter = limiter_of(app)
    done = limiter.set_weight(name, share, weight, **author)
    if not done:
        return "nothing to change: no weight was stored"
    found = limiter.weights(name, force=True).get(share)
    return f"{share} has {found.weight if found is not None else 1:g} now"


def _release(app: Celery, name: str, fields: Mapping[str, str], _: dict[str, Any]) -> str:
    ids = fields.get("ids", "").split()
    taken = take_out(app, "release", name, ids, fields.get("key", "").strip() or None)
    missing = f"; {len(ids) - taken} of {len(ids)} are not parked there" if taken < len(ids) else ""
    return f"{number_of(taken)} sent back to the queue{missing}"


def _for(fields: Mapping[str, str]) -> float | None:
    said = fields.get("for", "").strip()
    try:
        return seconds_of(said) if said else None
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


VERBS: Mapping[str, Callable[..., str]] = {
    "set": _by_verb(_set),
    "unset": _by_verb(_unset),
    "pause": _by_verb(_pause),
    "resume": _by_verb(_resume),
    "weight": _weight,
    "release": _release,
}
