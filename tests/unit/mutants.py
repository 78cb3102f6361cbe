"""``make mutants``: changes one operator, constant, condition or statement of the pure Python modules at a time.

``python -m tests.unit.mutants [--every N] [--first K] [module …]``: of the modules of :data:`TESTS` that are named (all
of them if none is), each Nth change, from the Kth on. Prints the changes that no test notices, and the share of the
rest. A change takes a second or two: its tests run in a process that is forked after the imports of other packages.

Changes that make no difference, and so survive: ``<`` for ``<=`` between times, or where both sides give the same; 1.0
for 0.0 where it stands for a time long ago; the removal of a cache, of a shortcut to the same result, or of a
``return`` of ``None`` or ``False`` at an end; ``or ()`` for the type checker; a default of ``min`` or ``get`` that is
only compared with.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import re
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple, NoReturn

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "celery_ratelimit"
#: The tests of what a call of the limiter asks for.
CALLS = "unit/limiter unit/limits integration/limiter/test_keys_and_args.py lua/test_reservations.py lua/test_stored.py"
#: The tests of each module or folder, below ``tests``: those that notice most changes first.
TESTS = {
    "app/options.py": "unit/app/test_policy.py unit/app unit/worker/test_next_action.py",
    "app/plan.py": "unit/app/test_plan.py unit/app unit/limits/test_priority_reserve.py",
    "app/settings.py": "unit/app/test_settings.py unit/app",
    "errors.py": "unit/test_errors.py unit/limits",
    "feedback.py": "unit/test_feedback.py unit/app/test_upstream_refusals.py",
    "limiter/argument_checks.py": CALLS,
    "limiter/limit_request.py": "unit/limits unit/limiter unit/app/test_plan.py lua/test_reservations.py "
    "lua/test_priority_reserve.py",
    "limiter/resolve_request.py": CALLS,
    "limits/adaptive.py": "unit/limits lua/test_adaptive.py",
    "limits/breaker.py": "unit/limits lua/test_breaker.py",
    "limits/priority_reserve.py": "unit/limits lua/test_priority_reserve.py",
    "limits/parse_limit.py": "unit/limits unit/app/test_settings.py unit/app/test_plan.py",
    "limits/stored_settings.py": "unit/limits lua/test_stored.py lua/test_shadow_switch.py",
    "limits/": "unit/limits unit/app/test_plan.py unit/app/test_argument_parts.py unit/app/test_missing_key.py",
    "name_suggestions.py": "unit/test_words.py",
    "operations/forecast.py": "unit/operations/test_forecast.py",
    "words.py": "unit/test_words.py",
    "worker/capacity.py": "unit/worker/test_capacity.py unit/worker/test_briefer_tasks.py",
    "worker/expected_turns.py": "unit/worker/test_expected_turns.py unit/worker/test_capacity.py "
    "unit/worker/test_briefer_tasks.py",
    "worker/next_action.py": "unit/worker/test_next_action.py unit/worker/test_expected_turns.py",
}
#: Of pytest: without tests that start a process, which would load the unchanged code; with packages that are imported
#: before it starts.
OPTIONS = (
    *("-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-m", "not slow"),
    *("-k", "not another_process and not does_not_import and not credential_provider_error"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
#: Imported before the processes are forked.
PRELOADED = ("celery.app.control", "fakeredis", "httpx", "hypothesis", "kombu.transport.redis", "redis.asyncio", "yaml")
COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
FUNCTIONS = {"min": "max", "max": "min", "floor": "ceil", "ceil": "floor", "any": "all", "all": "any"}
#: Parts that stay as they are: types, decorators and base classes; texts, sizes of caches, ``strict=`` as a safeguard,
#: and the figures at the top of a module.
UNCHANGED_FIELDS = {"annotation", "returns", "decorator_list", "bases"}
UNCHANGED = re.compile(r"f?['\"]|__all__ = |if TYPE_CHECKING|logger\.|(strict|maxsize)=|[A-Z_, ()]+ = [(0-9.,_ )]+$")
#: Seconds of processor time after which a run of the tests counts as failed: the change has made a loop endless.
LONGEST = 60


class Mutant(NamedTuple):
    file: str
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        same = len(os.path.commonprefix([self.before, self.after]))  # noqa: RUF071
        before, after = (line[max(0, same - 60) : same + 60].strip() for line in (self.before, self.after))
        return f"{self.file}:{self.line}: {before}  ->  {after}"


def mutants_of(file: str) -> list[Mutant]:
    """The changes of a module, line by line."""
    tree = ast.parse((PACKAGE / file).read_text())
    lines = ast.unparse(tree).splitlines()
    mutants = []
    for line in _change_each(tree):
        source = ast.unparse(tree)
        before, after = next(pair for pair in zip(lines, source.splitlines(), strict=False) if pair[0] != pair[1])
        mutants.append(Mutant(file, line, before, after, source))
    return sorted(mutants, key=lambda mutant: mutant.line)


def _change_each(parent: ast.AST) -> Iterator[int]:
    """Make each change below a node, and undo it when the next is wanted; yields its line."""
    for field, value in ast.iter_fields(parent):
        for place, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST) or field in UNCHANGED_FIELDS or UNCHANGED.match(ast.unparse(node)):
                continue
            for other in _changes(node, field):
                _put(parent, field, place, other)
                yield getattr(node, "lineno", 0)
                _put(parent, field, place, node)
            yield from _change_each(node)


def _put(parent: ast.AST, field: str, place: int, node: ast.AST) -> None:
    value = getattr(parent, field)
    if isinstance(value, list):
        value[place] = node
    else:
        setattr(parent, field, node)


def _changes(node: ast.AST, field: str) -> Iterator[ast.AST]:
    """What a node becomes."""
    match node:
        case ast.Compare(left, [operator], others):
            for each in COMPARISONS[type(operator)]:
                yield ast.Compare(left, [each()], others)
        case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
            yield ast.BinOp(left, ARITHMETIC[type(operator)](), right)
        case ast.BoolOp(operator, values):
            for one in values:  # each is left out
                rest = [value for value in values if value is not one]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Call(ast.Name(name) as function, arguments, keywords) if name in FUNCTIONS:
            yield ast.Call(ast.Name(FUNCTIONS[name], function.ctx), arguments, keywords)
        case ast.Call(ast.Attribute(value, name) as function, arguments, keywords) if name in FUNCTIONS:
            yield ast.Call(ast.Attribute(value, FUNCTIONS[name], function.ctx), arguments, keywords)
        case (
            ast.Raise() | ast.Return(ast.AST()) | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Expr(ast.Call())
        ):
            yield ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
    if field == "test" and isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr):
        yield ast.UnaryOp(ast.Not(), node)


class _Changed(SourceFileLoader):
    """Loads a module with a change, in place of the file."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(_name_of(mutant.file), str(PACKAGE / mutant.file))
        self._source = mutant.source

    def find_spec(self, name: str, *args: Any) -> ModuleSpec | None:
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, name: str) -> CodeType:
        return compile(self._source, self.path, "exec")


