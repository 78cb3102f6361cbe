"""``make mutants``: changes one operator, constant or condition of the Lua at a time; a test has to fail each time.

``python -m tests.lua.mutants [--every N] [--first K] [file …]``: of the scripts below ``lua/`` that are named (all of
them if none is), each Nth change, from the Kth on. Prints the changes that no test notices, and the share of the rest.
The tests have to pass without a change, first. A change that a test notices takes some seconds, one that no test
notices a run of all tests of :data:`TESTS`. It is not part of CI: run it for the file that you change.

Changes that make no difference, and so survive: ``<`` for ``<=`` where both branches give the same at that microsecond,
or where no lease or slot can end at it; a bound that is off by one where the next check is exact, or where no value
lies between the two; 1 for 0 where it stands for a time long ago; a write of what is there already, or a command that
finds nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
#: What a piece of code becomes, by its pattern; each place is a change of its own.
CHANGES = (
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" == ", " ~= "),
    (r" ~= ", " == "),
    (r" \+ (?!0\b)", " - "),  # " + 0" makes a number of a text
    (r" - ", " + "),
    (r" \* ", " / "),
    (r" / ", " * "),
    (r" and ", " or "),
    (r" or ", " and "),
    (r"\bnot ", ""),
    (r"\bmin\(", "max("),
    (r"\bmax\(", "min("),
    (r"\bfloor\(", "ceil("),
    (r"\bceil\(", "floor("),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r"(?<![\w.\[%'])0(?![\w.'])", "1"),
    (r"(?<![\w.\[%'])1(?![\w.'])", "2"),
)
#: Below ``tests``. A script that only a cluster or a command needs has its tests beside those of its callers.
TESTS = (
    *("lua/test_*.py", "integration/limiter/test_*.py", "integration/operations/test_*.py"),
    "integration/store/test_cluster.py",
)
#: Test files that run before the others.
TRIED_FIRST = 6
#: Seconds after which a run of the tests counts as failed: the change has made a loop endless.
LONGEST = 900


class Mutant(NamedTuple):
    file: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before.strip()}  ->  {self.after.strip()}"


def mutants_of(file: str) -> Iterator[Mutant]:
    """The changes of a script, line by line; comments and texts stay as they are."""
    for number, line in enumerate((ROOT / "lua" / file).read_text().splitlines(), 1):
        code = line.split("--")[0]
        if "ARGV[" in code or "unpack(" in code or "KEYS[" in code:
            continue  # a change would only move an argument
        texts = [match.span() for match in re.finditer(r"'[^']*'", code)]
        for pattern, other in CHANGES:
            for match in re.finditer(pattern, code):
                if not any(start < match.end() and match.start() < end for start, end in texts):
                    yield Mutant(file, number, line, line[: match.start()] + other + line[match.end() :])


def main() -> int:
    parser = argparse.ArgumentParser(description="Changes the Lua, and says which changes no test notices.")
    parser.add_argument("files", nargs="*", help="scripts, as algorithms/token_bucket.lua; all if none is named")
    parser.add_argument("--every", type=int, default=1, help="take each Nth change only")
    parser.add_argument("--first", type=int, default=0, help="begin with the change of this number")
    options = parser.parse_args()
    files = options.files or sorted(path.relative_to(ROOT / "lua").as_posix() for path in ROOT.glob("lua/**/*.lua"))
    mutants = [mutant for file in files for mutant in mutants_of(file)][options.first :: options.every]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="celery-ratelimit-mutants-") as name:
        copy = Path(name, "copy")
        ignored = (".git", ".venv", "build", "__pycache__", "*.egg-info")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*ignored))
        # Else the scripts are those of the checkout that is installed.
        (copy / "celery_ratelimit/lua").unlink(missing_ok=True)
        (copy / "celery_ratelimit/lua").symlink_to("../lua")
        paths = sorted(path for folder in TESTS for path in copy.glob(f"tests/{folder}"))
        texts = {path.relative_to(copy / "tests").as_posix(): path.read_text().lower() for path in paths}
        if failed := _first_failure(copy, list(texts)):
            raise SystemExit(f"no change was tried, as the tests of the unchanged Lua fail: {failed}")
        noticed: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for number, mutant in enumerate(mutants, 1):
            killer = _killer(copy, mutant, _likely_first(mutant.file, texts, noticed[mutant.file]))
            if killer is None:
                survivors.append(mutant)
            else:
                noticed[mutant.file][killer] += 1
            print(f"{number} of {len(mutants)}: {killer or 'SURVIVES'}  {mutant}", flush=True)
    killed = len(mutants) - len(survivors)
    print(f"\n{killed} of {len(mutants)} noticed: {killed / max(1, len(mutants)):.1%}", *survivors, sep="\n")
    return 0


def _likely_first(file: str, texts: dict[str, str], noticed: Counter[str]) -> list[str]:
    """The test files: first those that have noticed most changes of the script, then those that mention it most."""
    name = Path(file).stem
    words = name.split("_")

    def rank(test: str) -> tuple[int, ...]:
        text = texts[test]
        named = sum(word in Path(test).stem for word in words)
        return noticed[test], named, text.count(name), sum(map(text.count, words))

    return sorted(texts, key=rank, reverse=True)


def _killer(copy: Path, mutant: Mutant, tests: list[str]) -> str | None:
    """The first test file that fails with this change; ``None``: all pass."""
    path = copy / "lua" / mutant.file
    original = path.read_text()
    lines = original.splitlines(keepends=True)
    lines[mutant.line - 1] = mutant.after + "\n"
    path.write_text("".join(lines))
    try:
        # Most changes are noticed by these few, and to collect all the others takes some seconds.
        return _first_failure(copy, tests[:TRIED_FIRST]) or _first_failure(copy, tests[TRIED_FIRST:])
    finally:
        path.write_text(original)


def _first_failure(copy: Path, tests: list[str]) -> str | None:
    """The first of these files that fails, or what else went wrong; ``None``: all pass."""
    options = ("-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-m", "not slow")
    command = [sys.executable, "-m", "pytest", *options, *[f"tests/{each}" for each in tests]]
    try:
        env = {**os.environ, "PYTHONPATH": str(copy)}
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return "too long"
    if done.returncode == 0:
        return None
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+?\.py)", done.stdout, re.MULTILINE)
    return failed[1] if failed else "an error"


if __name__ == "__main__":
    sys.exit(main())
