"""Credential providers, which say user and password at each connection: for tokens that expire."""

from __future__ import annotations

import re
from pkgutil import resolve_name
from typing import Any
from urllib.parse import unquote

from redis.exceptions import ConnectionError as RedisConnectionError

from .url_text import not_a_url

__all__ = ["with_provider"]

_OPTION = "credential_provider="


class _Provider:
    """A credential provider whose errors are an outage of the store: tasks wait, and it is asked again."""

    def __init__(self, provider: Any) -> None:
        self._provider, self._get = provider, provider.get_credentials

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # redis-py asks whether it is one whose tokens are pushed
        return type(self._provider)

    def get_credentials(self) -> Any:
        try:
            return self._get()
        except Exception as error:
            raise _failure(error) from error

    async def get_credentials_async(self) -> Any:
        try:
            return await self._provider.get_credentials_async()
        except Exception as error:
            raise _failure(error) from error


def _failure(error: Exception) -> RedisConnectionError:
    return RedisConnectionError(f"its credential provider has raised {type(error).__name__}")


def with_provider(url: str, rest: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Replace user and password in the ``rest`` of a URL, and in options, by the credential provider, if there is one:
    an object or a class among the options, or its name, there or in the query, as Celery writes it.
    """
    address, _, query = rest.partition("?")
    named = [unquote(each.removeprefix(_OPTION)) for each in query.split("&") if each.startswith(_OPTION)]
    provider = options.get("credential_provider") or "".join(named[:1])
    if not provider:
        return rest, options
    try:
        made = resolve_name(provider) if isinstance(provider, str) else provider
        provider = _Provider(made() if isinstance(made, type) else made)
    except Exception as error:
        raise not_a_url(url, "its credential_provider is no provider, nor the name of a class of one") from error
    query = "&".join(each for each in query.split("&") if not each.startswith(_OPTION))
    options = {name: value for name, value in options.items() if name not in ("username", "password")}
    return f"{re.sub('[^/;]*@', '', address)}?{query}".rstrip("?"), {**options, "credential_provider": provider}
