"""JSON of someone else: its text, and the fields of its objects."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from podbot.json_fields import Fields, RepeatedNameError, parsed

GOOD = {
    "text": "a", "number": 3, "flag": True, "since": 1.5, "names": ["a", "b"],
    "part": {"text": "b"}, "null": None,
}  # fmt: skip


def test_each_field_is_of_its_type() -> None:
    fields = Fields(parsed(json.dumps(GOOD)))
    assert (fields.text("text"), fields.number("number"), fields.flag("flag")) == ("a", 3, True)
    assert (fields.seconds("since"), fields.seconds("number")) == (1.5, 3.0)
    assert (fields.texts("names"), fields.items("names")) == (("a", "b"), ["a", "b"])
    assert fields.part("part").text("text") == "b"


def test_what_is_missing_counts_as_what_the_reader_says() -> None:
    fields = Fields(GOOD)
    assert (fields.text("no", ""), fields.flag("no"), fields.texts("no", [])) == ("", False, ())
    for name in ("no", "null"):
        assert (fields.optional_text(name), fields.optional_number(name)) == (None, None)
        assert not fields.has(name)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda fields: fields.text("no"), "no is not text"),
        (lambda fields: fields.text("null", "a"), "null is not text"),
        (lambda fields: fields.optional_text("number"), "number is not text"),
        (lambda fields: fields.flag("no", None), "no is not a flag"),
        (lambda fields: fields.flag("null"), "null is not a flag"),
        (lambda fields: fields.flag("number"), "number is not a flag"),
        (lambda fields: fields.number("no"), "no is not a number from 0 to "),
        (lambda fields: fields.number("flag"), "flag is not a number"),
        (lambda fields: fields.number("since"), "since is not a number"),
        (lambda fields: fields.number("number", 4), "number is not a number from 4 to "),
        (lambda fields: fields.number("number", 0, 2), "number is not a number from 0 to 2"),
        (lambda fields: fields.optional_number("number", 0, 2), "number is not a number from"),
        (lambda fields: fields.seconds("flag"), "flag is not a number of seconds"),
        (lambda fields: fields.seconds("text"), "text is not a number of seconds"),
        (lambda fields: fields.texts("text"), "text is not a list"),
        (lambda fields: fields.items("no"), "no is not a list"),
        (lambda fields: fields.part("names"), "names is not an object"),
        (lambda fields: fields.part("no"), "no is not an object"),
    ],
)
def test_a_field_of_another_type_is_refused(read: Callable[[Fields], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        read(Fields(GOOD))


@pytest.mark.parametrize("said", [float("inf"), float("nan"), 1e12, -1.0])
def test_seconds_are_finite_and_not_below_zero(said: float) -> None:
    with pytest.raises(ValueError, match="not a number of seconds"):
        Fields({"since": said}).seconds("since")


def test_a_list_of_text_holds_nothing_else() -> None:
    with pytest.raises(ValueError, match="names is not a list of text"):
        Fields({"names": ["a", 1]}).texts("names")


@pytest.mark.parametrize("said", [[], "a", 1, None])
def test_only_an_object_has_fields(said: object) -> None:
    with pytest.raises(ValueError, match="a row is not an object"):
        Fields(said, "a row")


def test_a_reader_chooses_its_error() -> None:
    class Guarded(Fields):
        def wrong(self, name: str, wanted: str) -> Exception:
            return LookupError(f"{name}: {wanted}")

    with pytest.raises(LookupError, match=r"^text: text$"):
        Guarded({"part": {}}).part("part").text("text")


@pytest.mark.parametrize("text", ["[NaN]", "-Infinity", "[" * 100_000, "{", b"\xff", "1" * 5000])
@pytest.mark.parametrize("unique", [False, True])
def test_a_text_that_is_not_json_is_a_value_error(text: str | bytes, unique: bool) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed(text, unique=unique)


def test_a_name_that_comes_twice_is_told() -> None:
    text = b'{"a": 1, "b": {"c": 1, "c": 2}}'
    assert parsed(text) == {"a": 1, "b": {"c": 2}}
    with pytest.raises(RepeatedNameError) as caught:
        parsed(text, unique=True)
    assert caught.value.name == "c"
