"""A checkout works as it lies there, and an installation that lacks something says so."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

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
