"""What is installed from the wheel works: the Lua is in it, and a worker throttles with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_tests_pass_from_the_wheel(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path / "dist", ROOT], check=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.startswith("celery_ratelimit-")
    subprocess.run([*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel], check=True)

    # The tests alone, away from the source tree, on what the wheel has installed.
    elsewhere = tmp_path / "elsewhere"
    for name in ("tests", "benchmarks"):
        shutil.copytree(ROOT / name, elsewhere / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    shutil.copy(ROOT / "pyproject.toml", elsewhere)
    where = "import celery_ratelimit as c, importlib.resources as r; print(c.__file__, r.files('celery_ratelimit.lua'))"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "site"), "HOME": str(tmp_path)}
    env["RATELIMIT_TEST_SERVER"] = server.binary
    found = subprocess.run([sys.executable, "-c", where], cwd=elsewhere, env=env, capture_output=True, text=True)
    assert found.stdout.count(str(tmp_path / "site")) == 2, found
    subset = [
        "tests/lua/test_traces.py",
        "tests/integration/worker/test_throttle_modes.py::test_wait_holds_the_task_in_the_worker",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *subset]
    result = subprocess.run(command, cwd=elsewhere, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
