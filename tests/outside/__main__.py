"""The command line: ``python -m tests.outside [--all] [test …]``.

Runs a part of Celery's integration suite twice, side by side: as it is, and with every task throttled by us. What
passes without us must pass with us, but for the few differences that are meant; and at least half of the deliveries
must have been throttled, or it shows nothing. What fails with us is run once more, with nothing beside it.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import celery
from rich.console import Console

from tests.outside.selection import ALL, DIFFERENCES, PART
from tests.outside.source import CACHE
from tests.outside.suite import Result, started

#: The least share of deliveries that must have been throttled.
SHARE = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__)
    parser.add_argument("--all", action="store_true", help="all of " + ", ".join(ALL))
    parser.add_argument("tests", nargs="*", metavar="test", help="as for pytest, below the suite's folder")
    options = parser.parse_args(argv)
    # A SIGTERM stops the children as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Celery {celery.__version__}, its own suite, without us and with us; the logs are in {CACHE}\n")
    tests = options.tests or (ALL if options.all else PART)
    try:
        with (
            console.status("running"),
            started("without", tests, limited=False) as without,
            started("with", tests, limited=True) as with_us,
        ):
            while without.running() or with_us.running():
                time.sleep(0.2)
            plain, limited = without.result(), with_us.result()
        again: Result | None = None
        if broken := _broken(plain, limited):
            with (
                console.status("running those that fail with us once more"),
                started("again", broken, limited=True) as run,
            ):
                again = run.result()
    except (RuntimeError, subprocess.CalledProcessError) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; nothing is left running")
        return 130
    return _report(console, plain, limited, again)


def _broken(plain: Result, limited: Result) -> list[str]:
    """What passes without us and does not with us, and is not meant to."""
    passed = plain.those("passed")
    return [test for test in passed if limited.outcomes.get(test) != "passed" and test not in DIFFERENCES]


def _report(console: Console, plain: Result, limited: Result, again: Result | None) -> int:
    for name, result in (("without us", plain), ("with us", limited)):
        console.print(
            f"{name:<10}  {len(result.those('passed')):>4} passed  {len(result.those('failed')):>3} failed"
            f"  {len(result.those('skipped')):>3} skipped  {result.seconds:>5.0f} s"
        )
    share = limited.throttled / limited.received if limited.received else 0.0
    console.print(f"\n{limited.throttled} of {limited.received} deliveries were throttled: {share:.0%}")
    for test in plain.those("failed"):
        console.print(f"fails without us: {test}", markup=False)
    for test in plain.those("passed"):
        if test in DIFFERENCES and limited.outcomes.get(test) != "passed":
            console.print(f"is meant to differ: {test}: {DIFFERENCES[test]}", markup=False)
    broken = _broken(plain, limited)
    # Celery's own CI runs each test that fails up to five times: some of them measure time.
    for test in [test for test in broken if again is not None and again.outcomes.get(test) == "passed"]:
        console.print(f"passes with us at the second attempt, with nothing beside it: {test}", markup=False)
        broken.remove(test)
    for test in broken:
        console.print(f"{test} passes without us, and with us {_became(limited, test)}", style="red", markup=False)
        console.print(limited.reasons.get(test, ""), markup=False)
    if share < SHARE:
        console.print(f"Less than {SHARE:.0%} of the deliveries were throttled: this shows nothing.", style="red")
    if broken or share < SHARE:
        return 1
    console.print("What passes without us passes with us.", style="green")
    return 0


def _became(result: Result, test: str) -> str:
    outcome = result.outcomes.get(test)
    return {"failed": "fails", "skipped": "is skipped"}.get(outcome or "", "is not run")


if __name__ == "__main__":
    sys.exit(main())
