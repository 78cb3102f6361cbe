"""The command line when something is down, misspelt or too narrow: each answer is of use."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from celery_ratelimit.app.app_store import limiter_of
from celery_ratelimit.app.survey import limits_shown
from celery_ratelimit.cli.shown import table_of
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.shop import Run, make_app, park

NOWHERE = "redis://:secret@127.0.0.1:1/0"


# -- Something is down -------------------------------------------------------------------------------------------------


@pytest.fixture
def no_broker(server: EmbeddedServer, store: redis.Redis) -> Celery:
    app = make_app(server.url, ratelimit_fleet="one")  # else another broker's backlogs would be read
    park(app, "stripe", 5)
    app.conf.broker_url = NOWHERE
    app.amqp.__dict__.pop("_producer_pool", None)
    return app


@pytest.fixture
def full_broker(server: EmbeddedServer, store: redis.Redis) -> Iterator[Celery]:
    with embedded_server() as full, redis.Redis.from_url(full.url) as client:
        app = make_app(server.url, ratelimit_fleet="one")
        park(app, "stripe", 5)
        app.conf.broker_url = full.url
        client.config_set("maxmemory", 1)
        yield app


@pytest.mark.parametrize(("broker", "says"), [("no_broker", "does not answer: "), ("full_broker", "refuses what ")])
def test_unusable_broker_is_an_error_of_one_line_and_no_task_is_lost(
    run: Run, store: redis.Redis, request: pytest.FixtureRequest, broker: str, says: str
) -> None:
    app = request.getfixturevalue(broker)
    for arguments in ("release stripe stripe--1", "release stripe --yes", "drain"):
        park(app, "tenant", 5, task="shop.sync")
        found = run(*arguments.split(), of=app)
        assert found.exit_code == 1
        assert found.output.startswith(f"Error: the broker {says}"), found.output
        assert len(found.output.splitlines()) == 1
        assert "secret" not in found.output
    assert sum(store.zcard(key) for key in store.keys("*:parked@one") + store.keys("*:in_flight@one")) == 10
    for arguments in ("explain unknown", "check --fleet"):
        found = run(*arguments.split(), of=app)
        assert (found.exit_code, "so no worker was asked" in found.output) == (1, True), found.output
        assert "no worker that has answered has it" not in found.output
    assert (
        "  queued            ? in queue celery, messages of all tasks" in run("status", "stripe", of=app).output
        or broker == "full_broker"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["explain", "unknown"], "the broker does not answer, so no worker was asked"),
        (["check", "--fleet"], "the broker does not answer, so no worker was asked"),
        (["status", "stripe"], "  queued            ? in queue celery, messages of all tasks"),
    ],
)
def test_hung_broker_is_waited_for_a_bounded_time(
    run: Run, server: EmbeddedServer, store: redis.Redis, arguments: list[str], says: str
) -> None:
    with embedded_server() as hung:
        app = make_app(server.url)
        app.conf.broker_url = hung.url
        hung.freeze()
        found = run(*arguments, of=app)
    assert says in found.output, found.output


@pytest.mark.parametrize(
    "arguments", ["status", "set stripe 1/s", "history stripe", "parked stripe", "explain x", "drain"]
)
def test_lost_store_is_an_error_of_one_line(run: Run, app: Celery, arguments: str) -> None:
    app.conf.ratelimit_url = NOWHERE
    found = run(*arguments.split())
    assert found.exit_code == 1
    assert found.output.startswith("Error: the store at redis://**@127.0.0.1:1/0 does not answer: "), found.output
    assert "refused. Check that it runs, that this machine reaches it, and that ratelimit_url is right" in found.output
    assert len(found.output.splitlines()) == 1


#: As an operator writes it, and as it is shown.
BROKERS = {
    "redis://:se/cret@localhost:6379/0": "'redis://…': in user and password, write '/' as %2F",
    "redis://:se#cret@localhost:6379/0": "'redis://…': in user and password, write '/' as %2F",
    "amqp://me:se?cret@localhost//": "'amqp://…': in user and password, write '/' as %2F",
    "redis://:secret@[::1/0": "'redis://…': in user and password, write '/' as %2F",
    "sentinel://:secret@a:1;sentinel://:se/cret@b:2": "'sentinel://…': in user and password, write '/' as %2F",
    "reddis://:secret@h:1/0": "'reddis://**@h:1/0': it has no such transport, or the library of it is missing",
}


@pytest.mark.parametrize("url", BROKERS)
@pytest.mark.parametrize("arguments", ["status", "check", "metrics --once", "explain x", "web --port 0", "watch"])
def test_unreadable_broker_url_is_an_error_without_its_password(
    run: Run, app: Celery, arguments: str, url: str
) -> None:
    app.conf.broker_url = url
    found = run(*arguments.split())
    assert (found.exit_code, found.output.startswith("Error: kombu cannot read the broker's URL ")) == (1, True), found
    assert BROKERS[url] in found.output
    assert len(found.output.splitlines()) == 1
    assert "se/" not in found.output
    assert "cret" not in found.output


@pytest.mark.parametrize("arguments", [["explain", ""], ["explain", "\udced"], ["release", "\udced"], ["release", ""]])
def test_invalid_task_id_is_an_error_of_one_line(run: Run, server: EmbeddedServer, arguments: list[str]) -> None:
    app = make_app(server.url)
    app.backend_cls = server.url  # which complains of such ids as its results are collected
    found = run(*arguments, of=app)
    assert (found.exit_code, len(found.output.splitlines())) == (2, 1), found.output


@pytest.mark.parametrize("comes_back", [False, True])
def test_top_goes_on_while_the_store_is_lost(
    run: Run, server: EmbeddedServer, store: redis.Redis, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    with embedded_server() as lost:
        app = make_app(server.url)
        app.conf.ratelimit_url = lost.url
        happens = [lost.freeze, *([lost.thaw] if comes_back else [])]

        def sleep(seconds: float) -> None:
            assert seconds == 0.5
            if not happens:
                raise KeyboardInterrupt
            happens.pop(0)()

        monkeypatch.setattr(sys.modules["celery_ratelimit.cli.status"], "sleep", sleep)
        found = run("top", "--every", "0.5", of=app)
    assert found.exit_code == 0, found.output
    assert "stripe" in found.output
    assert ("The store does not answer; this was so at " in found.output) is not comes_back


def command(*arguments: str, of: str, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", of, "ratelimit", *arguments],
        env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{os.getcwd()}", **env},
        cwd=path,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("arguments", [["status"], ["set", "a", "1/s"], ["check"], ["watch"], ["metrics", "--once"]])
def test_tasks_that_cannot_be_imported_are_an_error_of_one_line(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "late.py").write_text(
        "from celery import Celery\n"
        "app = Celery('late', broker='redis://127.0.0.1:1/0', include=['late_tasks'])\n"
        "app.conf.ratelimit_quotas = {'a': '1/s'}\n"
    )
    (tmp_path / "late_tasks.py").write_text("\nimport no_such_module\n")
    found = command(*arguments, of="late", path=tmp_path)
    assert found.returncode == 1
    (line,) = found.stderr.splitlines()
    assert line.startswith("Error: the tasks of the app cannot be imported: ModuleNotFoundError")
    assert "no_such_module" in line
    assert line.endswith("late_tasks.py:2)")
    assert not found.stdout


def test_app_whose_only_limit_is_misspelt_is_an_error(tmp_path: Path) -> None:
    """As by its workers."""
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\n"
        "from celery_ratelimit import RateLimitedTask\n"
        "app = Celery('shop', broker='redis://127.0.0.1:1/0')\n"
        "@app.task(base=RateLimitedTask, limit='100/s')\n"
        "def charge(): ...\n"
    )
    found = command("check", of="shop", path=tmp_path)
    assert found.returncode == 1
    assert found.stderr.splitlines() == [
        "Error: task 'shop.charge': there is no option limit= (limit='100/s'), and nothing limits the task: "
        "did you mean limits=?"
    ]


# -- Something is wrong ------------------------------------------------------------------------------------------------


def test_names_with_control_characters_break_no_line(run: Run, app: Celery) -> None:
    shown = json.loads(run("check", "--json").output)["limits"]
    assert "e\\nmails: 14/s (queue e\\nmails)" in shown
    assert limits_shown(app) == shown, "in a worker's banner, too"
    assert run("check").stdout.splitlines()[: len(shown)] == shown
    app.conf.ratelimit_quotas = {**app.conf.ratelimit_quotas, "x\ny\x1b[31m": "1/s"}
    for arguments in (["reset", "strpe"], ["status", "x\ny"], ["parked", "x\ny"]):
        found = run(*arguments)
        assert found.exit_code == 2
        assert len(found.output.splitlines()) == 1, found.output
        assert "\x1b" not in found.output


LEASES = "is no number of leases: write a whole number, 1 to 999999999"
UNKNOWN = "Error: No limit is called 'strpe'. Did you mean 'stripe'? (--force accepts any name)\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        *((f"{command} strpe", 2, UNKNOWN) for command in ("status", "pause", "history", "parked")),
        ("parked x", 2, "No limit is called 'x'. There are 'e\\nmails', 'gpu', 'stripe', 'tenant'. (--force"),
        ("set stripe 20", 2, "a rate in the code (100/s, burst 5), and '20' has no period: write '20/s' or '20/m'"),
        ("set stripe 20/x", 2, "cannot read the rate '20/x'"),
        ("set stripe " + "9" * 5000, 2, "cannot read the rate '9999"),
        ("set stripe 0/s", 2, "the rate '0/s' would never let anything through. To stop everything, pause the limit"),
        ("set stripe", 2, "set what? A RATE, --shadow or --no-shadow"),
        ("set stripe 20/s --for soon", 2, "'soon' is no length of time"),
        ("set stripe 20/s --key tenant:7", 2, "is not kept by key"),
        ("set stripe 1/s --reason " + "x" * 201, 2, "(201 characters) must be a text of at most 200 characters"),
        *((f"set gpu {number}", 2, LEASES) for number in ("2/s", "0", "-- -1", "99999999999", "9" * 5000)),
        ("set gpu 5 --burst 3", 2, "burst=3 is for a rate, and 5 is a number of leases"),
        ("weight crm acme", 2, "which weight"),
        ("weight crm acme much", 2, "'much' is neither a number nor 'code'"),
        ("weight -- crm acme -1", 2, "-1"),
        ("weight stripe acme 1", 2, "not fair"),
        ("reset tenant", 2, "is kept by key"),
        ("explain unknown", 1, "is not known"),
        ("release stripe unknown", 1, "1 of 1 are not parked there"),
    ],
)
def test_invalid_command_is_an_error(run: Run, app: Celery, arguments: str, code: int, says: str) -> None:
    app.conf.ratelimit_quotas = {**app.conf.ratelimit_quotas, "crm": {"rate": "10/s", "fair": "{tenant}"}}
    found = run(*arguments.split())
    assert (found.exit_code, says in found.output) == (code, True), found.output
    assert "Traceback" not in found.output


def test_end_in_the_far_future_is_shown_as_none(run: Run, app: Celery) -> None:
    found = run("set", "stripe", "20/s", "--for", "9999999d")
    assert "until until" not in found.output
    assert "until resumed" not in found.output, "that is a pause's"
    assert ", until unset" in found.output
    assert "until unset" in run("history", "stripe").output
    assert "until resumed" in run("pause", "stripe").output


# -- Something is narrow -----------------------------------------------------------------------------------------------


def on_a_terminal(columns: int, code: str) -> str:
    """What Python prints on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm"}
    env.pop("COLUMNS", None)
    with subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, env=env) as child:
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                break
            if not part:
                break
            said += part
    os.close(ours)
    assert child.returncode == 0, said.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode()).replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [200, 80, 60, 40])
