"""Reports copies of parked messages that the broker delivers; the store replies which of them may run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..limiter.asker import Asker
from ..limiter.calls import Along
from ..limiter.demand import Demand
from ..limiter.durations import microseconds
from .messages import Bucket
from .scripts import LOT_KEYS, Scripts

__all__ = ["Copies"]


class Copies:
    """The copies of one fleet's messages.

    Args:
        asker: calls the store.
        scripts: the scripts for its parking lots.
    """

    def __init__(self, asker: Asker, scripts: Scripts) -> None:
        self._asker, self._scripts = asker, scripts

    def arrive(self, bucket: Bucket, copies: Mapping[str, int]) -> set[str]:
        """Report copies that the broker delivered. Returns the ids of copies that must not run: another copy does."""
        return {id for _, id in self.arrive_all({bucket: copies})}

    def arrive_all(self, copies_of: Mapping[Bucket, Mapping[str, int]]) -> set[tuple[Bucket, str]]:
        """:meth:`arrive` for the parking lots of one of :meth:`Backlog.parts`."""
        reply = self._scripts.of_lots("dedup", list(copies_of), *_arguments(copies_of))
        asked = [(bucket, id) for bucket, copies in copies_of.items() for id in copies]
        return {each for each, may in zip(asked, reply, strict=True) if int(may) != 1}

    def along(self, copies_of: Mapping[Bucket, Mapping[str, int]], asking: Sequence[tuple[str, int]]) -> Along:
        """The report of :meth:`arrive_all`, for the call in which some of these copies acquire their permits."""
        every = [pair for those in copies_of.values() for pair in those.items()]
        places = [every.index(pair) + 1 if pair in every else 0 for pair in asking]
        keys = [self._scripts.keys_of(bucket) for bucket in copies_of]
        return Along(keys, LOT_KEYS * len(keys), _arguments(copies_of), places)

    def can_be_told_along(self, demands: Sequence[Demand], bucket: Bucket) -> bool:
        """Whether one script can access the limits of a request and the parking lot that it returns from."""
        buckets = [(demand.name, demand.key) for demand in demands]
        return bucket in buckets and self._asker.core.takes_one_script(demands)

    def postpone(self, bucket: Bucket, pauses: Mapping[str, float]) -> None:
        """Return tasks once more that could not be published. ``pauses``: seconds until then, by id."""
        arguments = [value for id, pause in pauses.items() for value in (id, microseconds(pause))]
        self._scripts.run("postpone", bucket, bucket[1], *arguments)


def _arguments(copies_of: Mapping[Bucket, Mapping[str, int]]) -> list[str | int]:
    """ARGV of ``lua/dedup.lua``."""
    arguments: list[str | int] = []
    for copies in copies_of.values():
        arguments += [len(copies), *[value for pair in copies.items() for value in pair]]
    return arguments
