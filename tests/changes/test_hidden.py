"""Hidden paths cover all below them, and nothing beside them."""

from __future__ import annotations

import pytest

from podbot.changes._hidden import Hidden

HIDDEN = Hidden(["/a/secret", "/a/b/c", "/z"])


@pytest.mark.parametrize(
    "where", ["/a/secret", "/a/secret/x", "/a/secret/x/y/z", "/a/b/c", "/a/b/c/d", "/z", "/z/y"]
)
def test_what_is_hidden_or_below(where: str) -> None:
    assert HIDDEN.covers(where)
    assert HIDDEN.covers(where)  # from what it knows by now


@pytest.mark.parametrize("where", ["/a", "/a/b", "/a/secrets", "/a/b/cd/e", "/", "/y/z", "/zz/z"])
def test_what_is_beside_or_above(where: str) -> None:
    assert not HIDDEN.covers(where)
    assert not HIDDEN.covers(where)


def test_where_nothing_is_hidden_nothing_is_covered() -> None:
    assert not Hidden(()).covers("/a/secret")


def test_what_lies_below_a_folder() -> None:
    assert sorted(HIDDEN.below("/a")) == ["/a/b/c", "/a/secret"]
    assert HIDDEN.below("/a/secret") == []
