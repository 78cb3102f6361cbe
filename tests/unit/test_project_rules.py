"""Rules of the project: the map of folders, sizes of files and classes, constants, options."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def test_map_in_contributing_matches_the_import_rules() -> None:
    rules = re.search(r"\nlayers = \[\n(.*?)\n\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    drawn = re.search(r"```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert rules
    assert drawn
    layers = [row.split(" | ") for row in re.findall(r'"(.*)"', rules[1])]
    assert [re.split(r"\s{2,}", row)[0].split(", ") for row in drawn[1].splitlines()] == layers


def test_classes_have_at_most_fifteen_methods() -> None:
    """What has more has a second idea in it."""
    found: dict[str, int] = {}
    for folder in ("_celery", "worker", "backlog", "store_calls", "operations", "app"):
        for path in (ROOT / "celery_ratelimit" / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    names = [
                        each.name for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
                    ]
                    found[node.name] = sum(not name.startswith("__") for name in names)
    assert found["Gate"] > 10
    assert not {name: number for name, number in found.items() if number > 15}


@pytest.mark.parametrize(("name", "at_least"), [("backlog", 30), ("store_calls", 9)])
def test_tuning_constants_are_in_one_module_with_reasons(name: str, at_least: int) -> None:
    folder = ROOT / "celery_ratelimit" / name
    lines = (folder / "tuning.py").read_text().splitlines()
    numbers = [number for number, line in enumerate(lines) if re.match(r"[A-Z][A-Z_, ]* = ", line)]
    assert len(numbers) >= at_least
    assert all(lines[number - 1].startswith("#: ") for number in numbers)
    elsewhere = {
        name
        for path in folder.glob("*.py")
        if path.name != "tuning.py"
        for name in re.findall(r"^([A-Z][A-Z_, ]*) = -?[\d.]", path.read_text(), re.MULTILINE)
    }
    assert elsewhere <= {"LOT_KEYS"}, "the number of keys"


def test_an_option_of_several_commands_is_declared_in_one_place() -> None:
    declared = [
        ast.unparse(node)
        for path in sorted((ROOT / "celery_ratelimit" / "cli").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.option", "click.argument")
    ]
    flags = [re.findall(r"'(--?[\w/-]+|\w+)'", each)[0] for each in declared]
    twice = {flag for flag in flags if flags.count(flag) > 1}
    assert twice <= {"--for"}, "of a rate, and of a pause"
    assert len(flags) > 15


def test_files_have_at_most_three_hundred_lines() -> None:
    files = [*(ROOT / "celery_ratelimit").rglob("*.py"), *(ROOT / "lua").rglob("*.lua")]
    assert len(files) > 150
    assert not [path.name for path in files if len(path.read_text().splitlines()) > 300]


def test_tests_import_no_app_module() -> None:
    """Celery puts them into each app that is made there."""
    has_app = re.compile(r"^(app\b.* = |from .* import .*\bapp\b)", re.MULTILINE)
    apps = {path.stem for path in (ROOT / "tests" / "apps").glob("*.py") if has_app.search(path.read_text())}
    assert len(apps) > 20
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "apps"]
    taken = [
        (path.name, node.module)
        for path in tests
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").removeprefix("tests.apps.") in apps
    ]
    assert taken == []
