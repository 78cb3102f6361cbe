"""Which globals a Lua text reads and writes, from what Lua 5.1 makes of it: certain, where a search is a guess."""

from __future__ import annotations

import struct
from typing import Any

from lupa.lua51 import LuaRuntime

_GETGLOBAL, _SETGLOBAL = 5, 7


def globals_of(source: str) -> tuple[set[str], set[str]]:
    """The globals that ``source`` reads, and the globals that it writes, in any of its functions."""
    lua = LuaRuntime(encoding=None)
    dump = lua.eval(b"function(source) return string.dump(assert(loadstring(source))) end")
    reader = _Reader(dump(source.encode()))
    reader.function()
    return reader.read, reader.written


class _Reader:
    """A walk through the output of ``string.dump`` (lundump.c of Lua 5.1, 64 bit, little endian)."""

    def __init__(self, dump: bytes) -> None:
        assert dump[:12] == b"\x1bLua\x51\x00\x01\x04\x08\x04\x08\x00", "not Lua 5.1 of 64 bits"
        self.dump, self.at = dump, 12
        self.read: set[str] = set()
        self.written: set[str] = set()

    def take(self, layout: str) -> Any:
        (value,) = struct.unpack_from("<" + layout, self.dump, self.at)
        self.at += struct.calcsize("<" + layout)
        return value

    def text(self) -> str:
        size = self.take("Q")
        raw: bytes = self.take(f"{size}s") if size else b""
        return raw[:-1].decode()

    def constant(self) -> Any:
        kind = self.take("B")
        return {0: lambda: None, 1: lambda: self.take("B"), 3: lambda: self.take("d"), 4: self.text}[kind]()

    def function(self) -> None:
        self.text()
        self.at += 4 + 4 + 4  # lines; upvalues, parameters, vararg, stack
        code = [self.take("I") for _ in range(self.take("I"))]
        constants = [self.constant() for _ in range(self.take("I"))]
        for instruction in code:
            names = {_GETGLOBAL: self.read, _SETGLOBAL: self.written}.get(instruction & 0x3F)
            if names is not None:
                names.add(constants[instruction >> 14])
        for _ in range(self.take("I")):
            self.function()
        lines = self.take("I")
        self.at += 4 * lines
        for _ in range(self.take("I")):
            self.text()
            self.at += 8
        for _ in range(self.take("I")):
            self.text()
