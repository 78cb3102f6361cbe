"""Names of limits in addresses: any text is one, with slashes, question marks and what is no character at all."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote

from starlette.types import Scope

__all__ = ["address_of", "fields_of", "queries_of", "quoted"]


def address_of(name: str) -> str:
    """Where a limit's page is."""
    return f"/limit?name={quoted(name)}"


def quoted(text: str) -> str:
    """A text behind the question mark."""
    return quote(text, safe="", errors="surrogatepass")


def queries_of(scope: Scope) -> dict[str, str]:
    """What stands behind the question mark. Raises ValueError if that is no text."""
    return fields_of(scope["query_string"])


def fields_of(body: bytes) -> dict[str, str]:
    """What a form has in it. Raises ValueError if that is no text, or too much."""
    pairs = parse_qsl(
        body.decode("latin-1"), keep_blank_values=True, encoding="utf-8", errors="surrogatepass", max_num_fields=40
    )
    return dict(pairs)