def _name_of(file: str) -> str:
    return "celery_ratelimit." + file.removesuffix(".py").replace("/", ".")


def _killer(mutant: Mutant | None, tests: str) -> str | None:
    """The first test that fails with this change; ``None``: all pass."""
    with tempfile.TemporaryFile("w+") as output:
        if not (child := os.fork()):
            _run(mutant, tests, output.fileno())
        status = os.waitpid(child, 0)[1]
        output.seek(0)
        text = output.read()
    if status == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", text, re.MULTILINE)
    return failed[1] if failed else "too long" if os.WIFSIGNALED(status) else "an error"


def _run(mutant: Mutant | None, tests: str, output: int) -> NoReturn:
    os.dup2(output, 1)
    os.dup2(output, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (LONGEST, LONGEST))
    if mutant is not None:
        sys.meta_path.insert(0, _Changed(mutant))
    status = pytest.main([*OPTIONS, *[f"{ROOT}/tests/{each}" for each in tests.split()]])
    sys.stdout.flush()
    os._exit(status)


def tests_of(file: str) -> str:
    """The tests of a module."""
    return next(tests for start, tests in TESTS.items() if file.startswith(start))


def files_of(start: str) -> list[str]:
    """The modules of a row of :data:`TESTS`."""
    found = (PACKAGE / start).glob("*.py")
    return [start] if start.endswith(".py") else sorted(f"{start}{each.name}" for each in found)


def main() -> int:
    parser = argparse.ArgumentParser(description="Changes the pure modules, and says which changes no test notices.")
    parser.add_argument("files", nargs="*", help="modules, as worker/next_action.py; all of the table if none is named")
    parser.add_argument("--every", type=int, default=1, help="take each Nth change only")
    parser.add_argument("--first", type=int, default=0, help="begin with the change of this number")
    options = parser.parse_args()
    files = options.files or list(dict.fromkeys(file for start in TESTS for file in files_of(start)))
    mutants = [mutant for file in files for mutant in mutants_of(file)][options.first :: options.every]
    os.chdir(ROOT)
    for module in PRELOADED:
        importlib.import_module(module)
    for tests in dict.fromkeys(map(tests_of, files)):
        if failed := _killer(None, tests):
            raise SystemExit(f"without a change, {failed} of these tests: {tests}")
    survivors, numbers, killed = [], Counter[str](), Counter[str]()
    for number, mutant in enumerate(mutants, 1):
        killer = _killer(mutant, tests_of(mutant.file))
        numbers[mutant.file] += 1
        killed[mutant.file] += killer is not None
        if killer is None:
            survivors.append(mutant)
        print(f"{number} of {len(mutants)}: {killer or 'SURVIVES'}  {mutant}", flush=True)
    print("", *survivors, sep="\n")
    for file, number in numbers.items():
        print(f"{file}: {killed[file]} of {number}")
    print(f"{killed.total()} of {len(mutants)} noticed: {killed.total() / max(1, len(mutants)):.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
