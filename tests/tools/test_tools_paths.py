"""Paths that models write never escape, and files on the host are only those allowed."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from podbot.errors import Kind, ToolValidationError
from podbot.tools import VfsPath, normalize_string_path

# A machine under load is slow; that says nothing about what is tested.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

PIECES = st.sampled_from(
    [
        "..",
        ".",
        "/",
        "//",
        "a",
        "b c",
        "workspace",
        "/workspace",
        "~",
        "\\",
        "%2e%2e",
        "é",
        "x" * 81,
    ]
)
WRITTEN = st.one_of(st.text(), st.lists(PIECES).map("/".join), st.lists(PIECES).map("".join))


@settings(PATIENT, max_examples=500)
@given(WRITTEN)
def test_a_path_stays_below_the_workspace_or_is_refused(raw: str) -> None:
    try:
        path = normalize_string_path(raw)
    except ToolValidationError as error:
        assert error.remedy
        assert len(str(error)) < 400
        return
    assert not set(path.segments) & {"", ".", ".."}
    assert len(path.segments) <= 16
    for segment in path.segments:
        assert segment.isascii() and segment.isprintable()
        assert "/" not in segment and len(segment) <= 80
    assert not str(path).startswith("/")


@pytest.mark.parametrize("text", ["\U00010000" * 31, "\0" * 80, "\udcff" * 81, "/é\U0001f600" * 40])
def test_a_refusal_is_short_whatever_has_to_be_escaped_in_it(text: str) -> None:
    with pytest.raises(ToolValidationError) as caught:
        normalize_string_path(text)
    assert len(str(caught.value)) < 300


@PATIENT
@given(WRITTEN)
def test_what_was_normalized_once_stays_as_it_is(raw: str) -> None:
    try:
        path = normalize_string_path(raw)
    except ToolValidationError:
        return
    assert normalize_string_path(str(path)) == path
    assert normalize_string_path("/workspace/" + "/".join(path.segments)) == path


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ("../a", Kind.PATH_ESCAPE),
        ("/etc", Kind.PATH_ESCAPE),
        ("a/./b", Kind.PATH_ESCAPE),
        ("é", Kind.BAD_PATH),
        ("a" * 81, Kind.BAD_PATH),
        ("/".join("a" * 17), Kind.BAD_PATH),
        ("a" * 10_000, Kind.BAD_PATH),
    ],
)
def test_an_error_says_what_kind_it_is(raw: str, kind: Kind) -> None:
    with pytest.raises(ToolValidationError) as raised:
        normalize_string_path(raw, field="cwd")
    assert raised.value.kind is kind
    assert raised.value.message.startswith("cwd")


def test_the_longest_path_fits() -> None:
    longest = "/".join(["a" * 80] * 16)
    assert normalize_string_path(longest).segments == ("a" * 80,) * 16


def test_the_hosts_name_of_the_workspace_is_understood_where_it_is_known() -> None:
    assert normalize_string_path("/tmp/w/a", workdir="/tmp/w") == VfsPath(("a",))
    assert normalize_string_path("/tmp/w", workdir="/tmp/w").is_root
    with pytest.raises(ToolValidationError):
        normalize_string_path("/tmp/wide/a", workdir="/tmp/w")


def test_the_workspace_itself_can_be_refused() -> None:
    with pytest.raises(ToolValidationError, match="the workspace itself"):
        normalize_string_path("/workspace/", allow_root=False)


def test_a_path_knows_what_lies_below_it() -> None:
    path = VfsPath(("a", "b"))
    assert path.below(VfsPath(("a",))) and path.below(path) and path.below(VfsPath())
    assert not path.below(VfsPath(("a", "bc")))
    assert (str(path), str(VfsPath())) == ("a/b", ".")