def test_narrow_terminal_shows_the_main_columns(server: EmbeddedServer, store: redis.Redis, columns: int) -> None:
    app = make_app(server.url)
    limiter_of(app).set_rate("stripe", "20/s", by="ann@host", reason="the upstream is slow")
    park(app, "stripe", 40)
    code = (
        "from types import SimpleNamespace\n"
        "from tests.shop import make_app\n"
        "from celery_ratelimit.cli import ratelimit\n"
        f"ratelimit(['status'], obj=SimpleNamespace(app=make_app({server.url!r})))\n"
    )
    said = on_a_terminal(columns, code)
    heads = said.splitlines()[0].split()
    assert heads[0] == "LIMIT"
    assert heads[-1] == "STATE", said
    (row,) = [line for line in said.splitlines() if line.startswith("stripe")]
    assert "backlogged" in row, said
    assert all(len(line) <= columns for line in said.splitlines()), said
    if columns == 200:
        assert "OLDEST" in heads
        assert "hidden" not in said
    else:
        assert "hidden, the terminal is narrow: " in " ".join(said.split())


def test_wide_characters_keep_columns_aligned() -> None:
    shown = table_of(("LIMIT", "STATE"), [("你好", "idle"), ("naïve", "idle"), ("e\u0301", "idle")])
    assert shown.splitlines() == ["LIMIT  STATE", "你好   idle", "naïve  idle", "e\u0301      idle"]
