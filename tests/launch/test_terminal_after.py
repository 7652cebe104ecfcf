"""What a command does to the terminal does not reach what podbot says after it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import PODBOT, workplace
from emulator import Emulator
from screen import Screen

from podbot.launch import terminal

HOOK = "mkdir -p .git/hooks; echo evil > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; "
TRICKS = {
    "a scroll region of one line": r"\033[1;1r",
    "a region in the middle, from which the cursor starts": r"\033[10;11r\033[?6h\033[2;1H",
    "line drawing letters": r"\033(0",
    "line drawing letters, shifted in": r"\033)0\016",
    "the other screen": r"\033[?1049h",
    "the other screen, in an older way": r"\033[?47h",
    "hidden letters": r"\033[8m",
    "a title without an end": r"\033]0;",
    "a string without an end": r"\033P",
    "lines that are cut": r"\033[?7l",
    "all of it": r"\033[3;4r\033)0\016\033[8m\033[?1049h\033[5;6r\033[?6h\033[?25l\033_",
    "text below that looks like ours": r"\033[20;1Hnothing runs by itself\033[3;1H",
}


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def seen_after(project: Path, script: str) -> Emulator:
    """The terminal as a person sees it when the menu waits."""
    emulator = Emulator()
    command = [*PODBOT, "run", "--", "sh", "-c", script]
    with Screen(command, cwd=project, rows=24, columns=80, env={"TERM": "xterm"}) as screen:
        screen.see(b"(Enter keeps):")
        emulator.feed(screen.seen)
        screen.type("\r")
        screen.end()
    return emulator


@pytest.mark.parametrize("trick", TRICKS)
def test_what_podbot_says_is_seen_whatever_the_command_did(project: Path, trick: str) -> None:
    emulator = seen_after(project, HOOK + f"printf '{TRICKS[trick]}'")

    lines = [line for line in emulator.lines if line]
    assert [line.strip() for line in lines[-3:]] == [
        "runs by itself once applied:",
        ".git/hooks/pre-commit: git runs it at the next commit",
        "[r]eview [a]pply [p]ick [s]ave [k]eep [d]iscard [?] (Enter keeps):",
    ]
    assert emulator.other == 0
    assert (emulator.top, emulator.bottom) == (0, 23)


def test_modes_of_keys_mouse_and_cursor_are_as_before(project: Path) -> None:
    on = "".join(rf"\033[?{mode}h" for mode in (1, 1000, 1002, 1003, 1004, 1006, 2004, 2026))
    emulator = seen_after(project, HOOK + rf"printf '{on}\033[?25l\033=\033[>5u'")
    assert emulator.modes == {7, 25}
    assert not emulator.keypad
    assert emulator.kitty == []


def test_what_the_command_wrote_stays_where_it_is(project: Path) -> None:
    for start in ("", r"\033[?1049h\033[Hgone\033[?1049l"):
        emulator = seen_after(project, f"echo x > {len(start)}; printf 'first\\n{start}second\\n'")
        lines = [line for line in emulator.lines if line]
        assert lines[:2] == ["first", "second"]
        assert lines[2].startswith("1 change: ")


def test_a_command_that_wrote_text_alone_is_followed_by_text_alone(project: Path) -> None:
    command = [*PODBOT, "run", "--", "sh", "-c", "echo hello; echo x > one"]
    with Screen(command, cwd=project, env={"TERM": "xterm", "NO_COLOR": "1"}) as screen:
        screen.see("(Enter keeps):")
        # But for a sign of life, which a slow machine may need.
        assert b"\x1b" not in screen.seen.replace(b"\r\x1b[K", b"")
        screen.type("\r")
        screen.end()


def test_nothing_is_said_to_a_terminal_that_would_show_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*PODBOT, "run", "--keep", "--", "sh", "-c", r"printf '\033[m'; echo x > one"]
    with Screen(command, cwd=project, env={"TERM": "dumb"}) as screen:
        screen.end()
        assert b"\x1b[r" not in screen.seen
    done = subprocess.run(command, cwd=project, capture_output=True, check=False)
    assert b"\x1b" not in done.stderr


def test_calming_moves_nothing_on_a_terminal_that_is_calm() -> None:
    emulator = Emulator()
    emulator.feed(b"one\r\ntwo\r\nthree")
    before = (emulator.at, emulator.lines)
    emulator.feed(terminal.CALM.encode())
    assert (emulator.at, emulator.lines) == before


# A command that failed as the network was off

PYTHON = ["--", sys.executable, "-c"]
CONNECT = "import socket; socket.create_connection(('{}', 80), 10)"
ASK_A_RESOLVER_HERE = """
import socket
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.sendto(b"?", ("127.0.0.53", 53))
raise SystemExit(1)
"""


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        ([*PYTHON, CONNECT.format("192.0.2.1")], True),
        ([*PYTHON, CONNECT.format("2001:db8::1")], True),
        ([*PYTHON, CONNECT.format("host.example.org")], True),
        ([*PYTHON, f"open('one', 'w'); {CONNECT.format('192.0.2.1')}"], True),
        ([*PYTHON, ASK_A_RESOLVER_HERE], True),
        ([*PYTHON, CONNECT.format("127.0.0.1")], False),
        (["--", "false"], False),
        (["--", "sh", "-c", "echo x > one; exit 1"], False),
        (["--", "grep", "-q", "no such line", "/etc/passwd"], False),
        ([*PYTHON, "1/0"], False),
        (["--", "true"], False),
        ([*PYTHON, f"try: {CONNECT.format('192.0.2.1')}\nexcept OSError: pass"], False),
        (["--net", "host", "--", "false"], False),
        (["--json", *PYTHON, CONNECT.format("192.0.2.1")], False),
        (["--", "sh", "-c", "kill -TERM $$"], False),
        (["--", "no-such-program"], False),
        (["--timeout", "0.3", "--", "sleep", "60"], False),
    ],
)
def test_a_failure_without_network_says_so_once(
    project: Path, words: list[str], is_told: bool
) -> None:
    done = subprocess.run(
        [*PODBOT, "run", *words], cwd=project, capture_output=True, text=True, check=False
    )
    told = "podbot run: it found the network off\n  to allow it: podbot run --allow HOST\n"
    assert done.stderr.count(told) == is_told
    assert all(len(line) <= 40 for line in told.splitlines())
    assert done.stdout == ""
