"""A checkout works as it lies there, the wheel has all parts, and users' type checkers accept the package."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest
import redis

import celery_ratelimit
from celery_ratelimit import ConfigurationError
from celery_ratelimit.store import script
from celery_ratelimit.testing import EmbeddedServer

ROOT = Path(__file__).resolve().parents[3]
DECIDES = """
import sys
sys.meta_path = [each for each in sys.meta_path if "editable" not in repr(each)]
sys.path[:] = [".", *(each for each in sys.path if each)]
from celery_ratelimit import Limit, Limiter
print(Limiter.from_url(sys.argv[1]).acquire(Limit("1/s", name="x")).allowed)
"""


def test_scripts_of_a_checkout_are_found(server: EmbeddedServer) -> None:
    ran = subprocess.run([sys.executable, "-c", DECIDES, server.url], cwd=ROOT, capture_output=True, text=True)
    assert ran.stdout == "True\n", ran.stderr


def test_missing_script_is_an_error_when_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: str) -> str:
        return Path(str(files("celery_ratelimit.lua")), path.replace("now", "gone")).read_text()

    monkeypatch.setattr(script, "_read", read)
    script._check.cache_clear()
    with pytest.raises(ConfigurationError, match=r"has no Lua script 'acquire' \(.*gone.lua'\): install it anew"):
        script.Script("acquire")
    script._check.cache_clear()


def test_public_api_passes_mypy_in_strict_mode() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "tests/typing/api.py"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
def test_tests_pass_from_the_wheel(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path / "dist", ROOT], check=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.startswith(f"celery_ratelimit-{celery_ratelimit.__version__}-")
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0].split("-")[0] for name in packed} == {"celery_ratelimit"}
    sources = [each for each in (ROOT / "celery_ratelimit").rglob("*") if each.is_file() and each.suffix != ".pyc"]
    assert {str(each.relative_to(ROOT)) for each in sources} <= packed, "templates, scripts of the page, py.typed"
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
