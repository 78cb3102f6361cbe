"""The demo's child processes: started so that they are always found again, and stopped in order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType


class Interrupted(BaseException):
    """The user asked us to stop: Ctrl-C, SIGTERM, or the terminal was closed."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Interrupts:
    """Turns SIGINT, SIGTERM and SIGHUP into one :class:`Interrupted`, raised at most once.

    Never while :meth:`held`: between the fork of a child and the line that remembers it, an exception
    would leave a process behind. Once it has been raised, further signals are ignored, as cleaning up
    takes a few seconds at most.
    """

    def __init__(self) -> None:
        self._held = 0
        self._pending: int | None = None
        self._spent = False
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._receive)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self._pending = signum
        if not self._held:
            self._raise()

    def _raise(self) -> None:
        if self._pending is not None and not self._spent:
            self._spent = True
            raise Interrupted(self._pending)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Put an interruption off to the end of the block."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if not self._held:
                self._raise()

    def ignore(self) -> None:
        """From here on nothing interrupts: the way out has begun."""
        self._spent = True


class ChildError(Exception):
    """A child process did not do what it was started for; ``log`` is the end of its log."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


class Child:
    """A Python process in a session of its own, so that Ctrl-C in the terminal reaches its owner alone.

    Its output goes to ``<directory>/<name>.log``.
    """

    def __init__(self, name: str, arguments: Sequence[str], env: Mapping[str, str], directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env=env,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raises :class:`ChildError` if the process has ended."""
        if self._process.poll() is not None:
            raise ChildError(f"{self.name} ended with exit code {self._process.returncode}", self.tail())

    def tail(self, lines: int = 15) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def terminate(self) -> None:
        """Ask the process to stop. Only the leader: a Celery worker stops its pool processes itself."""
        self._process.terminate()

    def kill_after(self, seconds: float) -> None:
        """Give it that long, then kill whatever is left of its process group."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))
        # Also when the leader has ended: pool processes of one that died badly live on without it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def stop(children: Sequence[Child], grace: float = 5.0) -> None:
    """Stop all of them at once: SIGTERM, and SIGKILL for what is still there after ``grace`` seconds."""
    deadline = time.monotonic() + grace
    for child in children:
        child.terminate()
    for child in children:
        child.kill_after(deadline - time.monotonic())
