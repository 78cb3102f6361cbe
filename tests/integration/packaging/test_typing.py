"""The package's types, as users' own type checkers see them."""

from __future__ import annotations

import subprocess
import sys


def test_what_users_write_passes_mypys_strict_mode() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "tests/typing/api.py"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert found.returncode == 0, found.stdout + found.stderr
