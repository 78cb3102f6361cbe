"""Credential providers, which say user and password at each connection: for tokens that expire."""

from __future__ import annotations

import re
from pkgutil import resolve_name
from typing import Any
from urllib.parse import unquote

from .url_text import not_a_url

__all__ = ["with_provider"]

_OPTION = "credential_provider="


def with_provider(url: str, rest: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Replace user and password in the ``rest`` of a URL, and in options, by the credential provider, if there is one:
    an object among the options, or the name of its class, there or in the query, as Celery writes it.
    """
    address, _, query = rest.partition("?")
    named = [unquote(each.removeprefix(_OPTION)) for each in query.split("&") if each.startswith(_OPTION)]
    provider = options.get("credential_provider") or "".join(named[:1])
    if not provider:
        return rest, options
    if isinstance(provider, str):
        try:
            provider = resolve_name(provider)()
        except Exception as error:
            raise not_a_url(url, "its credential_provider is not the name of a class that can be made") from error
    query = "&".join(each for each in query.split("&") if not each.startswith(_OPTION))
    options = {name: value for name, value in options.items() if name not in ("username", "password")}
    return f"{re.sub('[^/;]*@', '', address)}?{query}".rstrip("?"), {**options, "credential_provider": provider}
