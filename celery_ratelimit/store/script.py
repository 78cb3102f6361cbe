"""The Lua scripts: read from ``lua/``, joined with their includes, and run in one round trip.

A line ``--!include name.lua`` in a script stands for that file in ``lua/include/`` or ``lua/algorithms/``, once;
``--!fair name.lua`` for that file in a script for fair limits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from ..errors import ConfigurationError
from .link import Link
from .resp import bulk, unbulk
from .store_errors import is_full

__all__ = ["Script", "load_source"]

_INCLUDE = re.compile(r"^--!include (\w+)\.lua\n", re.MULTILINE)
_FAIR = re.compile(r"^--!fair (\w+\.lua\n)", re.MULTILINE)

#: The first write of a script that runs though the store is full. Redis refuses a script at its first write if that
#: write may take memory. Behind one that takes none it refuses no write, also if the first one has changed nothing.
_THOUGH_FULL = "redis.pcall('ZREM', KEYS[1], '\\0')\n"


@cache
def _read(path: str) -> str:
    text: str = _folder().joinpath(path).read_text(encoding="utf-8")
    return text


def _folder() -> Any:
    """The folder of the scripts: in the package; in a checkout that is not installed, beside it."""
    try:
        return files("celery_ratelimit.lua")
    except ModuleNotFoundError:
        return Path(__file__).resolve().parents[2] / "lua"


@cache
def _check(name: str) -> None:
    """Check early that a script can be loaded.

    Raises:
        ConfigurationError: a file of the script is missing.
    """
    try:
        load_source(name)
    except OSError as error:
        raise ConfigurationError(
            f"this installation of celery_ratelimit has no Lua script {name!r} ({error}): install it anew"
        ) from error


def load_source(name: str, replace: Mapping[str, str] | None = None, *, fair: bool = False) -> str:
    """The source of ``lua/<name>.lua`` with its includes.

    Args:
        name: the script's name.
        replace: includes by name, with the text to use instead (tests freeze the clock with ``{"now": …}``).
        fair: with the includes for fair limits.
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
        return _INCLUDE.sub(include, _FAIR.sub(r"--!include \1" if fair else "", text))

    return expand(_read(f"{name}.lua"))


class Script:
    """One script, called by its digest. A store that does not know it (new, flushed, failed over) gets its source."""

    def __init__(self, name: str, replace: Mapping[str, str] | None = None, *, fair: bool = False) -> None:
        _check(name)
        self.name = name
        self._replace, self._fair = replace, fair

    @cached_property
    def source(self) -> str:
        return load_source(self.name, self._replace, fair=self._fair)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    @cached_property
    def _head(self) -> bytes:
        return bulk("EVALSHA", self.digest)

    def __call__(self, link: Link, keys: int, values: int, pieces: Sequence[bytes]) -> Any:
        """Run the script.

        Args:
            link: to the store.
            keys: number of keys, which come first.
            values: number of keys and arguments.
            pieces: the values, made by :func:`bulk`; a piece holds any number of them. Most of a request never changes,
                so a call only joins pieces.
        """
        try:
            try:
                if link.takes_bytes:
                    return link.exchange(self.command(keys, values, pieces))
                return link.execute("EVALSHA", self.digest, keys, *unbulk(b"".join(pieces)))
            except NoScriptError:
                return link.evaluate(self.source, keys, values, pieces)
        except ResponseError as error:
            return link.evaluate(self._though_full(error), keys, values, pieces)

    def _though_full(self, error: ResponseError) -> str:
        """The source that a full store runs. Only parking takes memory for long: it, and other errors, are refused."""
        if self.name == "park" or not is_full(error):
            raise error
        return _THOUGH_FULL + self.source

    def command(self, keys: int, values: int, pieces: Sequence[bytes]) -> bytes:
        """A call in wire form, for a store that knows the script."""
        return b"*%d\r\n%b%b" % (3 + values, self._head, _number(keys)) + b"".join(pieces)

    async def awaited(self, link: Any, keys: int, values: int, pieces: Sequence[bytes]) -> Any:
        """Run the script on a link whose replies are awaited."""
        try:
            try:
                return await link.exchange(self.command(keys, values, pieces))
            except NoScriptError:
                return await link.evaluate(self.source, keys, values, pieces)
        except ResponseError as error:
            return await link.evaluate(self._though_full(error), keys, values, pieces)


@cache
def _number(keys: int) -> bytes:
    """The number of keys in wire form, made once for each number: there are few."""
    return bulk(keys)
