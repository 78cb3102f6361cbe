"""The protocol's bytes."""

from __future__ import annotations

__all__ = ["bulk", "text", "unbulk"]


def text(value: bytes | str, errors: str = "surrogatepass") -> str:
    """A reply's text, whatever the client was told to decode; ``errors`` as of ``bytes.decode``."""
    return value.decode(errors=errors) if isinstance(value, bytes) else value


def bulk(*values: str | int) -> bytes:
    """Values as they go over the wire: RESP bulk strings, one after the other.

    Users' text may hold half of a surrogate pair, which JSON allows and UTF-8 does not: it is written all the same.
    """
    encoded = [str(value).encode(errors="surrogatepass") for value in values]
    return b"".join([b"$%d\r\n%b\r\n" % (len(data), data) for data in encoded])


def unbulk(data: bytes) -> list[bytes]:
    """The values that :func:`bulk` was given."""
    values, at = [], 0
    while at < len(data):
        start = data.index(b"\r\n", at) + 2
        end = start + int(data[at + 1 : start - 2])
        values.append(data[start:end])
        at = end + 2
    return values
