"""The map in CONTRIBUTING is that of the import rules."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_map_is_the_rules() -> None:
    rules = re.search(r"\nlayers = \[\n(.*?)\n\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    drawn = re.search(r"```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert rules
    assert drawn
    layers = [row.split(" | ") for row in re.findall(r'"(.*)"', rules[1])]
    assert [re.split(r"\s{2,}", row)[0].split(", ") for row in drawn[1].splitlines()] == layers
