"""Celery's integration suite, out of the source distribution of the version that is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import celery

__all__ = ["fetch"]

#: Git knows nothing of it, and ``make clean`` removes it.
CACHE = Path(__file__).parents[2] / "build" / "celery-suite"

#: What the suite imports and this project does not.
NEEDS = ("pydantic",)


def fetch() -> tuple[Path, Path]:
    """The folder that the suite is to be run in, and one with packages that it needs besides; fetched once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    suite = CACHE / f"celery-{celery.__version__}"
    if not suite.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            _pip("download", "--no-deps", "--no-binary", "celery", "--dest", folder, f"celery=={celery.__version__}")
            _unpack(next(Path(folder).glob("celery-*.tar.gz")), Path(folder))
            (Path(folder) / suite.name).rename(suite)
    packages = CACHE / f"packages-{sys.implementation.cache_tag}"
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing and not packages.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            _pip("install", "--target", str(Path(folder) / packages.name), *missing)
            (Path(folder) / packages.name).rename(packages)
    return suite, packages


def _unpack(archive: Path, folder: Path) -> None:
    """Only the tests and their settings: a ``celery`` package beside them would be taken for the installed one."""
    with tarfile.open(archive) as tar:
        wanted = [
            member
            for member in tar.getmembers()
            if member.name.split("/")[1:2] in (["t"], ["pyproject.toml"]) and "/t/unit/" not in member.name
        ]
        tar.extractall(folder, wanted, filter="data")


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)
