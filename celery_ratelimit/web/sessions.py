"""Sessions, and the tokens of forms. Nothing is kept: each is signed by this process alone."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from http.cookies import CookieError, SimpleCookie

__all__ = ["COOKIE", "LASTS", "Sessions"]

#: What the cookie that holds a session is called, with the port; and the seconds for which it is good.
COOKIE, LASTS = "celery_ratelimit_session", 12 * 3600


class Sessions:
    """Identifies requests, and forms of this server.

    A session is the time at which it ends, signed: the token itself is never in a cookie, which other servers of the
    same machine may see. When this process ends, so do all sessions.

    Args:
        token: what people have to say; ``""``: nothing.
        port: of this server: others on the same host, which have the cookie as well, have one by another name.
    """

    def __init__(self, token: str, port: int) -> None:
        self._token = token.encode()
        self.cookie: str = f"{COOKIE}_{port}"
        self._secret = secrets.token_bytes(32)

    def is_token(self, said: str) -> bool:
        """Whether it is the token; takes as long for whatever is said."""
        return bool(self._token) and hmac.compare_digest(said.encode(errors="replace"), self._token)

    def open_session(self) -> str:
        """The value of a session's cookie."""
        ends = str(int(time.time()) + LASTS)
        return f"{ends}.{self._sign('session', ends)}"

    def identify(self, authorization: str, cookie: str) -> str | None:
        """The identity of a request: a session, ``"bearer"``, ``"anyone"`` where there is no token; ``None``: no."""
        if not self._token:
            return "anyone"
        scheme, _, said = authorization.partition(" ")
        if scheme.lower() == "bearer" and self.is_token(said.strip()):
            return "bearer"
        session = self._session_in(cookie)
        ends, _, signature = session.partition(".")
        is_ours = hmac.compare_digest(signature.encode(), self._sign("session", ends).encode())
        return session if is_ours and ends.isdecimal() and int(ends) > time.time() else None

    def form_token(self, identity: str) -> str:
        """The token of a form on a page of this identity."""
        return self._sign("form", identity)

    def is_form_token(self, said: str, identity: str) -> bool:
        return hmac.compare_digest(said.encode(errors="replace"), self.form_token(identity).encode())

    def _session_in(self, cookie: str) -> str:
        try:
            found = SimpleCookie(cookie).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found is not None else ""

    def _sign(self, what: str, text: str) -> str:
        return hmac.new(self._secret, f"{what}:{text}".encode(errors="replace"), hashlib.sha256).hexdigest()
