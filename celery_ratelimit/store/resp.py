"""Encodes and decodes RESP, the store's protocol."""

from __future__ import annotations

__all__ = ["bulk", "text", "unbulk"]


def text(value: bytes | str, errors: str = "surrogatepass") -> str:
    """A reply as text, whether the client decodes replies or not; ``errors`` as of ``bytes.decode``."""
    return value.decode(errors=errors) if isinstance(value, bytes) else value


def bulk(*values: str | int) -> bytes:
    """Values in wire form: RESP bulk strings, one after the other.

    Users' text may hold half of a surrogate pair, which JSON allows and UTF-8 does not; it is encoded nevertheless.
    """
    encoded = [str(value).encode(errors="surrogatepass") for value in values]
    return b"".join([b"$%d\r\n%b\r\n" % (len(data), data) for data in encoded])


def unbulk(data: bytes) -> list[bytes]:
    """The values of a text that :func:`bulk` has made."""
    values, at = [], 0
    while at < len(data):
        start = data.index(b"\r\n", at) + 2
        end = start + int(data[at + 1 : start - 2])
        values.append(data[start:end])
        at = end + 2
    return values
