"""The guest runs alone on any Python from 3.8 on: containers bring their own.

Tried with each interpreter named in ``PODBOT_TEST_PYTHONS`` (separated like PATH), else with each
``python3.8`` to ``python3.13`` on PATH that runs, and always with the one that runs the tests.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lone_guests import start_by
from piped import PipedLauncher

from podbot.errors import FileError, Kind
from podbot.sandbox import Policy, Sandbox, Terminal, boot, guest, over_stream
from podbot.sandbox.local import LocalLauncher

OLDEST = (3, 8)
VARIABLE = "PODBOT_TEST_PYTHONS"
GUEST = Path(guest.__file__).parent
WEIGHTY = {"asyncio", "contextlib", "selectors", "socket", "subprocess", "threading", "typing"}
"""Modules that would make every guest start later."""


def _version(python: str) -> str | None:
    """A version such as 3.8, or None if there is no such interpreter (or only a stand-in)."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        found = subprocess.run(
            [python, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _pythons() -> dict[str, str]:
    """{name of the test: interpreter}; one that was asked for by name is kept, runs it or not."""
    found = {"{}.{}".format(*sys.version_info): sys.executable}
    named = os.environ.get(VARIABLE)
    if named:
        return found | {_version(path) or path: path for path in named.split(os.pathsep) if path}
    for minor in range(8, 14):
        path = shutil.which(f"python3.{minor}")
        version = _version(path) if path else None
        if path and version:
            found.setdefault(version, path)
    return found


PYTHONS = _pythons()


@pytest.fixture(params=PYTHONS.values(), ids=list(PYTHONS))
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def box(python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """A local sandbox whose guest is a lone copy of the folder, run by that interpreter."""
    alone = tmp_path / "alone"
    shutil.copytree(GUEST, alone, ignore=shutil.ignore_patterns("__pycache__"))
    kernel = alone / "kernel.py"
    text, found = re.subn(r"(?m)^INTERRUPT_GRACE = .*$", "INTERRUPT_GRACE = 60", kernel.read_text())
    assert found == 1  # a kernel that is slow to hear of an interrupt is not to be given up here
    kernel.write_text(text)

    start_by(monkeypatch, [python, "-I", "-S", "-c", boot.started_from(str(alone))])
    (tmp_path / "work").mkdir()
    launcher = LocalLauncher(tmp_path / "work", policy=Policy(python=python))
    with Sandbox(launcher) as opened:
        yield opened


def test_syntax_is_that_of_the_oldest() -> None:
    for text in boot.sources().values():
        ast.parse(text, feature_version=OLDEST)


def test_starts_light(python: str) -> None:
    code = boot.started_from(str(GUEST)).replace("main.main()", "print(*sys.modules)")
    found = subprocess.run(
        [python, "-I", "-S", "-B", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not WEIGHTY & set(found.stdout.split())


def test_all_of_it_is_loaded_before_it_serves(python: str) -> None:
    """What runs in a sandbox may be able to write where its modules came from."""
    code = boot.started_from(str(GUEST)).replace("main.main()", "print(*sys.modules)")
    loaded = subprocess.run(
        [python, "-I", "-S", "-B", "-c", code], capture_output=True, text=True, check=True
    )
    assert {f"podbot.sandbox.guest.{name}" for name in boot.sources()} <= set(loaded.stdout.split())


def test_it_comes_by_the_line(python: str) -> None:
    launcher = PipedLauncher(Policy(python=python), command=over_stream.command(python))
    with launcher.sandbox() as sandbox:
        sandbox.write("a/b.txt", "needle\n")
        assert sandbox.exec(["cat", "a/b.txt"]).stdout == "needle\n"
        assert sandbox.python("import sys; sys.version_info[:2]").value == str(
            tuple(map(int, (_version(python) or "").split(".")))
        )
        assert [found.path for found in sandbox.grep("needle").matches] == ["a/b.txt"]
        sandbox.remove("a", recursive=True)
        assert sandbox.list(".") == []


def test_commands(box: Sandbox) -> None:
    result = box.exec(["sh", "-c", "cat; echo err >&2; exit 3"], stdin=b"in")
    assert (result.stdout, result.stderr, result.exit_code) == ("in", "err\n", 3)
    large = b"x" * (3 << 20)
    assert box.exec(["cat"], stdin=large).stdout_bytes[:65536] == large[:65536]
    assert box.exec(["sleep", "30"], timeout=0.1).timed_out
    assert box.exec(["sh", "-c", "kill -9 $$"]).signal == 9


def test_processes(box: Sandbox) -> None:
    with box.spawn(["sh", "-c", "read line; echo got $line"]) as process:
        process.write("this\n")
        assert process.stdout.read_all() == b"got this\n"
        assert process.wait(60) == 0
    with box.spawn(["sh", "-c", "test -t 1 && stty size"], terminal=Terminal(12, 34)) as process:
        assert process.stdout.read_all().split() == [b"12", b"34"]


def test_python(box: Sandbox, python: str) -> None:
    assert box.python("import sys; x = 20; print('hello'); x + 1").value == "21"
    result = box.python("'%d.%d' % sys.version_info[:2]")
    assert result.value == repr(_version(python))
    failed = box.python("1 / 0")
    assert failed.error is not None and "ZeroDivisionError" in failed.error
    stopped = box.python("while True: pass", timeout=0.2)
    assert stopped.timed_out
    assert box.python("x").value == "20"


def test_files(box: Sandbox) -> None:
    box.write("a/b/one.txt", "one\ntwo\n")
    box.append("a/b/one.txt", "three\n")
    box.edit("a/b/one.txt", "two", "2")
    assert box.read("a/b/one.txt") == b"one\n2\nthree\n"
    large = os.urandom(3 << 20)
    box.write("large", large)
    assert box.read("large") == large
    box.symlink("link", "a/b/one.txt")
    assert box.stat("link", follow=False).link_target == "a/b/one.txt"
    box.mkdir("empty")
    box.move("a", "c")
    assert [entry.path for entry in box.list(".")] == ["c", "empty", "large", "link"]
    assert [entry.path for entry in box.list("c", recursive=True)] == ["c/b", "c/b/one.txt"]
    assert box.glob("**/*.txt") == ["c/b/one.txt"]
    box.remove("c", recursive=True)
    assert not box.exists("c")
    with pytest.raises(FileError) as caught:
        box.read("../alone/main.py")
    assert caught.value.kind is Kind.PATH_ESCAPE


@pytest.mark.parametrize("pattern", [r"f(o{2,}|x)\b", r"^[^\W\d]+ \S+$", r"(?i:FOO) (?=b)"])
def test_search(box: Sandbox, pattern: str) -> None:
    """Patterns ripgrep does alone, with a check, and not at all: the parser differs by version."""
    box.write("here.txt", "foo bar\nfo bar\n1 föö\n")
    found = box.grep(pattern).matches
    assert [(match.path, match.line_number) for match in found][:1] == [("here.txt", 1)]
