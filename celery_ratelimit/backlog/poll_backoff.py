"""How often one worker of many looks: a fleet looks often enough if each of its workers seldom does."""

from __future__ import annotations

import random

__all__ = ["Pace"]


class Pace:
    """Seconds until one worker looks again.

    A look that has found something is soon followed by the next one; each that has found nothing, by one that comes
    later. So the worker that lets tasks out goes on with it, and the others look as often as it takes to see that it
    is gone: once in ``least`` seconds or more often, all of them together.

    Args:
        least: seconds after a look that has found something.
        most: seconds after one that has found nothing, where workers are very many.
    """

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, most
        self._pause = least

    def found(self, anything: bool) -> None:
        """A look has found something, or nothing."""
        self._pause = self._least if anything else min(2 * self._pause, self._most)

    def pause(self, workers: int) -> float:
        """Seconds until the next look, where so many workers look; not all at once."""
        pause = min(self._pause, self._least * workers)
        return max(self._least, pause * random.uniform(0.75, 1.25))
