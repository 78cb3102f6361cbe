"""Copies of parked messages that have come from the broker: the store says which of them may run."""

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
        asker: the way to the store.
        scripts: of its lots.
        memory: microseconds for which the broker may hand out an older copy of a message.
    """

    def __init__(self, asker: Asker, scripts: Scripts, memory: int) -> None:
        self._asker, self._scripts, self._memory = asker, scripts, memory

    def arrive(self, bucket: Bucket, copies: Mapping[str, int], doubts: int = 0) -> set[str]:
        """These copies have come from the broker. Which of them must not run, because another does?

        ``doubts``: how often they were sent anew, for it was not known whether they were parked.
        """
        return {id for _, id in self.arrive_all({bucket: copies}, doubts)}

    def arrive_all(self, copies_of: Mapping[Bucket, Mapping[str, int]], doubts: int = 0) -> set[tuple[Bucket, str]]:
        """The same for several lots that go together (:meth:`Backlog.parts`)."""
        arguments: list[str | int] = [self._memory]
        for copies in copies_of.values():
            arguments += [len(copies), *[value for id, copy in copies.items() for value in (id, copy, doubts)]]
        reply = self._scripts.of_lots("dedup", list(copies_of), *arguments)
        asked = [(bucket, id) for bucket, copies in copies_of.items() for id in copies]
        return {each for each, may in zip(asked, reply, strict=True) if int(may) != 1}

    def along(self, copies_of: Mapping[Bucket, Mapping[str, int]], asking: Sequence[tuple[str, int]]) -> Along:
        """What :meth:`arrive_all` tells, to be told when some of these copies ask for their permits."""
        copies: list[str | int] = []
        for those in copies_of.values():
            copies += [len(those), *[value for id, copy in those.items() for value in (id, copy, 0)]]
        every = [pair for those in copies_of.values() for pair in those.items()]
        places = [every.index(pair) + 1 if pair in every else 0 for pair in asking]
        keys = [self._scripts.keys_of(bucket) for bucket in copies_of]
        return Along(keys, LOT_KEYS * len(keys), self._memory, copies, places)

    def can_be_told_along(self, demands: Sequence[Demand], bucket: Bucket) -> bool:
        """Whether one script sees the limits of a request and the lot that it comes from."""
        buckets = [(demand.name, demand.key) for demand in demands]
        return bucket in buckets and self._asker.core.takes_one_script(demands)

    def postpone(self, bucket: Bucket, pauses: Mapping[str, float]) -> None:
        """Tasks that have left could not be published: they leave once more after so many seconds, by id."""
        arguments = [value for id, pause in pauses.items() for value in (id, microseconds(pause))]
        self._scripts.run("postpone", bucket, bucket[1], *arguments)
