"""How the scripts reach the store: one source, no globals, one clock; flushed, restarted, hung and forked stores."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import fakeredis
import pytest
import redis

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.rate_limit import METHODS
from celery_ratelimit.store.script import Script, load_source

from .bytecode import globals_of
from .frozen import demand

LUA = Path(str(files("celery_ratelimit.lua")))
VERBS = sorted(path.stem for path in LUA.glob("*.lua"))
INCLUDES = sorted(path.stem for of in ("include", "algorithms") for path in (LUA / of).glob("*.lua"))
EVERYWHERE = ("prelude", "now")
LANGUAGE = {
    *("KEYS", "ARGV", "redis", "cjson", "string", "math", "table"),
    *("ipairs", "next", "pcall", "select", "setmetatable", "tonumber", "type", "unpack"),
}
LIMIT = Limit("1/m", name="api")


def test_every_lua_file_is_used(limiter: Limiter) -> None:
    loaded = {script.name for script in vars(limiter._asker.core.scripts).values() if isinstance(script, Script)}
    loaded |= Backlog(limiter, "fleet", 3600).scripts.by_name.keys()
    assert loaded == set(VERBS), "each verb is a script of the limiter, or of the parking lots"
    for include in INCLUDES:
        mark = f"-- mark {include}"
        marked = (load_source(verb, {include: mark}, fair=True) for verb in VERBS)
        assert any(mark in source for source in marked), f"no script includes {include}.lua"


def test_script_defines_only_the_algorithms_in_use() -> None:
    """Every function is made anew at every call."""
    text = (LUA / "include/algorithms.lua").read_text()
    for method in METHODS:
        assert re.search(rf"^if used\.{method}\b[^\n]*then\n--!include {method}\.lua\nend$", text, re.MULTILINE), method


@pytest.mark.parametrize("verb", VERBS)
def test_every_include_is_inserted_once(verb: str) -> None:
    source = load_source(verb)
    assert "--!" not in source
    assert "--!" not in load_source(verb, fair=True)
    names = re.findall(r"^--!include (\w+)\.lua$", (LUA / f"{verb}.lua").read_text(), re.MULTILINE)
    assert names
    for name in {*names, *(METHODS if "local algorithms = {}" in source else ())}:
        body = next(LUA.glob(f"*/{name}.lua")).read_text().split("\n", 1)[1].split("--!")[0]
        assert source.count(body) == 1, name


@pytest.mark.parametrize("verb", VERBS)
def test_law_10_store_clock_is_read_once(verb: str) -> None:
    source = code(load_source(verb))
    assert source.count("'TIME'") == (verb != "locate"), "it needs none"
    assert "'TIME'" not in code(load_source(verb, {"now": "local now = 0"}))
    assert "os." not in source


@pytest.mark.parametrize(
    ("seconds", "microseconds", "now"),
    [
        ("1767225600", "0", "1767225600000000"),
        ("1767225600", "7", "1767225600000007"),  # not padded
        ("1767225600", "99999", "1767225600099999"),
        ("4102444799", "999999", "4102444799999999"),
    ],
)
def test_law_10_store_time_has_microseconds(store: redis.Redis, seconds: str, microseconds: str, now: str) -> None:
    stub = f"local redis = {{call = function() return {{'{seconds}', '{microseconds}'}} end}}\n"
    include = (LUA / "include/now.lua").read_text()
    assert store.eval(f"{stub}{include}\nreturn string.format('%.0f', now)", 0) == now


def test_scripts_bind_keys_and_arguments_to_names() -> None:
    """Each `KEYS[3]` below the first lines would be a number that a reader has to look up."""
    for verb in VERBS:
        _, includes, below = code_but_includes(LUA / f"{verb}.lua").partition("--!include")
        assert includes
        assert re.findall(r"(?:KEYS|ARGV)\[\d+\]", below) == [], verb
    for path in (*LUA.glob("include/*.lua"), *LUA.glob("algorithms/*.lua")):
        assert re.findall(r"(?:KEYS|ARGV)\[\d+\]", code_but_includes(path)) == [], path.stem


def test_includes_state_what_they_use_and_define() -> None:
    """What a text reads and does not make is a global where it stands alone."""
    alone = {path: globals_of(path.read_text())[0] for path in LUA.rglob("*.lua")}
    for path in LUA.glob("include/*.lua"):
        if path.stem in EVERYWHERE:
            continue
        text = path.read_text()
        header = text[: re.search(r"^[^-\n]|^--!", text, re.MULTILINE).start()]  # type: ignore[union-attr]
        made = re.findall(r"^local (?:function )?([\w, ]+)", text, re.MULTILINE)
        names = {name.strip() for several in made for name in several.split(",")}
        elsewhere = {name for other, read in alone.items() if other != path for name in read}
        told = set(re.findall(r"\w+", header))
        assert alone[path] - LANGUAGE - given_everywhere() <= told, f"{path.stem}: what it uses"
        assert names & elsewhere <= told, f"{path.stem}: what it gives"


def given_everywhere() -> set[str]:
    """What stands at the top of every script."""
    made = (
        re.findall(r"^local (?:function )?([\w, ]+)", (LUA / f"include/{name}.lua").read_text(), re.MULTILINE)
        for name in EVERYWHERE
    )
    return {name.strip() for each in made for several in each for name in several.split(",")}


@pytest.mark.parametrize("verb", VERBS)
def test_scripts_define_no_globals(verb: str) -> None:
    """A leaked global is an error on a real server; on fakeredis it breaks every later script."""
    read, written = globals_of(load_source(verb))
    assert written == set()
    assert read <= LANGUAGE, "misspelt, or not in the sandbox"


def code(source: str) -> str:
    """Lua without its comments."""
    return re.sub(r"--[^\n]*", "", source)


def code_but_includes(path: Path) -> str:
    """Lua without its comments, but with the lines that stand for other files."""
    return re.sub(r"--(?!!)[^\n]*", "", path.read_text())


@pytest.mark.parametrize("operation", ["acquire", "peek"])
def test_script_flush_is_recovered(limiter: Limiter, store: redis.Redis, operation: str) -> None:
    limiter.acquire(LIMIT)
    before = getattr(limiter, operation)(LIMIT)
    store.script_flush()
    after = getattr(limiter, operation)(LIMIT)
    assert (before.allowed, after.allowed) == (False, False)
    assert 59 < after.retry_after <= 60


def test_decision_uses_the_fewest_store_commands(limiter: Limiter, store: redis.Redis) -> None:
    def asks(demands: list[LimitRequest], id: str = "", claim: float = 0.0) -> dict[str, int]:
        store.config_resetstat()
        limiter._asker.ask(demands, id=id, claim=claim)
        stats = {name.removeprefix("cmdstat_"): each["calls"] for name, each in store.info("commandstats").items()}
        assert stats.pop("evalsha") == 1
        return {name: calls for name, calls in stats.items() if name not in ("config|resetstat", "config", "info")}

    bucket = [demand("1/m", burst=2)]
    limiter._asker.ask(bucket)
    assert asks(bucket) == {"time": 1, "mget": 1, "set": 1}, "granted"
    assert asks(bucket) == {"time": 1, "mget": 1}, "refused, no request waits and nothing is kept"
    assert asks(bucket, "far", 1.0) == {"time": 1, "mget": 1}, "refused, its slot is too far away to be kept"
    limiter._asker.ask(bucket, id="waits", claim=60.0)
    assert asks(bucket, "waits", 60.0) == {"time": 1, "mget": 1, "zrange": 1, "zscore": 1}, "it came before its turn"
    log = LimitRequest(Limit("100/m", algorithm="sliding_log"), "log")
    mixed = [demand("1000/s", burst=9, name="wide"), log, LimitRequest(Concurrency(5), "places")]
    limiter._asker.ask(mixed, id="first")
    of_log = {"lrange": 1, "lset": 1, "rpush": 1, "pexpire": 1}
    of_places = {"zcount": 2, "zcard": 1, "zscore": 2, "zremrangebyscore": 1, "zadd": 1, "pexpire": 1}
    assert asks(mixed, "second") == {"time": 1, "mget": 1, "set": 1, **of_log, **of_places, "pexpire": 2}
    limiter._asker.ask([log])
    assert asks([log]) == {"time": 1, "mget": 1, **of_log}
    limiter._asker.ask(mixed[2:], id="third")
    assert asks(mixed[2:], "fourth") == {"time": 1, "mget": 1, **of_places}


def test_reply_keeps_the_exact_wait(frozen: Limiter) -> None:
    """Redis cuts fractions off, and prints large numbers with 14 digits: replies and keys are whole numbers."""
    wanted = [demand("1/30d", burst=12)]
    for _ in range(12):
        frozen._asker.ask(wanted)
    assert frozen._asker.ask(wanted, id="x", claim=1e9).retry_after == 30 * 86_400.0
    assert frozen._asker.ask(wanted, id="y", claim=1e9).retry_after == 60 * 86_400.0
    assert frozen._asker.ask(wanted, id="y", claim=1e9).retry_after == 60 * 86_400.0


def test_ids_may_look_like_lua_or_patterns(frozen: Limiter, store: redis.Redis) -> None:
    wanted = [demand("1/m")]
    frozen._asker.ask(wanted)
    for id in ("%d+", "'..redis.call('FLUSHALL')..'", "\n", "0", "é", " "):
        frozen._asker.ask(wanted, id=id, claim=1e9)
        assert store.zrange("ratelimit:v1:{api}::slots", -1, -1) == [id]


def test_fakeredis_has_a_clock(limiter: Limiter) -> None:
    fake = Limiter(fakeredis.FakeRedis())
    assert fake.acquire(LIMIT).allowed
    refused = fake.acquire(LIMIT)
    assert not refused.allowed
    assert 59 < refused.retry_after <= 60
