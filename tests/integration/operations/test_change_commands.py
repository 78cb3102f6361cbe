"""Commands that change limits: ``set``, ``unset``, ``pause``, ``resume``, ``reset``, ``weight`` and ``history``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

from celery import Celery
from click.shell_completion import ShellComplete

from celery_ratelimit import Concurrency
from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.cli import ratelimit
from tests.shop import Run


def test_change_shows_the_state_before_and_after(run: Run, app: Celery) -> None:
    found = run("set", "stripe", "20/s", "--for", "10m", "--reason", "slow", "--by", "ann")
    assert found.exit_code == 0, found.output
    was, now = found.output.splitlines()
    assert was == "stripe: was 100/s, burst 5 (code)"
    assert now.startswith("stripe: now 20/s, burst 5 by ann ")
    assert now.endswith(", 'slow'")
    config = limiter_of(app).config("stripe")
    assert config.until is not None
    assert (config.by, config.reason, round(config.until - config.since)) == ("ann", "slow", 600)
    paused = run("pause", "stripe", "--by", "ann", "--reason", "no upstream").output
    assert "paused by ann until resumed, 'no upstream'" in paused
    assert "paused by ann until resumed, 'no upstream'" in run("status").output
    assert f"  {'paused':<18}by ann until resumed, 'no upstream'" in run("status", "stripe").output
    (told,) = json.loads(run("status", "stripe", "--json").output)
    assert (told["paused_by"], told["pause_reason"], told["reason"]) == ("ann", "no upstream", "slow")
    assert "paused" in run("unset", "stripe").output.splitlines()[1], "a pause is no rate"
    assert "paused" not in run("resume", "stripe").output.splitlines()[1]
    config = limiter_of(app).config("stripe")
    assert (config.paused_by, config.pause_reason) == ("", ""), "it has ended"
    run("set", "stripe", "30/s", "--burst", "9")
    assert run("set", "stripe", "20/s").output.splitlines()[1].startswith("stripe: now 20/s, burst 5 "), "the code's"
    assert run("unset", "stripe").output.splitlines()[1] == "stripe: now 100/s, burst 5 (code)"
    assert run("unset", "stripe").output == "stripe: nothing to change: 100/s, burst 5 (code)\n"
    verbs = [each["verb"] for each in json.loads(run("history", "stripe", "--json").output)]
    assert verbs == ["set", "pause", "unset", "resume", "set", "set", "unset"]
    said = json.loads(run("set", "tenant", "50/s", "--key", "tenant:7", "--burst", "3", "--json").output)
    assert (said["before"]["stored"], said["after"]["stored"], said["done"]) == (None, "50/s, burst 3", True)
    assert run("set", "gpu", "2").exit_code == 0
    assert limiter_of(app).config("gpu").in_force == Concurrency(2, name="gpu")
    assert run("set", "other", "5/s", "--force").exit_code == 0
    assert "5/s" in run("status", "other").output


def test_longer_pause_of_a_429_is_shown_without_the_reason_of_an_operator(run: Run, app: Celery) -> None:
    run("pause", "stripe", "--for", "1m", "--by", "ann", "--reason", "no upstream")
    limiter_of(app).throttled("stripe", retry_after=30, by="429 of task shop.charge", reason="of task 1")
    assert re.search(r"paused by ann until [^,]+, 'no upstream'", run("status").output), "the longer one"
    limiter_of(app).throttled("stripe", retry_after=600, by="429 of task shop.charge", reason="of task 1")
    for shown in (run("status").output, run("status", "stripe").output):
        assert re.search(r"by 429 of task shop\.charge until [^,]+$", shown, re.MULTILINE), shown
        assert "no upstream" not in shown
    found = run("pause", "stripe", "--for", "1m", "--by", "ann", "--reason", "no upstream").output
    assert "no upstream" not in found, "the longer pause stays"
    was, now = run("pause", "stripe", "--by", "bob").output.splitlines()
    assert "paused by 429 of task shop.charge until " in was
    assert now.endswith("paused by bob until resumed")


def test_weight_is_set_shown_and_returned_to_the_code(run: Run, app: Celery) -> None:
    app.conf.ratelimit_quotas["crm"] = {"rate": "10/s", "fair": "{tenant}", "weights": {"gold": 4}}
    assert "gold   4       4            -      -" in run("weight", "crm").output
    assert run("weight", "stripe").output == "stripe has no shares: the code gives it no fair=.\n"
    assert run("weight", "crm", "acme", "2", "--reason", "a deal", "--by", "ann").exit_code == 0
    shown = json.loads(run("weight", "crm", "--json").output)
    assert [shown[each]["weight"] for each in ("acme", "gold")] == [2, 4]
    assert shown["acme"]["by"] == "ann"
    assert run("weight", "crm", "acme", "code").exit_code == 0
    changes = json.loads(run("history", "crm", "--json").output)
    shown = [[each[name] for name in ("verb", "key", "reason")] for each in changes]
    assert shown == [["weight", "acme", "a deal"], ["weight", "acme", ""]]
    shown = [[each["before"]["shown"], each["after"]["shown"]] for each in changes]
    assert shown == [["", "weight 2"], ["weight 2", ""]]


def test_reset_fills_the_bucket(run: Run, app: Celery) -> None:
    limiter_of(app).acquire("stripe", cost=5)
    limiter_of(app).pause("stripe", 60)
    found = run("reset", "stripe")
    assert found.exit_code == 0, found.output
    assert found.output.splitlines()[1] == "stripe: now 5 of 5 permits free, 0 tasks starting soon"


def test_help_shows_what_each_command_does_in_a_line(run: Run) -> None:
    commands = run("--help").output.partition("Commands:\n")[2].splitlines()
    assert len(commands) == len(ratelimit.commands)
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []


def test_history_breaks_no_line(run: Run, app: Celery) -> None:
    limiter_of(app).pause("tenant", 5, key="a\nb", by="\x1b[31mred", reason="\0")
    lines = run("history", "tenant").output.splitlines()
    assert len(lines) == 2
    assert "a\\nb" in lines[1]
    assert "\\x1b[31mred" in lines[1]


def test_shell_completes_names_of_limits(app: Celery) -> None:
    complete = ShellComplete(ratelimit, {"obj": SimpleNamespace(app=app)}, "ratelimit", "_X")
    assert [each.value for each in complete.get_completions(["pause"], "st")] == ["stripe"]
    # As a shell asks it: the app is not made yet, its name is.
    words = "celery -A example_project.app ratelimit pause st"
    env = {**os.environ, "_CELERY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "5"}
    script = "import sys; sys.argv = ['celery']; from celery.__main__ import main; main()"
    found = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=240)
    assert found.stdout == "plain,stripe\n", found.stderr
