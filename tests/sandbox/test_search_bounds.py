"""What bounds a search: files that are too large, and time that runs out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from lone_guests import start_by

import podbot.sandbox
from podbot.errors import Kind, SandboxError
from podbot.prompt import Prompt
from podbot.prompt.result import ToolResult
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.sandbox import GrepResult as Matches
from podbot.sandbox import MemorySandbox, Sandbox, boot, guest, interpreter
from podbot.sandbox.guest.search import SEARCH_FILE_LIMIT
from podbot.sandbox.ops import READ_LIMIT
from podbot.tools import GrepResult, UnsafeLocalSandboxConfig, UnsafeLocalSandboxSection

BY_RG, BY_PYTHON = "needle", "(?=needle)n"
RUNAWAY = "needle|^(?=(a+)+$)x"
ENOUGH = (0.5, 2.0, 8.0, 32.0)
"""Seconds in which the little that can be found is found, each for a busier machine."""

T = TypeVar("T")


def out_of_time(search: Callable[[float], T], *paths: str, files: Callable[[T], list[str]]) -> T:
    """A search that had the time to find the little there is, in these files, and no more."""
    for seconds in ENOUGH:
        try:
            result = search(seconds)
        except SandboxError as error:
            assert error.kind is Kind.TIMEOUT
        else:
            if files(result) == list(paths):
                return result
    pytest.fail("it never found them")


def late_grep(sandbox: Sandbox, pattern: str, *paths: str, **options: str) -> Matches:
    """The same for the verb."""

    def search(seconds: float) -> Matches:
        return sandbox.grep(pattern, timeout=seconds, **options)

    return out_of_time(search, *paths, files=paths_of)


def paths_of(found: Matches) -> list[str]:
    return [each.path for each in found.matches]


def files_of(result: ToolResult[object]) -> list[str]:
    """What a call of the tool found."""
    found = result.value
    return [str(each.path) for each in found.matches] if isinstance(found, GrepResult) else []


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with podbot.sandbox.open("local") as sandbox:
        sandbox.write("a.txt", "needle\n")
        sandbox.write("z/z.txt", "one\nneedle\n")
        yield sandbox


def grow(sandbox: Sandbox, name: str, size: int) -> None:
    """Make a file of holes."""
    path = Path(sandbox.workdir, name)
    path.touch()
    os.truncate(path, size)


def found(sandbox: Sandbox, pattern: str, **options: object) -> list[str]:
    result = sandbox.grep(pattern, **options)  # type: ignore[arg-type]  # a path, a glob, a time
    assert not result.timed_out
    return [match.path for match in result.matches]


@pytest.mark.parametrize("pattern", [BY_RG, BY_PYTHON])
def test_a_huge_file_does_not_cost_the_matches_of_the_others(
    sandbox: Sandbox, pattern: str
) -> None:
    grow(sandbox, "b.bin", 1 << 40)
    grow(sandbox, "z/big.txt", 1 << 40)

    assert found(sandbox, pattern) == ["a.txt", "z/z.txt"]
    assert sandbox.grep(pattern).skipped == 2
    # Those that a glob leaves out were not skipped.
    assert sandbox.grep(pattern, glob="**/*.txt").skipped == 1
    assert sandbox.grep(pattern, glob="**/[a-y]*.txt").skipped == 1
    assert sandbox.grep(pattern, glob="*.txt").skipped == 0
    assert sandbox.grep(pattern, "z").skipped == 1
    alone = sandbox.grep(pattern, "b.bin")
    assert (alone.matches, alone.skipped, alone.truncated) == ((), 1, False)


@pytest.mark.parametrize("pattern", [BY_RG, BY_PYTHON])
def test_the_largest_file_that_is_searched_has_64_mib(sandbox: Sandbox, pattern: str) -> None:
    assert SEARCH_FILE_LIMIT == READ_LIMIT == 64 << 20
    text = "needle\n" + "x" * 9_000  # so that the holes do not make it binary
    sandbox.write("b.txt", text)
    grow(sandbox, "b.txt", READ_LIMIT)
    assert "b.txt" in found(sandbox, pattern)
    grow(sandbox, "b.txt", READ_LIMIT + 1)
    assert "b.txt" not in found(sandbox, pattern)


def test_memory_skips_what_a_guest_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podbot.sandbox.memory.READ_LIMIT", 100)
    files = {"a": "needle\n", "b": "needle\n" * 15, "c": "needle\n"}
    with MemorySandbox(files=files) as sandbox:
        assert found(sandbox, "needle") == ["a", "c"]
        assert sandbox.grep("needle").skipped == 1


@pytest.mark.parametrize("backend", ["memory", "local"])
def test_when_time_runs_out_there_is_what_was_found_so_far(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podbot.sandbox._matching.GRACE", 60.0)  # an interpreter starts in it
    with podbot.sandbox.open(backend) as sandbox:
        sandbox.write("a", "needle\n")
        sandbox.write("b", "a" * 60 + "b\n")
        sandbox.write("c", "needle\n")

        late = late_grep(sandbox, RUNAWAY, "a")
        assert late.timed_out
        assert late.truncated

        with pytest.raises(SandboxError) as raised:
            sandbox.grep(RUNAWAY, glob="b", timeout=0.5)
        assert raised.value.kind is Kind.TIMEOUT
        assert found(sandbox, "needle") == ["a", "c"]  # it goes on


def fake_rg(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have a script in the place of rg: it shall be slow, and rg is not."""
    program = folder / "rg"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(interpreter, "ripgrep", lambda: str(program))


