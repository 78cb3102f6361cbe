"""What the page is started with; an open page without a token is an error."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from ..errors import ConfigurationError, shown

__all__ = ["Options", "is_loopback"]

#: Characters of a token: no guessing comes to its end.
_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Options:
    """How the page is served.

    Attributes:
        host: where it listens.
        token: what people have to say before they see anything; ``""``: nothing, on loopback alone.
        allow_changes: whether limits can be changed on it.
        allowed_hosts: names under which it may be reached, besides those of loopback.
        store: the store's address, as it is shown: without its password.

    Raises:
        ConfigurationError: the address can be reached from elsewhere without a token, or the token can be guessed.
    """

    host: str = "127.0.0.1"
    token: str = ""
    allow_changes: bool = False
    allowed_hosts: frozenset[str] = frozenset()
    store: str = ""

    def __post_init__(self) -> None:
        if not self.token and not is_loopback(self.host):
            raise ConfigurationError(
                f"every client that reaches {self.host or 'this machine'} could read the limits: give a token "
                "(CELERY_RATELIMIT_WEB_TOKEN, or --token), or listen on 127.0.0.1"
            )
        if self.token and (len(self.token) < _SHORTEST_TOKEN or not self.token.isascii() or " " in self.token):
            raise ConfigurationError(
                f"a token has at least {_SHORTEST_TOKEN} characters of ASCII without blanks, so that none guesses it: "
                'python -c "import secrets; print(secrets.token_urlsafe())" makes one'
            )
        for name in self.allowed_hosts:
            if not name or (any(each in name for each in "/:@ *") and not _is_address(name)):
                raise ConfigurationError(f"allowed host {shown(name)} is no name of a host: no scheme, port or pattern")

    @property
    def hosts(self) -> frozenset[str] | None:
        """The names that a request may give for this server; ``None``: any, with a token.

        On loopback there is a list in any case: a page from elsewhere whose name has come to lead here is turned away.
        """
        ours = {name.lower() for name in self.allowed_hosts}
        if is_loopback(self.host):
            return frozenset({"localhost", "127.0.0.1", "::1", self.host.lower(), *ours})
        return frozenset({self.host.lower(), *ours}) if ours else None


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
