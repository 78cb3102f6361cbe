"""Keys are unambiguous and bounded, whatever users put into names and keys."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_ratelimit.store.keys import bucket_keys, escape, hash_tag

AWKWARD = [
    *["", " ", ":", "::", "{", "}", "{}", "{a}", "{a}!", "{a}{}", "{a}{b}", "{a}a", "a{a}", "a{a}a", "{a}%21", "{a}#"],
    *["}{a}", "{{a}}", "{}{a}", "{" + "a" * 81 + "}", "{a}" + "x" * 81, "{a}" + "x" * 80 + "y", "a:b", "a}:{b", "%"],
    *["%3A", "%253A", "*", "?", "[a]", "\\", "\n", "\0", "#", "a#b", "u\u0308", "\u00fc", "日本語", "🦊", "A", "a"],
    *["x" * 80, "x" * 81, "x" * 82, "ü" * 40, "ü" * 41, "x" * 40 + "#" + "0" * 32, "x" * 10_000, "x" * 9_999 + "y"],
    *["\ud800", "\ud801", "1", "01"],  # json.loads('"\\ud800"') makes one, so an argument can hold it
    *[":tat", ":slots", "v1", "None", "'", '"', "~", "/"],
]

#: A lone surrogate has no bytes, but JSON may hold one.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)
#: Names that have a hash tag in them, and such that only look like it.
NAME = TEXT | st.text("{}ab!#%", max_size=12) | st.builds("{}{{{}}}{}".format, TEXT, TEXT, TEXT)


def test_awkward_names_and_keys_have_separate_buckets() -> None:
    assert len(set(AWKWARD)) == len(AWKWARD)
    seen = {name_of: (name, key) for name in AWKWARD for key in AWKWARD for name_of in bucket_keys("p", name, key)}
    assert len(seen) == 2 * len(AWKWARD) ** 2


@given(one=st.tuples(NAME, TEXT), two=st.tuples(NAME, TEXT))
@example(("a", "b:c"), ("a:b", "c"))
@example(("a}:b", ""), ("a", "}:b"))
@example(("{a}", ""), ("a", ""))
@example(("{a}!", ""), ("{a}", ""))
def test_different_buckets_never_share_a_key(one: tuple[str, str], two: tuple[str, str]) -> None:
    shared = set(bucket_keys("p", *one)) & set(bucket_keys("p", *two))
    assert bool(shared) == (one == two)


def tag_of(key: str) -> str:
    """What Redis Cluster takes: what is between the first { and the next }, if that is not empty."""
    return key[key.index("{") + 1 : key.index("}", key.index("{"))]


@given(name=NAME, key=TEXT)
def test_a_key_has_the_documented_form_length_and_hash_tag(name: str, key: str) -> None:
    for made, kind in zip(bucket_keys("ratelimit", name, key), ("state", "slots"), strict=True):
        assert re.fullmatch(r"ratelimit:v1:[^{}:\s]*\{[^{}:\s]*\}[^{}:\s]*:[^{}:\s]*:" + kind, made)
        assert made.isascii()
        assert len(made) < 240
        assert tag_of(made) == hash_tag(name)
        assert "{" in name or tag_of(made) == escape(name)


@pytest.mark.parametrize("name", ["stripe", "{stripe}", "{stripe}.daily", "per-user.{stripe}", "{stripe}{b}"])
def test_a_hash_tag_in_a_name_is_kept(name: str) -> None:
    assert hash_tag(name) == "stripe"
    assert name == "stripe" or f":{name}" in bucket_keys("p", name, "")[0] or "{b}" in name


@pytest.mark.parametrize("name", ["{}", "{", "}", "a}{b", "{}{a}", "}{a}", "{{a}}"])
def test_invalid_hash_tag_is_escaped(name: str) -> None:
    assert hash_tag(name) == escape(name)


@pytest.mark.parametrize("text", ["api", "user@example.com", "a/b", "10.0.0.1", "a-b_c", "proj.tasks.charge"])
def test_ordinary_names_stay_readable(text: str) -> None:
    assert escape(text) == text
