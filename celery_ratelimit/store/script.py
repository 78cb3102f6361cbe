"""The Lua scripts: read from ``lua/``, put together, and run with one round trip.

A line ``--!include name.lua`` in a script stands for that file in ``lua/include/`` or ``lua/algorithms/``, once;
``--!algorithms`` for the algorithms that the request names, and ``--!fair name.lua`` for that file
where it names ``fair``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from redis.exceptions import (
    NoScriptError,
    ResponseError,
)

from ..errors import ConfigurationError
from .link import Link
from .resp import bulk, unbulk

__all__ = ["FAIR", "Script", "load_source"]

_INCLUDE = re.compile(r"^--!include (\w+)\.lua\n", re.MULTILINE)
_ALGORITHMS = "--!algorithms\n"
_FAIR = re.compile(r"^--!fair (\w+\.lua\n)", re.MULTILINE)
#: What a request names beside algorithms, where those who share a limit have their turns.
FAIR = "fair"
_METHOD = re.compile("[a-z_]+")


@cache
def _read(path: str) -> str:
    text: str = _folder().joinpath(path).read_text(encoding="utf-8")
    return text


def _folder() -> Any:
    """Where the scripts are: in the package; in a checkout that is not installed, beside it."""
    try:
        return files("celery_ratelimit.lua")
    except ModuleNotFoundError:
        return Path(__file__).resolve().parents[2] / "lua"


@cache
def _check(name: str) -> None:
    """Whoever is to run a script later is told now that it cannot be.

    Raises:
        ConfigurationError: a file of it is not there.
    """
    try:
        load_source(name, ())
    except OSError as error:
        raise ConfigurationError(
            f"this installation of celery_ratelimit has no Lua script {name!r} ({error}): install it anew"
        ) from error


def load_source(name: str, methods: Iterable[str], replace: Mapping[str, str] | None = None) -> str:
    """The source of ``lua/<name>.lua`` with its includes.

    Args:
        name: the script's name, which is its verb.
        methods: the algorithms to put in, by the names of their files.
        replace: includes to put another text in place of (``{"now": …}`` is how tests freeze the clock).
    """
    replace = replace or {}
    included = set()

    def include(match: re.Match[str]) -> str:
        file = match[1]
        if file in included:
            return ""
        included.add(file)
        return expand(replace.get(file) or included_file(file))

    def included_file(file: str) -> str:
        try:
            return _read(f"algorithms/{file}.lua")
        except FileNotFoundError:
            return _read(f"include/{file}.lua")

    def expand(text: str) -> str:
        named = "".join(f"--!include {method}.lua\n" for method in sorted(methods) if method != FAIR)
        text = _FAIR.sub(r"--!include \1" if FAIR in methods else "", text)
        return _INCLUDE.sub(include, text.replace(_ALGORITHMS, named))

    return expand(_read(f"{name}.lua"))


class Script:
    """One script, called by its digest; a store that does not know it (new, flushed, failed over) is sent it.

    It is put together for the algorithms that a request names, once for each set of them.
    """

    def __init__(self, name: str, replace: Mapping[str, str] | None = None) -> None:
        _check(name)
        self.name = name
        self._replace = replace
        self._variants: dict[Hashable, _Variant] = {}

    def __call__(self, link: Link, methods: Hashable, keys: int, values: int, pieces: Sequence[bytes]) -> Any:
        """Run it.

        Args:
            link: the way to the store.
            methods: the algorithms that are asked for: the name of one, or a frozenset of several.
            keys: how many of the values are keys; they come first.
            values: how many keys and arguments there are.
            pieces: the values, each piece any number of them, made by :func:`bulk`. Most of a request never
                changes, so that a call only puts pieces together.
        """
        variant = self._variants.get(methods) or self._make(methods)
        try:
            try:
                if link.takes_bytes:
                    return link.exchange(_command(variant, keys, values, pieces))
                return link.execute("EVALSHA", variant.digest, keys, *unbulk(b"".join(pieces)))
            except NoScriptError:
                return link.evaluate(variant.source, keys, values, pieces)
        except ResponseError as error:
            self._add_algorithm(methods, variant, error)
            return self(link, methods, keys, values, pieces)

    def command(self, methods: Hashable, keys: int, values: int, pieces: Sequence[bytes]) -> bytes:
        """A call in its wire form, for a store that knows the script."""
        return _command(self._variants.get(methods) or self._make(methods), keys, values, pieces)

    async def awaited(self, link: Any, methods: Hashable, keys: int, values: int, pieces: Sequence[bytes]) -> Any:
        """The same on a link whose replies are awaited."""
        variant = self._variants.get(methods) or self._make(methods)
        try:
            try:
                return await link.exchange(_command(variant, keys, values, pieces))
            except NoScriptError:
                return await link.evaluate(variant.source, keys, values, pieces)
        except ResponseError as error:
            self._add_algorithm(methods, variant, error)
            return await self.awaited(link, methods, keys, values, pieces)

    def _add_algorithm(self, methods: Any, asked: _Variant, error: ResponseError) -> None:
        """What is stored for a limit has an algorithm that the request does not name: from now on it is put in.

        Others may ask at the same time and put it in first, so what counts is what was asked, not what is there now.

        Args:
            methods: the algorithms that the request names.
            asked: what was run for them.
            error: what it said.

        Raises:
            ResponseError: that was not what the script said.
        """
        verb, _, method = str(error).partition(" ")
        if verb != "LOAD" or method in asked.methods or not _METHOD.fullmatch(method):
            raise error
        held = self._variants[methods].methods
        if method in held:
            return
        try:
            self._make(methods, {*held, method})
        except FileNotFoundError:
            raise ResponseError(
                f"a limit is stored with the algorithm {method!r}, which this version of celery_ratelimit does not have"
            ) from None

    def _make(self, methods: Any, held: Iterable[str] | None = None) -> _Variant:
        if held is None:
            held = [methods] if isinstance(methods, str) else methods
        source = load_source(self.name, held, self._replace)
        digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        variant = self._variants[methods] = _Variant(source, digest, bulk("EVALSHA", digest), frozenset(held))
        return variant


class _Variant(NamedTuple):
    source: str
    digest: str
    head: bytes
    methods: frozenset[str]


def _command(variant: _Variant, keys: int, values: int, pieces: Sequence[bytes]) -> bytes:
    return b"*%d\r\n%b%b" % (3 + values, variant.head, _number(keys)) + b"".join(pieces)


@cache
def _number(keys: int) -> bytes:
    """How many keys a call has, made once for each number: there are few."""
    return bulk(keys)
