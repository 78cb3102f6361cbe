"""What users may rely on, written down in ``public_api.txt``: names, signatures, settings, commands, metrics, signals.

After a change that is meant: ``python -m tests.unit.test_public_api > tests/unit/public_api.txt``, and a line in
CHANGELOG.md.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from celery_ratelimit.app.settings import DEFAULTS
from celery_ratelimit.cli import ratelimit

MODULES = ("", ".signals", ".feedback", ".transports", ".testing", ".prometheus", ".opentelemetry", ".pytest_plugin")
#: What the other modules of the package use of the public classes.
INTERNAL = {"extra", "interval", "method", "most", "size", "wire"}
ROOT = Path(__file__).parents[2]
WRITTEN = Path(__file__).with_name("public_api.txt")


def public_api() -> Iterator[str]:
    for module in MODULES:
        names = vars(importlib.import_module(f"celery_ratelimit{module}"))["__all__"]
        for name in names:
            value = getattr(importlib.import_module(f"celery_ratelimit{module}"), name)
            yield f"{f'{module}.{name}'.lstrip('.')}{_signature(value)}"
            if inspect.isclass(value):
                yield from (f"    {member}" for member in _members(value))
    yield from (f"setting {name} = {default!r}" for name, default in DEFAULTS.items())
    for name, command in sorted(ratelimit.commands.items()):
        yield f"celery ratelimit {name} {' '.join(_parameters(command))}".rstrip()
    metrics = Path(importlib.import_module("celery_ratelimit.prometheus").__file__ or "").read_text()
    yield from (f"metric {name}" for name in sorted(set(_metrics(metrics))))


def _members(value: type) -> list[str]:
    """The public attributes and methods that our classes define, with their signatures."""
    own = [base for base in value.__mro__ if base.__module__.startswith("celery_ratelimit")]
    names = {name for base in own for name in (*vars(base), *vars(base).get("__annotations__", ()))}
    return sorted(
        f"{name}{_signature(getattr(value, name, None))}"
        for name in names
        if not name.startswith("_") and name not in INTERNAL
    )


def _signature(value: Any) -> str:
    if not callable(value) or (inspect.isclass(value) and issubclass(value, (tuple, BaseException))):
        return ""
    found = inspect.signature(value)
    parameters = [
        each.replace(annotation=each.empty)
        for each in found.parameters.values()
        if each.name != "self" and not each.name.startswith("_")
    ]
    return str(found.replace(parameters=parameters, return_annotation=found.empty))


def _parameters(command: click.Command) -> list[str]:
    params = command.params
    return [str(each.human_readable_name) if isinstance(each, click.Argument) else each.opts[-1] for each in params]


def _metrics(source: str) -> list[str]:
    return re.findall(r'(?:Family\(|_gauge\()\s*(?:f"\{_PREFIX\}_|")(\w+)"', source)


def test_public_api_is_as_written_down() -> None:
    assert [*public_api()] == WRITTEN.read_text().splitlines()


def test_settings_page_lists_each_setting() -> None:
    page = (ROOT / "docs/settings.md").read_text()
    assert [name for name in DEFAULTS if f"| `{name}` |" not in page] == []


def test_metrics_page_lists_each_metric() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    metrics = [line.removeprefix("metric ") for line in public_api() if line.startswith("metric ")]
    assert [name for name in metrics if f"`{name}`" not in page and f"`{name}_total`" not in page] == []


if __name__ == "__main__":
    print(*public_api(), sep="\n")
