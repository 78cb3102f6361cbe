"""Shows names safely, and suggests known names for an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = ["FORCE_HINT", "IMPORT_HINT", "listed", "near", "no_such_limit", "plain"]

#: For a process that only sends: it may have imported none of the app's tasks.
IMPORT_HINT = " Tasks are known once they are imported: app.loader.import_default_modules()"
#: For functions and commands that take it.
FORCE_HINT = " (force=True accepts any name)"
#: Most names that are listed.
_MOST = 20


def near(name: str, known: Iterable[str]) -> str:
    """Similar names, as a question; ``""``: none."""
    close = difflib.get_close_matches(name, sorted(known))
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""


def no_such_limit(name: str, known: Iterable[str]) -> str:
    """The error for an unknown name; lists near names, or all."""
    hint = near(name, known) or f"{listed(known)}."
    return f"No limit is called {name[:120]!r}. {hint[0].upper()}{hint[1:]}{FORCE_HINT}"


def plain(text: Any) -> str:
    """A text on one line, without control characters for a terminal."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode() for each in str(text)
    )


def listed(known: Iterable[str]) -> str:
    """The known names, as a list in words."""
    names = sorted(known)
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"there are {', '.join(map(repr, names[:_MOST]))}{more}" if names else "there is none here"