@pytest.mark.parametrize("pattern", ["needle", r"\bneedle\b"])
def test_what_rg_found_until_its_time_ran_out_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    rows = r"printf './z.txt\0002:needle\n./a.txt\0001:needle\n./b.txt\0001:nee'"
    fake_rg(tmp_path, monkeypatch, f"{rows}; exec sleep 60.5")
    with podbot.sandbox.open("local") as sandbox:
        late = late_grep(sandbox, pattern, "a.txt", "z.txt")
    assert [(match.path, match.line_number) for match in late.matches] == [
        ("a.txt", 1),
        ("z.txt", 2),
    ]
    assert late.timed_out
    assert late.truncated


def test_a_search_by_rg_that_found_nothing_in_time_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_rg(tmp_path, monkeypatch, "exec sleep 60.6")
    with podbot.sandbox.open("local") as sandbox, pytest.raises(SandboxError) as raised:
        sandbox.grep("needle", timeout=0.5)
    assert raised.value.kind is Kind.TIMEOUT


def altered_guest(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Have guests in which something was changed: what needs a slow machine shall happen here."""
    plain = boot.started_from(str(Path(guest.__file__).parent))
    change = f"from podbot.sandbox.guest import ripgrep, search\n{change}\n"
    code = plain.replace("main.main()", f"{change}main.main()")
    assert code != plain
    start_by(monkeypatch, [sys.executable, "-I", "-B", "-c", code])


def test_rg_is_not_started_again_when_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    starts.touch()  # with so little time rg may be killed before it did anything
    fake_rg(tmp_path, monkeypatch, f'echo "$@" >> {starts}; exec sleep 60.7')
    with podbot.sandbox.open("local") as sandbox, pytest.raises(SandboxError) as raised:
        sandbox.grep("needle", timeout=0.1)
    assert raised.value.kind is Kind.TIMEOUT
    assert "--max-filesize" not in starts.read_text()
    assert len(starts.read_text().splitlines()) <= 1


TWO_ROWS = r"printf './z.txt\0002:needle\n./a.txt\0001:needle\n'"


@pytest.mark.parametrize(
    ("change", "end"),
    [
        ("", "exec sleep 60.8"),
        ("ripgrep.SEARCH_AGAIN = 60", "kill -9 $$"),
        (
            "ripgrep.SEARCH_AGAIN = 60\n"
            "ripgrep.SEARCH_OUTPUT_LIMIT = search.SEARCH_OUTPUT_LIMIT = 40",
            r"printf './b.txt\0001:nee'",
        ),
    ],
    ids=["it took all of the time", "it was killed", "it found too much"],
)
def test_what_the_only_run_of_rg_found_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, end: str
) -> None:
    starts = tmp_path / "starts"
    altered_guest(monkeypatch, change)
    fake_rg(tmp_path, monkeypatch, f"echo >> {starts}; {TWO_ROWS}; {end}")

    def search(seconds: float) -> Matches:
        starts.write_text("")
        return sandbox.grep("needle", timeout=seconds)

    with podbot.sandbox.open("local") as sandbox:
        late = out_of_time(search, "a.txt", "z.txt", files=paths_of)
    assert late.timed_out
    assert len(starts.read_text().splitlines()) == 1


def test_rows_that_were_verified_before_the_time_was_up_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runaway = r"printf './b.txt\0001:" + "a" * 60 + r"b\n'"
    fake_rg(tmp_path, monkeypatch, f"{TWO_ROWS}; {runaway}; {TWO_ROWS}")
    with podbot.sandbox.open("local") as sandbox:
        late = late_grep(sandbox, r"\bneedle|(a+)+$", "a.txt", "z.txt")
        assert late.timed_out


ENDLESS_WALK = """
import time
quick = search.walk
def walk(folder):
    yield from quick(folder)
    time.sleep(60)
search.walk = walk
"""


def test_no_match_is_lost_when_there_is_no_time_to_count_what_was_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered_guest(monkeypatch, ENDLESS_WALK)
    bounded = f'case "$*" in *--max-filesize*) {TWO_ROWS};; *) kill -9 $$;; esac'
    fake_rg(tmp_path, monkeypatch, bounded)
    with podbot.sandbox.open("local") as sandbox:
        grow(sandbox, "big.txt", 1 << 40)
        result = late_grep(sandbox, "needle", "a.txt", "z.txt", glob="*.txt")
    assert not result.timed_out
    assert not result.truncated
    assert result.skipped == 1


def test_a_time_too_short_for_anything_is_refused_like_any_other(sandbox: Sandbox) -> None:
    for _ in range(3):
        with pytest.raises(SandboxError) as raised:
            sandbox.grep(BY_PYTHON, timeout=1e-6)
        assert raised.value.kind is Kind.TIMEOUT


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), None, "5", True])
@pytest.mark.parametrize("backend", ["memory", "local"])
def test_a_time_that_makes_no_sense_is_refused_before_anything_is_searched(
    backend: str, timeout: float
) -> None:
    with podbot.sandbox.open(backend) as sandbox:
        with pytest.raises(SandboxError) as raised:
            sandbox.grep("x", timeout=timeout)
        assert raised.value.kind is Kind.INVALID
        assert repr(timeout) in raised.value.message


def test_the_tool_says_what_was_skipped_and_that_time_ran_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = UnsafeLocalSandboxSection(
        session=Session(bus=InProcessEventBus()),
        config=UnsafeLocalSandboxConfig(workspace_root=tmp_path),
    )
    with Prompt(ns="a", key="b", sections=[section]) as prompt:
        sandbox = section.open()
        grow(sandbox, "big", 1 << 40)
        sandbox.write("a", "needle\n")
        done = prompt.call("grep", {"pattern": "needle"})
        assert isinstance(done.value, GrepResult)
        assert done.value.skipped == 1
        assert "1 file was not searched, being larger than 64 MiB" in done.message

        grow(sandbox, "large", 1 << 40)
        sandbox.write("b", "a" * 60 + "b\n")

        def search(seconds: float) -> ToolResult[object]:
            monkeypatch.setattr("podbot.tools._file_tools.SEARCH_SECONDS", seconds)
            return prompt.call("grep", {"pattern": RUNAWAY})

        late = out_of_time(search, "a", files=files_of)
        assert isinstance(late.value, GrepResult)
        assert (late.success, late.value.timed_out) == (True, True)
        assert "The time was up before all was searched" in late.message
        assert "There are more" not in late.message


def test_a_search_in_memory_that_does_not_stop_by_itself_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("podbot.sandbox._matching.GRACE", -59.5)  # so that nobody waits for it
    with MemorySandbox(files={"a": "a" * 60 + "b\n"}) as sandbox:
        with pytest.raises(SandboxError) as raised:
            sandbox.grep(RUNAWAY, timeout=60.0)
        assert raised.value.kind is Kind.TIMEOUT
