"""When each task body started: one append-only file of fixed-size records for each pool process.

A record is one ``write`` of 20 bytes, some microseconds, and goes to no server: noting a start disturbs
neither the broker's statistics nor the timing. How many bodies have started is the files' size, without
reading them.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

_RECORD = struct.Struct("<qdi")  # index of the task, unix time of its start, HTTP status or 0


@dataclass(frozen=True, slots=True, order=True)
class Start:
    at: float  # unix seconds
    index: int  # the place in which the task was sent; negative for warm-up tasks
    status: int  # what the upstream answered; 0 without an upstream


class Recorder:
    """Appends to a file that belongs to this process alone."""

    def __init__(self, directory: str) -> None:
        path = Path(directory, f"{os.getpid()}.starts")
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def note(self, index: int, at: float, status: int) -> None:
        os.write(self._fd, _RECORD.pack(index, at, status))


def count(directory: Path) -> dict[int, int]:
    """How many bodies have started so far, by pool process."""
    return {int(path.stem): path.stat().st_size // _RECORD.size for path in directory.glob("*.starts")}


def read(directory: Path) -> list[Start]:
    """Every start, earliest first."""
    starts: list[Start] = []
    for path in directory.glob("*.starts"):
        data = path.read_bytes()
        whole = len(data) - len(data) % _RECORD.size  # a process killed while writing leaves half a record
        starts += [Start(at, index, status) for index, at, status in _RECORD.iter_unpack(data[:whole])]
    return sorted(starts)
