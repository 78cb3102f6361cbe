"""Reads what is stored for a limit from the replies of scripts: rate, pause, share, shadow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..limits.adaptive import adapted_share
from ..limits.any_limit import AnyLimit
from ..limits.key_rates import limit_of_key
from ..limits.stored_settings import LimitConfig, StoredShadow, is_in_force, limit_stored
from ..store.resp import text as text_of

__all__ = ["read_config", "read_shadow", "read_stored"]


def read_config(name: str, key: str, code: AnyLimit | None, reply: Sequence[Any]) -> LimitConfig:
    """Read the reply of ``lua/read_config.lua``."""
    now, *texts = map(text_of, reply)
    code = None if code is None else limit_of_key(code, key, ask=False)
    found = [read_stored(text, int(now)) for text in texts[:2]]
    of_all, of_key = found[0], found[-1]
    known = [each for each in (of_key, of_all) if each["stored"] is not None]
    valid = [each for each in known if is_in_force(each["stored"], code)]
    which = next(iter(valid + known), of_all)
    stored = None if which["stored"] is None else limit_stored(name, which["stored"], code)
    pause = max(of_all, of_key, key=lambda said: int(said["paused"]))
    return LimitConfig(
        name=name,
        key=key,
        code=code,
        stored=stored,
        in_force=stored if valid else code,
        since=which["since"] / 1e6,
        until=which["until"] / 1e6 if which["until"] else None,
        by=which["by"],
        reason=which["reason"],
        version=max(of_all["version"], of_key["version"]) if which is of_all else which["version"],
        paused=max(of_all["paused"], of_key["paused"]) / 1e6,
        changed=max(of_all["changed"], of_key["changed"]) / 1e6,
        paused_by=pause["paused_by"],
        pause_reason=pause["pause_reason"],
        share=of_key["share"] if of_key["share"] < 1 else of_all["share"],
        stored_shadow=read_shadow(texts[2]) if len(texts) > 2 else _marked(texts[0]),
    )


def read_stored(text: str, now: int) -> dict[str, Any]:
    """Read a config key, see ``lua/include/config_format.lua``; ``now``: in microseconds since 1970."""
    nothing: dict[str, Any] = {
        "stored": None,
        "since": 0,
        "until": 0,
        "by": "",
        "reason": "",
        "version": 0,
        "paused": 0,
    }
    nothing |= {"changed": 0, "share": 1.0, "paused_by": "", "pause_reason": ""}
    if not text:
        return nothing
    numbers, _, note = text.partition("\n")
    numbers, _, adapted = numbers.partition("~")
    version, until, paused, method, *_, since, resumed = numbers.split()
    changed = max(at for at in (0, *map(int, (until, paused, since, resumed))) if at <= now)
    said = {**nothing, "version": int(version), "paused": max(0, int(paused) - now), "changed": changed}
    kept = json.loads(note or "{}")
    pause = kept.get("paused", {}) if said["paused"] else {}
    said["paused_by"], said["pause_reason"] = str(pause.get("by", "")), str(pause.get("reason", ""))
    if adapted:
        said["share"] = adapted_share(now, *map(int, adapted.split()))
    if method == "-" or 0 < int(until) <= now:
        return said
    return {
        **said,
        "stored": kept["limit"],
        "since": int(since),
        "until": int(until),
        "by": kept["by"],
        "reason": kept.get("reason", ""),
    }


def read_shadow(said: Any) -> StoredShadow | None:
    """Read what ``lua/set_shadow.lua`` has stored; ``None``: nothing is stored."""
    if not said:
        return None
    head, _, note = text_of(said).partition("\n")
    flag, since = head.split()
    noted = json.loads(note)
    return StoredShadow(flag == "1", int(since) / 1e6, str(noted.get("by", "")), str(noted.get("reason", "")))


def _marked(config: str) -> StoredShadow | None:
    """Read the shadow in a config's text, which has no author: see ``lua/include/config_format.lua``."""
    return StoredShadow(True, 0.0, "", "") if config[:1] == "0" and config[1:2].isdigit() else None
