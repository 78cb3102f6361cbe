"""Keys are never ambiguous, whatever users put into names and keys, and never without bounds."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_ratelimit.keys import bucket_keys, escape

AWKWARD = [
    *(
        "",
        " ",
        ":",
        "::",
        "{",
        "}",
        "{}",
        "{a}",
        "a:b",
        "a}:{b",
        "%",
        "%3A",
        "%253A",
        "*",
        "?",
        "[a]",
        "\\",
        "\n",
        "\0",
    ),
    *(
        "#",
        "a#b",
        "u\u0308",
        "\u00fc",
        "日本語",
        "🦊",
        "A",
        "a",
        "1",
        "01",
        "x" * 80,
        "x" * 81,
        "x" * 82,
        "ü" * 40,
        "ü" * 41,
    ),
    *("x" * 40 + "#" + "0" * 32, "x" * 10_000, "x" * 9_999 + "y", ":tat", ":slots", "v1", "None", "'", '"', "~", "/"),
]

#: A lone surrogate has no bytes, but JSON may hold one.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)


def test_awkward_names_and_keys_have_buckets_of_their_own() -> None:
    assert len(set(AWKWARD)) == len(AWKWARD)
    seen = {name_of: (name, key) for name in AWKWARD for key in AWKWARD for name_of in bucket_keys("p", name, key)}
    assert len(seen) == 2 * len(AWKWARD) ** 2


@given(one=st.tuples(TEXT, TEXT), two=st.tuples(TEXT, TEXT))
@example(("a", "b:c"), ("a:b", "c"))
@example(("a}:b", ""), ("a", "}:b"))
def test_different_buckets_never_share_a_key(one: tuple[str, str], two: tuple[str, str]) -> None:
    shared = set(bucket_keys("p", *one)) & set(bucket_keys("p", *two))
    assert bool(shared) == (one == two)


@given(name=TEXT, key=TEXT)
def test_a_key_has_the_documented_form_and_length(name: str, key: str) -> None:
    for made, kind in zip(bucket_keys("ratelimit", name, key), ("tat", "slots"), strict=True):
        assert re.fullmatch(r"ratelimit:v1:\{[^{}:\s]*\}:[^{}:\s]*:" + kind, made)
        assert made.isascii()
        assert len(made) < 200


@given(name=TEXT, key=TEXT)
def test_the_hash_tag_of_a_cluster_is_the_limits_name(name: str, key: str) -> None:
    """Redis Cluster takes what is between the first { and the next }: the same for all keys of a limit."""
    tags = {made[made.index("{") + 1 : made.index("}")] for made in bucket_keys("ratelimit", name, key)}
    assert tags == {escape(name)}


@pytest.mark.parametrize("text", ["api", "user@example.com", "a/b", "10.0.0.1", "a-b_c", "proj.tasks.charge"])
def test_ordinary_names_stay_readable(text: str) -> None:
    assert escape(text) == text


def test_a_lone_surrogate_is_a_key_like_any_other() -> None:
    """``json.loads('"\\\\ud800"')`` makes one, so an argument can hold it."""
    assert bucket_keys("p", "api", "\ud800") != bucket_keys("p", "api", "\ud801")
