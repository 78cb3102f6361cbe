"""Child processes in groups of their own, and what the kernel says about them (Linux: ``/proc``).

A group of its own means that Ctrl-C reaches only the benchmark, which then stops its children in order, and
that every descendant of a worker can be found, counted and ended by one number.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TICK = os.sysconf("SC_CLK_TCK")


def environment(root: Path = ROOT) -> dict[str, str]:
    """This process's environment, in which Python finds the packages of a copy of the repository first."""
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def spawn(command: Sequence[str], log: Path, env: Mapping[str, str], root: Path = ROOT) -> subprocess.Popen[bytes]:
    """Start ``command`` at the root of the repository, or of another copy of it, with its output in ``log``."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=root,
            env={**environment(root), **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def stop(processes: Sequence[subprocess.Popen[bytes]], grace: float = 5.0) -> None:
    """SIGTERM to each leader, and after ``grace`` seconds SIGKILL to whatever is left of each group."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:  # a second Ctrl-C cuts the grace short, not the kill
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def cpu_seconds(leader: int) -> float:
    """User and system time used so far by the process group of ``leader``, reaped children included."""
    total = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The name, in parentheses, may hold spaces: what follows it is what can be split.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            state, group, times = fields[0], int(fields[2]), [int(field) for field in fields[11:15]]
            if group == leader and state != "Z":  # a zombie's time is its parent's once it has been reaped
                total += sum(times)
    return total / _TICK


def rss_mb(pid: int) -> float:
    """Resident memory of one process, in MB; 0 if it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return 0.0
