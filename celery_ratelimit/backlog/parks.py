"""What the script that parks is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..limiter.durations import microseconds
from .messages import Bucket, ToPark

__all__ = ["arguments_of"]


def arguments_of(
    messages_of: Mapping[Bucket, Sequence[ToPark]],
    told: Mapping[Bucket, Sequence[str]],
    later: Mapping[Bucket, float],
    *,
    only_behind: bool,
    most: int | None,
) -> list[str | int]:
    """See :meth:`Backlog.park <celery_ratelimit.backlog.backlog.Backlog.park>`, and ``lua/park.lua``.

    ``told``: ids of messages that were acknowledged.
    """
    arguments: list[str | int] = [int(only_behind), -1 if most is None else max(0, most)]
    for bucket, messages in messages_of.items():
        acknowledged = told.get(bucket, ())
        arguments += [bucket[1], microseconds(later.get(bucket, 0.0)), len(messages), len(acknowledged)]
        for each in messages:
            order = each.order if each.share is None else f"{each.order} {each.weight!r} {each.share}"
            arguments += [order, each.since, int(each.expires * 1e6), each.id, each.cost]
            arguments += [each.copy, each.doubts, each.alone, each.message]
        arguments += acknowledged
    return arguments
