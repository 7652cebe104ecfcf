"""What ends the output of a script in a shell that goes on, when something hostile writes it."""

from __future__ import annotations

from podbot.sandbox.shell_sessions import LONGEST_MARK, _Stream

MARK = b"\0secret.1:"


def test_a_mark_is_known_however_it_is_cut() -> None:
    whole = b"said" + MARK + b"3:/work\0"
    for cut in range(1, len(whole)):
        stream = _Stream("stdout", MARK, 1000)
        assert not stream.take(whole[:cut], 0)
        assert stream.take(whole[cut:], 0)
        assert (bytes(stream.data), stream.told()) == (b"said", (3, "/work"))


def test_a_mark_that_has_no_end_fills_no_memory() -> None:
    stream = _Stream("stdout", MARK, 1000)
    stream.take(MARK, 0)
    for _ in range(100):
        assert not stream.take(b"/" * LONGEST_MARK, 0)
        assert len(stream._behind) <= 2 * LONGEST_MARK
    assert len(stream.data) == 1000 and stream.truncated
    assert stream.take(MARK + b"0:/\0", 0), "the one that is real still counts"
