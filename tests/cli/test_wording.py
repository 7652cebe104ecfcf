"""How the command looks: safe names, tables that fit, a pager that is the user's own."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import Terminal

from podbot.cli import as_data, pager, wording
from podbot.cli.progress import Progress
from podbot.cli.talk import Talk
from podbot.cli.wording import Column, Display
from podbot.review import data

PLAIN = Display()


def test_a_name_from_inside_stays_on_its_line_and_commands_nothing() -> None:
    assert wording.name("a\nb\tc\x1b[2Jd\u202ee\udcff") == "a\\nb\\tc\\x1b[2Jd\\u202ee\\xff"
    assert wording.message("one\x07\ntwo") == "one\\x07\ntwo"
    assert wording.message(wording.name("a\x1b\\")) == wording.name("a\x1b\\") == "a\\x1b\\\\"
    assert wording.words(["rm", "-f", "a b\n"]) == "rm -f 'a b\\n'"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (120 << 10, "120 KiB"),
     (1 << 20, "1.0 MiB"), (1020 << 10, "1.0 MiB"), (5 << 50, "5120 TiB")],
)  # fmt: skip
def test_sizes_are_short(number: int, text: str) -> None:
    assert wording.size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59.9, "59 s"), (60, "1 min"), (7201, "2 h"), (2e5, "2 d")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


def test_counts_and_lists_are_words() -> None:
    assert [wording.count(n, "change") for n in (0, 1, 2)] == ["0 changes", "1 change", "2 changes"]
    assert wording.listed(["a", "b", "c"], 3) == ["a", "b", "c"]
    assert wording.listed(["a", "b", "c", "d"], 3) == ["a", "b", "… and 2 more"]


def test_a_table_is_aligned_and_whole_in_a_pipe() -> None:
    columns = (Column("A"), Column("LONG", gives_way=True))
    rows = [("x", "y" * 300), ("日本", "z")]

    assert wording.table(columns, rows, PLAIN) == [
        "A     LONG",
        "x     " + "y" * 300,
        "日本  z",
    ]


def test_a_table_fits_the_terminal_by_cutting_what_gives_way() -> None:
    columns = (
        Column("ID"),
        Column("TARGET", gives_way=True, keeps_end=True),
        Column("COMMAND", gives_way=True),
    )
    rows = [("1234", "/home/someone/work/project", "make all the things there are to make")]

    lines = wording.table(columns, rows, Display(width=40))

    assert [wording.cells(line) for line in lines] == [31, 40]
    assert lines[1].endswith("make all the th…")
    assert "…ne/work/project" in lines[1]


def test_a_table_that_cannot_fit_is_cut() -> None:
    rows = [("x" * 50, "y" * 50)]
    columns = (Column("A"), Column("B", gives_way=True))
    assert wording.table(columns, rows, Display(width=60))[1] == "x" * 50 + "  yyyyyyy…"
    assert wording.table(columns, rows, Display(width=20))[1] == "x" * 19 + "…"


def test_colours_are_only_for_streams_that_have_them() -> None:
    assert Display(colour=True).paint("x", "added") == "\x1b[32mx\x1b[0m"
    assert PLAIN.paint("x", "added") == Display(colour=True).paint("x", None) == "x"
    assert wording.display_of(io.StringIO()) == PLAIN
    assert not wording.is_terminal(None)
    closed = io.StringIO()
    closed.close()
    assert not wording.is_terminal(closed)


def test_letters_an_encoding_lacks_are_spelled_out() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    wording.never_fail(stream)
    stream.write("…")
    stream.flush()
    assert raw.getvalue() == b"\\u2026"


@pytest.mark.parametrize("width", range(12, 40))
def test_an_arrow_is_never_parted_from_what_it_leads_to(width: int) -> None:
    line = f"l               current name → {'x' * 20}/released (mode 0644 → 0600)"

    rows = wording.wrapped(line, width, 6)

    assert all(wording.cells(row) <= width for row in rows)
    assert not any(row.endswith("→") for row in rows)
    assert "".join("".join(rows).split()) == "".join(line.split())


# JSON


def test_a_text_that_is_not_unicode_comes_with_its_exact_bytes() -> None:
    assert data.text("path", "a\udcffb") == {"path": "a\ufffdb", "path_base64": "Yf9i"}
    assert data.text("path", "ä") == {"path": "ä"}
    assert data.text("path", None) == {"path": None}
    assert data.text("path", "\ud800") == {"path": "?"}
    assert data.texts("all", ["a", "\udcff"]) == {
        "all": ["a", "\ufffd"],
        "all_base64": ["YQ==", "/w=="],
    }


def test_a_long_list_is_valid_json_however_long_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    for head in ({}, {"a": 1}):
        for items in ([], [{"x": 1}], [{"x": 1}, {"y": [2]}]):
            as_data.show_long(head, "items", iter(items))
            assert json.loads(capsys.readouterr().out) == {**head, "items": items}


# The pager


def in_terminal(script: str, **env: str) -> Terminal:
    """Some Python on a terminal of 10 lines and 40 columns."""
    settings = {"LINES": "10", "COLUMNS": "40", "TERM": "xterm", "PAGER": "", **env}
    code = "import sys\nfrom podbot.cli import pager\n" + script
    return Terminal([sys.executable, "-c", code], settings)


SHOW = "pager.show((f'line {n}' for n in range(%d)), sys.stdout)"


def test_what_fits_on_the_screen_needs_no_pager() -> None:
    terminal = in_terminal(SHOW % 9, PODBOT_PAGER="sed s/line/paged/")
    assert terminal.end() == 0
    assert b"line 8" in terminal.shown
    assert b"paged" not in terminal.shown


def test_what_does_not_fit_goes_through_the_pager() -> None:
    terminal = in_terminal(SHOW % 10, PODBOT_PAGER="sed s/line/paged/")
    assert terminal.end() == 0
    assert b"paged 0" in terminal.shown
    assert b"paged 9" in terminal.shown


def test_the_pagers_that_may_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "less"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PODBOT_PAGER", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for value, command in {
        "": None,
        "cat": None,
        "'": None,
        "./less": None,
        "no-such-pager-anywhere": None,
        f"{own} -i": [str(own), "-i", "-R"],
        "sort -r": ["/usr/bin/sort", "-r"],
    }.items():
        monkeypatch.setenv("PAGER", value)
        found = pager._command()
        assert (found and [os.path.realpath(found[0]), *found[1:]]) == (
            command and [os.path.realpath(command[0]), *command[1:]]
        )
    monkeypatch.setenv("PODBOT_PAGER", "cat")
    assert pager._command() is None
    monkeypatch.setenv("PODBOT_PAGER", str(own))
    monkeypatch.setenv("TERM", "dumb")
    assert pager._command() is None


def test_a_pager_in_the_tree_under_review_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trap = tmp_path / "less"
    trap.write_text("#!/bin/sh\ntouch trapped\n")
    trap.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PODBOT_PAGER", raising=False)
    monkeypatch.delenv("PAGER", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PATH", f".::{os.environ['PATH']}")

    found = pager._command()

    assert found is None or not os.path.samefile(found[0], trap)


def test_the_pager_runs_far_from_the_tree_and_without_its_ways_out() -> None:
    spy = "sh -c 'cat >/dev/null; pwd; env'"
    terminal = in_terminal(SHOW % 99, PODBOT_PAGER=spy, LESSOPEN="|evil %s", LESS="")
    assert terminal.end() == 0
    shown = terminal.shown.decode().splitlines()
    assert shown[0] == "/"
    assert "LESSSECURE=1" in shown
    assert not any(line.startswith("LESSOPEN") for line in shown)


def test_leaving_the_pager_early_leaves_the_rest_undone() -> None:
    endless = "import itertools\npager.show((f'line {n}' for n in itertools.count()), sys.stdout)"
    terminal = in_terminal(endless + "\nprint('after')", PODBOT_PAGER="head -n 1")
    assert terminal.end() == 0
    assert terminal.shown.decode().split() == ["line", "0", "after"]


def test_ctrl_c_in_the_pager_is_for_the_pager() -> None:
    stubborn = "sh -c 'trap \"echo one\" INT; cat >/dev/null; echo ready; read x </dev/tty'"
    terminal = in_terminal(SHOW % 99 + "\nprint('after')", PODBOT_PAGER=stubborn)
    terminal.until("ready")
    terminal.send("\x03")
    terminal.until("one")
    terminal.send("done\r")
    terminal.until("after")
    assert terminal.end() == 0


def test_a_pager_that_cannot_start_is_done_without(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\0\0\0\0")
    broken.chmod(0o755)
    terminal = in_terminal(SHOW % 20, PODBOT_PAGER=str(broken))
    assert terminal.end() == 0
    assert b"line 19" in terminal.shown


@pytest.mark.skipif(not os.path.exists("/usr/bin/less"), reason="less is not installed")
def test_less_shows_our_colours_and_gives_the_terminal_back() -> None:
    script = "pager.show((f'\\x1b[32mline {n}\\x1b[0m' for n in range(99)), sys.stdout)"
    terminal = in_terminal(script + "\nprint('after')", PODBOT_PAGER="less -FX")
    terminal.until("\x1b[32mline 8")
    terminal.send("q")
    terminal.until("after")
    assert terminal.end() == 0


# Questions and signs of life


class Typed(io.StringIO):
    """Lines someone typed; reading from it as from a pipe."""


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    stream = Typed(" yes \nno\n")
    monkeypatch.setattr(sys, "stdin", stream)
    yield stream


def test_an_answer_is_a_line_and_the_end_is_none(typed: io.StringIO) -> None:
    out = io.StringIO()
    talk = Talk(out, PLAIN)
    assert [talk.ask("sure?") for _ in range(3)] == ["yes", "no", None]
    assert out.getvalue() == "sure? \n" * 3


def test_only_a_yes_is_sure(typed: io.StringIO) -> None:
    talk = Talk(io.StringIO(), PLAIN)
    assert [talk.is_sure("go?") for _ in range(3)] == [True, False, False]


def test_no_input_at_all_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Talk(io.StringIO(), PLAIN)
    monkeypatch.setattr(sys, "stdin", None)
    assert talk.ask("there?") is None
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdin", closed)
    assert talk.ask("there?") is None


def test_bytes_that_are_no_text_answer_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stream)
    assert Talk(io.StringIO(), PLAIN).ask("what?") == ""


WORK = """
from podbot.cli import progress
progress.PATIENCE = progress._EVERY = 0.01
with progress.Progress("working", 7) as work:
    work.done = %d
    %s
print("after")
"""


def test_long_work_shows_how_far_it_is_and_wipes_that_away() -> None:
    for done, text in ((3, "working: 3 of 7 …"), (0, "working … 0 s")):
        terminal = in_terminal(WORK % (done, "sys.stdin.readline()"))
        terminal.until(text)
        terminal.send("enough\r")
        terminal.until("\r\x1b[Kafter")
        assert terminal.end() == 0


def test_quick_work_shows_nothing() -> None:
    terminal = in_terminal((WORK % (3, "pass")).replace("0.01", "60"))
    assert terminal.end() == 0
    assert terminal.shown == b"after\r\n"


def test_work_says_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("working") as work:
        work.done += 1
    assert capsys.readouterr() == ("", "")


def test_times_that_no_clock_shows_are_unknown() -> None:
    for odd in (float("nan"), float("inf"), 1e300):
        assert wording.moment(odd) == wording.UNKNOWN
    assert wording.duration(float("nan")) == wording.duration(float("inf")) == wording.UNKNOWN
