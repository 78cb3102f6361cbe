"""The package's types, as users' own type checkers see them."""

from __future__ import annotations

import subprocess
import sys


def test_public_api_passes_mypy_in_strict_mode() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "tests/typing/api.py"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert found.returncode == 0, found.stdout + found.stderr
