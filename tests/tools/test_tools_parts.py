"""The smaller parts: limits when called directly, the variables, cancelling across threads."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path

import pytest
from workplace import DEADLINE, running, unique_sleep, wait_for

import podbot.tools
from podbot.config import variables
from podbot.errors import Kind, LaunchError, SandboxError, ToolValidationError
from podbot.sandbox import ExecResult, LocalSandbox, MemorySandbox, ops
from podbot.tools import (
    EvalParams,
    GlobResult,
    GrepMatch,
    GrepResult,
    Listing,
    ReadFileResult,
    ShellParams,
    VfsPath,
    evaluation,
    live,
    shell,
)

# Variables


def test_a_variable_wins_over_its_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODBOT_CACHE", raising=False)
    monkeypatch.setenv("WEAKINCENTIVES_CACHE", "/old")
    assert variables.CACHE.read() == "/old"
    monkeypatch.setenv("PODBOT_CACHE", "/new")
    assert variables.CACHE.read() == "/new"
    monkeypatch.setenv("PODBOT_CACHE", "")
    assert variables.CACHE.read() == "/old"
    monkeypatch.delenv("WEAKINCENTIVES_CACHE")
    assert variables.CACHE.read() is None


def test_the_table_names_each_variable_once_and_says_what_it_is() -> None:
    names = [name for each in variables.TABLE for name in (each.name, each.alias) if name]
    assert len(names) == len(set(names))
    assert all(each.meaning and each.name.startswith("PODBOT_") for each in variables.TABLE)
    assert {each.alias for each in variables.TABLE if each.alias} == {
        "WEAKINCENTIVES_CACHE",
        "WEAKINCENTIVES_WORKSPACE_ROOT",
        "WEAKINCENTIVES_SHELL_TIMEOUT",
    }


# Names


def test_every_public_name_is_there() -> None:
    for name in podbot.tools.__all__:
        assert getattr(podbot.tools, name) is not None
    homes = [name for names in podbot.tools._HOMES.values() for name in names.split()]
    assert sorted(podbot.tools.__all__) == sorted(homes)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        podbot.tools.nothing  # type: ignore[attr-defined]  # noqa: B018 - the point


@pytest.mark.parametrize("module", ["vfs", "unsafe_local", "overlay"])
def test_a_section_module_has_the_names_it_lists(module: str) -> None:
    found = importlib.import_module(f"podbot.tools.{module}")
    for name in found.__all__:
        assert hasattr(found, name)


def test_the_types_are_the_same_on_every_backend() -> None:
    from podbot.tools import overlay, unsafe_local

    assert unsafe_local.LocalShellParams is overlay.OverlayShellParams is ShellParams
    assert unsafe_local.LocalEvalParams is overlay.OverlayEvalParams is EvalParams


# Checks that parsing makes before the handler does


def test_a_timeout_that_is_no_number_is_refused() -> None:
    with pytest.raises(ToolValidationError, match="not a number"):
        shell.clamped(float("nan"))
    assert shell.clamped(float("inf")) == 120.0


def test_one_string_is_for_a_shell_or_no_command() -> None:
    params = ShellParams(command="ls -l")
    assert shell.checked(params, None, 30.0).argv == ("sh", "-c", "ls -l")
    with pytest.raises(ToolValidationError, match="one string"):
        shell.checked(params, None, 30.0, strings=False)


def test_what_a_sandbox_cannot_do_at_all_is_raised() -> None:
    with MemorySandbox() as sandbox:
        command = shell.checked(ShellParams(("true",)), None, 30.0)
        with pytest.raises(SandboxError) as raised:
            shell.run(sandbox, command, 1.0)
    assert raised.value.kind is Kind.UNSUPPORTED


@pytest.mark.parametrize(
    ("data", "limit", "text"),
    [
        (b"abc", 3, "abc"),
        (b"x" * 40, 20, "x" * 9 + "[truncated]"),
        ("é".encode() * 20, 21, "é" * 5 + "[truncated]"),
        (b"\xff" * 12, 20, "\ufffd" * 3 + "[truncated]"),
    ],
)
def test_a_stream_is_cut_between_characters(data: bytes, limit: int, text: str) -> None:
    assert shell.text_of(data, limit) == text


def test_results_read_well() -> None:
    done = shell.ShellResult(("x",), ".", 124, "", "late\n", 5, True)
    assert done.render() == "exit code 124 (timed out)\nstdout: (empty)\nstderr:\nlate\n"
    assert evaluation.EvalResult(None, "", "").render() == "(no output)"
    assert evaluation.EvalResult("1", "out", "err").render() == (
        "value: 1\nstdout:\nout\nstderr:\nerr"
    )
    path = VfsPath(("a", "b.py"))
    found = GrepResult((GrepMatch(path, 3, "x = 1"),))
    assert found.render() == "a/b.py:3:x = 1"
    assert GrepResult(()).render() == GlobResult(()).render() == "(nothing matches)"
    assert GlobResult((path,)).render() == "a/b.py"
    assert Listing(path, ()).render() == "(empty)"
    assert ReadFileResult(path, "", 0, 0, 0).render() == "(no lines)"


def test_half_a_character_is_no_code() -> None:
    with LocalSandbox() as sandbox, pytest.raises(ToolValidationError, match="surrogate"):
        evaluation.evaluate(sandbox, "'\ud800'")


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        (b"out\0m:3:abc", ("out", "abc")),
        (b"out\0m:3:abclater", ("outlater", "abc")),
        (b"out\0m:9:abc", ("out\0m:9:abc", None)),
        (b"out\0m:x:abc", ("out\0m:x:abc", None)),
        (b"out\0m:999999999:", ("out\0m:999999999:", None)),
        (b"out\0m", ("out\0m", None)),
        (b"\0m:1:a\0m:1:b", ("\0m:1:a", "b")),
    ],
)
def test_a_value_comes_behind_its_mark(data: bytes, parts: tuple[str, str | None]) -> None:
    assert ops.parted(data, "m") == parts


# Errors for models


def test_only_what_a_model_can_mend_becomes_its_mistake() -> None:
    mended = live.error_for_model(SandboxError("x", kind=Kind.BAD_CWD))
    assert isinstance(mended, ToolValidationError) and mended.remedy
    lost = LaunchError("x", kind=Kind.NO_ENGINE)
    assert live.error_for_model(lost) is lost


# Cancelling from another thread


def test_a_call_of_another_thread_can_be_cancelled(tmp_path: Path) -> None:
    sleep = unique_sleep()
    done: list[ExecResult] = []
    with LocalSandbox(tmp_path) as sandbox:

        def run() -> None:
            done.append(sandbox.exec(["sh", "-c", f"touch begun; {sleep}"]))

        thread = threading.Thread(target=run)
        thread.start()
        wait_for((tmp_path / "begun").exists)
        assert thread.ident is not None
        assert sandbox.cancel(thread.ident)
        thread.join(DEADLINE)
        assert done[0].signal == 9
        assert not sandbox.cancel(thread.ident)  # nothing is left to cancel
        wait_for(lambda: sandbox.exec(["sh", "-c", running(sleep)]).stdout == "0\n")


def test_cancelling_at_any_moment_ends_the_call(tmp_path: Path) -> None:
    """Also before the request has left: then it is cancelled right behind it."""
    with LocalSandbox(tmp_path) as sandbox:
        for _ in range(20):
            started = threading.Event()

            def run(started: threading.Event = started) -> None:
                started.set()
                sandbox.exec(["sleep", "600"])

            thread = threading.Thread(target=run)
            thread.start()
            started.wait()
            assert thread.ident is not None
            ident = thread.ident
            wait_for(lambda ident=ident: sandbox.cancel(ident))  # type: ignore[misc]
            thread.join(DEADLINE)
            assert not thread.is_alive()


def test_memory_has_nothing_to_cancel() -> None:
    with MemorySandbox() as sandbox:
        assert not sandbox.cancel(threading.get_ident())


# The overlay's file verbs can be held to the workspace


def test_a_confined_overlay_keeps_file_verbs_in_the_target(tmp_path: Path) -> None:
    import podbot.sandbox
    from podbot.errors import FileError

    (tmp_path / "a").write_text("x")
    options = {"target": tmp_path, "discard": True}
    with podbot.sandbox.open("overlay", confined=True, **options) as sandbox:
        assert sandbox.read("a") == sandbox.read(tmp_path / "a") == b"x"
        with pytest.raises(FileError) as raised:
            sandbox.read("/etc/passwd")
        assert raised.value.kind is Kind.PATH_ESCAPE
        assert sandbox.exec(["cat", "/etc/passwd"]).ok
    with podbot.sandbox.open("overlay", **options) as sandbox:
        assert sandbox.read("/etc/passwd")
