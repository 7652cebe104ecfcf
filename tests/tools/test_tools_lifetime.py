"""How sections end: by close, by garbage collection, at exit; and what they survive."""

from __future__ import annotations

import gc
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workplace import DEADLINE, Place, running, unique_sleep, wait_for

from podbot.errors import ConfigError, Kind, LaunchError, SandboxError, ToolValidationError
from podbot.prompt import Cancellation
from podbot.prompt.subagents import Delegation, SubagentIsolationLevel, dispatch_subagents
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.sandbox import LocalSandbox, Policy, Sandbox
from podbot.tools import (
    HostMount,
    OverlaySandboxConfig,
    OverlaySandboxSection,
    UnsafeLocalSandboxConfig,
    UnsafeLocalSandboxSection,
    UnsafeLocalWorkspace,
    VirtualFileSystem,
    _mirror,
)


@pytest.fixture
def session() -> Session:
    return Session(bus=InProcessEventBus(), session_id="the-session")


@pytest.fixture
def root() -> Iterator[Path]:
    """Where local workspaces are made."""
    with tempfile.TemporaryDirectory(prefix="podbot-test-") as folder:
        yield Path(folder)


def local(session: Session, root: Path, **config: Any) -> Place:
    chosen = UnsafeLocalSandboxConfig(workspace_root=root, **config)
    return Place(session, UnsafeLocalSandboxSection(session=session, config=chosen))


# The folder of the local section


def test_the_folder_is_private_and_cannot_be_guessed(session: Session, root: Path) -> None:
    place = local(session, root)
    assert list(root.iterdir()) == []
    place.ok("ls")
    (folder,) = root.iterdir()
    assert folder.name.startswith("wink-the-session-")
    assert len(folder.name) > len("wink-the-session-") + 6
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "workspace").stat().st_mode) == 0o700
    assert place.workspace.workspace_path == str(folder / "workspace")
    assert place.workspace.workdir == "/workspace"
    place.section.close()
    assert list(root.iterdir()) == []


def test_whatever_was_made_in_the_folder_goes_with_it(session: Session, root: Path) -> None:
    place = local(session, root)
    place.shell("mkdir -p a/b; touch a/b/c; mkfifo f; ln -s /etc e; chmod 0 a/b; chmod 500 a")
    place.section.close()
    assert list(root.iterdir()) == []
    assert os.path.isdir("/etc")


def test_a_process_left_in_the_background_ends_with_the_section(
    session: Session, root: Path
) -> None:
    place = local(session, root)
    sleep = unique_sleep()
    place.shell(f"setsid {sleep} > /dev/null 2>&1 &")
    place.section.close()
    with LocalSandbox() as other:
        wait_for(lambda: other.exec(["sh", "-c", running(sleep)]).stdout == "0\n")


@pytest.mark.parametrize("name", ["PODBOT_WORKSPACE_ROOT", "WEAKINCENTIVES_WORKSPACE_ROOT"])
def test_a_variable_says_where_folders_are_made(
    session: Session, root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, str(root))
    place = Place(session, UnsafeLocalSandboxSection(session=session))
    place.ok("ls")
    assert place.workspace.workspace_path.startswith(str(root))
    place.section.close()


def test_the_root_lies_in_the_allowed_roots_if_there_are_any(session: Session, root: Path) -> None:
    (root / "allowed").mkdir()
    with pytest.raises(ToolValidationError, match="outside of the allowed host roots"):
        local(session, root, allowed_host_roots=(root / "allowed",))
    local(session, root / "allowed", allowed_host_roots=(root,)).section.close()


def test_a_root_that_cannot_be_used_is_said_to_be(session: Session, root: Path) -> None:
    with pytest.raises(ToolValidationError, match="cannot be used"):
        local(session, root / "missing")
    place = local(session, root)
    root.rmdir()
    assert "no workspace can be made" in place.fails("ls")
    root.mkdir()
    assert place.ok("ls").entries == ()  # the next call tries again
    place.section.close()


@pytest.mark.parametrize("name", ["PODBOT_SHELL_TIMEOUT", "WEAKINCENTIVES_SHELL_TIMEOUT"])
def test_a_variable_sets_the_timeout_of_commands(
    session: Session, root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    place = local(session, root)
    assert place.ok("shell_execute", command=["sleep", "60"]).timed_out
    assert "(1 unless you say otherwise)" in " ".join(place.prompt.render().text.split())
    (tool,) = [tool for tool in place.prompt.tools if tool.name == "shell_execute"]
    assert tool.parameters["timeout_seconds"].endswith("1 to 120; default 1.")
    place.section.close()
    monkeypatch.setenv("PODBOT_SHELL_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="PODBOT_SHELL_TIMEOUT='soon'"):
        local(session, root)
    monkeypatch.setenv("PODBOT_SHELL_TIMEOUT", "0")
    with pytest.raises(ConfigError):
        local(session, root)


# Three ways to end


def test_collecting_the_section_removes_its_folder(session: Session, root: Path) -> None:
    place = local(session, root)
    place.ok("write_file", file_path="a.txt", content="x")
    assert list(root.iterdir())
    del place
    gc.collect()
    assert list(root.iterdir()) == []


def test_a_section_is_collected_without_the_help_of_the_collector(
    session: Session, root: Path
) -> None:
    section = UnsafeLocalSandboxSection(
        session=session, config=UnsafeLocalSandboxConfig(workspace_root=root)
    )
    handler = section.tools[0].handler
    gc.disable()
    try:
        del section
        assert handler is not None  # a tool alone does not keep a workspace
    finally:
        gc.enable()
    assert list(root.iterdir()) == []


ENDINGS = {
    "exit": "",
    "sys.exit": "sys.exit(3)",
    "an exception": "raise RuntimeError('not caught')",
    "a fork that exits first": "pid = os.fork()\nif pid == 0: sys.exit(0)\nos.waitpid(pid, 0)\n"
    "assert os.listdir(root), 'the fork removed it'\nassert prompt.call('ls', {}).success",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_forgotten_section_ends_with_the_interpreter(root: Path, ending: str) -> None:
    program = textwrap.dedent("""\
        import os, sys
        from podbot.prompt import Prompt
        from podbot.runtime.events import InProcessEventBus
        from podbot.runtime.session import Session
        from podbot.tools import UnsafeLocalSandboxConfig, UnsafeLocalSandboxSection

        root = sys.argv[1]
        session = Session(bus=InProcessEventBus())
        section = UnsafeLocalSandboxSection(
            session=session, config=UnsafeLocalSandboxConfig(workspace_root=root)
        )
        prompt = Prompt(ns="a", key="b", sections=[section])
        command = {"command": ["sh", "-c", "sleep 600 > /dev/null 2>&1 & echo $!"]}
        print(prompt.call("shell_execute", command).value.stdout, flush=True)
        assert os.listdir(root)
        """)
    done = subprocess.run(
        [sys.executable, "-c", program + ENDINGS[ending], str(root)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.stdout.strip().isdigit(), done.stderr
    assert "removed" not in done.stderr
    assert list(root.iterdir()) == []
    wait_for(lambda: not _is_sleep(int(done.stdout)))


def _is_sleep(pid: int) -> bool:
    try:
        return b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_folder_that_cannot_be_removed_is_named(
    session: Session, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from podbot.tools import temporary

    place = local(session, root)
    place.ok("ls")

    def refuse(path: Path) -> None:
        raise OSError(16, "busy")

    with monkeypatch.context() as patch:
        patch.setattr(temporary, "remove", refuse)
        with pytest.raises(ToolValidationError, match=r"wink-the-session.* busy"):
            place.section.close()


# Sandboxes that die


def kill_guest(sandbox: Sandbox) -> None:
    """What an out-of-memory killer would do."""
    parent = sandbox.exec(["sh", "-c", "echo $PPID"], cwd="/").stdout
    os.kill(int(parent), signal.SIGKILL)


def test_a_lost_local_sandbox_is_opened_again_in_the_same_folder(
    session: Session, root: Path
) -> None:
    place = local(session, root)
    place.ok("write_file", file_path="kept.txt", content="kept")
    lost = place.sandbox
    kill_guest(lost)
    assert "call a tool again" in place.fails("ls")  # said once
    assert place.ok("read_file", file_path="kept.txt").content == "   1 | kept"
    assert place.sandbox is not lost
    assert place.files["kept.txt"].content == "kept"
    place.section.close()
    assert list(root.iterdir()) == []


SPOILT = {
    "gone": 'rm -rf "$PWD"',
    "gone with what is above it": 'rm -rf "$(dirname "$PWD")"',
    "another folder": "cd ..; mv workspace old; mkdir workspace; echo n > workspace/new.txt",
    "a link that leads out": "cd ..; mv workspace old; ln -s / workspace",
    "a file": "cd ..; mv workspace old; touch workspace",
}


@pytest.mark.parametrize("script", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize("killed", [False, True])
def test_a_workspace_that_a_command_removed_or_replaced_is_there_again(
    session: Session, root: Path, script: str, killed: bool
) -> None:
    place = local(session, root)
    place.shell(f"{script}; true")
    if killed:
        kill_guest(place.sandbox)
        place.call("ls")
    place.ok("write_file", file_path="a/b.txt", content="written")
    assert place.shell("cat a/b.txt").stdout == "written"
    entries = {str(entry.path) for entry in place.ok("ls").entries}
    assert entries == ({"a", "new.txt"} if "new.txt" in script else {"a"})
    assert set(place.files) == ({"a/b.txt", "new.txt"} if "new.txt" in script else {"a/b.txt"})
    place.section.close()
    assert [each.name for each in root.iterdir()] == []


def test_a_call_that_loses_its_section_says_so(session: Session, root: Path) -> None:
    place = local(session, root)
    said: list[str] = []
    sleep = unique_sleep()
    script = f"touch begun; exec {sleep}"
    thread = threading.Thread(
        target=lambda: said.append(place.fails("shell_execute", command=["sh", "-c", script]))
    )
    begun = Path(place.sandbox.workdir, "begun")
    thread.start()
    wait_for(begun.exists)
    place.section.close()
    thread.join(DEADLINE)
    assert said and said[0].startswith("the workspace of this section is closed")


def test_a_call_cancelled_while_the_sandbox_opens_runs_nothing(
    session: Session, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = local(session, root)
    cancellation = Cancellation()
    real = LocalSandbox.__init__

    def slow(self: LocalSandbox, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        cancellation.cancel()

    with monkeypatch.context() as patch:
        patch.setattr(LocalSandbox, "__init__", slow)
        result = place.prompt.call(
            "shell_execute", {"command": ["touch", "ran"]}, cancellation=cancellation
        )
    assert not result.success and "cancelled" in result.message
    assert place.ok("ls").entries == ()
    place.section.close()


def test_a_cancel_that_comes_late_does_not_hit_the_next_call(session: Session, root: Path) -> None:
    place = local(session, root)
    late: list[Any] = []

    class Late(Cancellation):
        def on_cancel(self, callback: Any) -> Any:
            late.append(callback)
            return super().on_cancel(callback)

    ended: list[Any] = []

    def work() -> None:
        place.prompt.call("ls", cancellation=Late())
        ended.append(place.shell("touch begun; while [ ! -e go ]; do sleep 0.01; done"))

    begun = Path(place.sandbox.workdir, "begun")
    thread = threading.Thread(target=work)
    thread.start()
    wait_for(begun.exists)
    late[0]()
    begun.with_name("go").touch()
    thread.join(DEADLINE)
    assert ended[0].exit_code == 0
    place.section.close()


def test_a_lost_overlay_sandbox_goes_on_in_its_layer(session: Session, tmp_path: Path) -> None:
    config = OverlaySandboxConfig(target=tmp_path, discard=True)
    place = Place(session, OverlaySandboxSection(session=session, config=config))
    place.ok("write_file", file_path="kept.txt", content="kept")
    lost, layer = place.sandbox, place.workspace.layer_id
    place.call("shell_execute", command=["sh", "-c", "kill -9 -1"])
    lost.close()
    assert place.ok("read_file", file_path="kept.txt").content == "   1 | kept"
    assert place.workspace.layer_id == layer
    place.section.close()


def test_a_sandbox_that_cannot_be_opened_is_a_failing_result(
    session: Session, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    config = OverlaySandboxConfig(target=target)
    place = Place(session, OverlaySandboxSection(session=session, config=config))
    target.rmdir()
    message = place.fails("ls")
    assert "does not exist" in message
    target.mkdir()
    assert place.ok("ls").entries == ()
    place.section.close()


def test_a_target_that_is_missing_is_an_error_when_the_section_is_made(
    session: Session, tmp_path: Path
) -> None:
    with pytest.raises(LaunchError):
        OverlaySandboxSection(
            session=session, config=OverlaySandboxConfig(target=tmp_path / "missing")
        )


def test_a_sandbox_that_is_lost_while_it_is_looked_at_is_opened_again(
    session: Session, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = local(session, root)
    place.ok("write_file", file_path="kept.txt", content="kept")
    real = Sandbox.newest

    def dying(self: Sandbox, *args: Any, **options: Any) -> Any:
        kill_guest(self)
        return real(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Sandbox, "newest", dying)
        assert place.ok("shell_execute", command=["echo", "x"]).stdout == "x\n"  # it did run
    assert place.section.sandbox is None
    assert place.ok("read_file", file_path="kept.txt").total_lines == 1
    place.section.close()


def test_a_sandbox_that_cannot_be_looked_into_is_not_kept(
    session: Session,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = local(session, root)

    def failing(*_: Any, **__: Any) -> Any:
        raise SandboxError("no look today", kind=Kind.IO)

    with monkeypatch.context() as patch:
        patch.setattr(Sandbox, "newest", failing)
        assert "no look today" in place.fails("read_file", file_path="a.txt")
    assert place.section.sandbox is None
    assert place.ok("ls").entries == ()
    with monkeypatch.context() as patch:
        patch.setattr(Sandbox, "newest", failing)
        assert place.ok("shell_execute", command=["echo", "x"]).stdout == "x\n"  # it did run
        assert place.ok("evaluate_python", code="1").value_repr == "1"
    assert "workspace.unseen" in caplog.text and "no look today" in caplog.text
    assert place.section.sandbox is not None  # it is as good as before
    place.section.close()


def test_a_section_can_be_opened_before_the_first_call(session: Session, root: Path) -> None:
    place = local(session, root)
    sandbox = place.section.open()
    assert place.section.sandbox is sandbox
    assert place.ok("ls").entries == ()
    place.section.close()


def test_one_sandbox_is_opened_however_many_call_first(session: Session, root: Path) -> None:
    place = local(session, root)
    barrier = threading.Barrier(8)
    seen: set[Sandbox | None] = set()

    def call() -> None:
        barrier.wait()
        place.ok("ls")
        seen.add(place.section.sandbox)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1
    place.section.close()


# Subagents


class TwoFiles:
    """An adapter whose subagents each write a file and report what they see."""

    name = "two files"

    def run(self, prompt: Any, session: Session, **options: Any) -> Any:
        from podbot.prompt.adapter import Answer

        task = session.session_id
        result = prompt.call("glob", {"pattern": "*.txt"}, session=session)
        before = ",".join(map(str, result.value.matches))
        name = f"{threading.get_ident()}.txt"
        prompt.call("write_file", {"file_path": name, "content": task}, session=session)
        return Answer(text=before)


@pytest.mark.parametrize("level", SubagentIsolationLevel)
def test_subagents_share_a_workspace_or_do_not(
    session: Session, root: Path, level: SubagentIsolationLevel
) -> None:
    place = local(session, root)
    place.ok("write_file", file_path="parents.txt", content="x")
    results = dispatch_subagents(
        [Delegation("one"), Delegation("two")],
        level,
        adapter=TwoFiles(),
        prompt=place.prompt,
        session=session,
    )
    assert all(result.success for result in results), results
    names = sorted(str(path) for path in place.ok("glob", pattern="*.txt").matches)
    if level is SubagentIsolationLevel.NO_ISOLATION:
        assert all("parents.txt" in result.text for result in results)
        assert len(names) >= 2 and sorted(place.files) == names
        assert {result.session_id for result in results} == {session.session_id}
    else:
        assert [result.text for result in results] == ["", ""]
        assert names == ["parents.txt"] == list(place.files)
        assert session.session_id not in {result.session_id for result in results}
        assert len(list(root.iterdir())) == 1  # theirs went when they were done
    place.section.close()


# The overlay section keeps what was done


def test_changes_in_an_overlay_can_be_reviewed_and_applied(
    session: Session, tmp_path: Path
) -> None:
    from podbot.changes import capture

    (tmp_path / "old.txt").write_text("old\n")
    place = Place(
        session,
        OverlaySandboxSection(session=session, config=OverlaySandboxConfig(target=tmp_path)),
    )
    section = place.section
    assert isinstance(section, OverlaySandboxSection)
    assert section.layer is None
    place.ok("edit_file", file_path="old.txt", old_string="old", new_string="new")
    place.shell("echo more > more.txt")
    section.close()
    assert (tmp_path / "old.txt").read_text() == "old\n"
    assert not (tmp_path / "more.txt").exists()
    layer = section.layer
    assert layer is not None
    changes = capture.read(layer)
    assert [(change.kind.value, change.path) for change in changes] == [
        ("added", "more.txt"),
        ("modified", "old.txt"),
    ]
    layer.discard()


@pytest.mark.parametrize("discard", [True, False])
def test_changes_go_when_nobody_wants_them(session: Session, tmp_path: Path, discard: bool) -> None:
    config = OverlaySandboxConfig(target=tmp_path, discard=discard)
    section = OverlaySandboxSection(session=session, config=config)
    place = Place(session, section)
    place.ok("write_file", file_path="a.txt", content="x")
    assert section.layer is not None
    path = section.layer.path
    section.close()
    assert path.exists() != discard
    if not discard:
        section.layer.discard()


def test_an_overlay_knows_the_files_of_its_target_without_reading_them(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("a = 1\n")
    os.utime(tmp_path / "src" / "a.py", (1, 1))
    config = OverlaySandboxConfig(target=[tmp_path], discard=True)
    place = Place(session, OverlaySandboxSection(session=session, config=config))
    place.ok("ls")
    assert (place.files["src/a.py"].content, place.files["src/a.py"].size_bytes) == (None, 6)
    place.shell("echo b >> src/a.py")
    assert place.files["src/a.py"].content == "a = 1\nb\n"
    assert place.files["src/a.py"].version == 2
    place.section.close()


def test_a_layer_of_very_many_changes_is_not_gone_through_after_each_command(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_mirror, "ENTRIES", 50)
    monkeypatch.setattr(_mirror, "CHANGED", 100)
    config = OverlaySandboxConfig(target=tmp_path, discard=True)
    place = Place(session, OverlaySandboxSection(session=session, config=config))
    place.ok("write_file", file_path="mine.txt", content="x")
    place.shell("mkdir many shut; chmod 0 shut; cd many; seq 60 | xargs touch")
    assert "many/1" in place.files
    with monkeypatch.context() as patch:
        patch.setattr(_mirror, "_changed_in", None)
        place.shell("cd many; seq 61 200 | xargs touch; echo y > ../mine.txt")
    assert place.files["mine.txt"].content == "y\n"
    assert "many/200" in place.files  # it is among the newest
    place.section.close()


def test_no_target_and_no_text_are_refused(session: Session, root: Path) -> None:
    with pytest.raises(LaunchError, match="no target"):
        OverlaySandboxSection(session=session, config=OverlaySandboxConfig(target=()))
    with pytest.raises(ConfigError, match="base_environment has 'A'"):
        local(session, root, base_environment={"A": 5})


def test_a_mount_that_fails_leaves_no_layer(
    session: Session, tmp_path: Path, layers_root: Path
) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "a").write_text("x")
    (tmp_path / "target").mkdir()
    config = OverlaySandboxConfig(
        target=tmp_path / "target",
        mounts=(HostMount("host", max_bytes=1),),
        allowed_host_roots=(tmp_path,),
    )
    before = set(layers_root.iterdir())
    place = Place(session, OverlaySandboxSection(session=session, config=config))
    (tmp_path / "host" / "b").write_text("y")
    assert "max_bytes" in place.fails("ls")
    place.section.close()
    wait_for(lambda: {path.name for path in set(layers_root.iterdir()) - before} <= {"templates"})


def test_the_local_prompt_says_that_nothing_is_isolated(session: Session, root: Path) -> None:
    place = local(session, root)
    text = place.prompt.render(session=session).text
    assert "Nothing isolates it" in text
    place.section.close()


def test_the_overlay_prompt_promises_what_its_settings_keep(
    session: Session, tmp_path: Path
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "target").mkdir()

    def text(**config: Any) -> str:
        chosen = OverlaySandboxConfig(target=tmp_path / "target", **config)
        section = OverlaySandboxSection(session=session, config=chosen)
        return " ".join(Place(session, section).prompt.render(session=session).text.split())

    assert "until a person has reviewed it" in text()
    assert "and is thrown away with it" in text(discard=True)
    assert "changed at once" not in text()
    said = text(policy=Policy(writable=[str(tmp_path / "open")]))
    assert f"`{tmp_path / 'open'}`, which is changed at once" in said


def test_a_section_says_whose_session_it_is(session: Session, root: Path) -> None:
    place = local(session, root)
    assert place.section.session is session
    assert not place.section.accepts_overrides
    place.ok("ls")
    assert session.query(UnsafeLocalWorkspace).latest() == place.workspace
    assert session.query(VirtualFileSystem).latest() == VirtualFileSystem()
    place.section.close()


# What is logged


def test_a_workspace_that_comes_and_goes_is_logged_without_secrets(
    session: Session, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "podbot")
    place = local(session, root, base_environment={"TOKEN": "hunter2-hunter2"})
    place.ok("ls")
    kill_guest(place.sandbox)
    place.call("ls")
    place.section.close()
    ours = [record for record in caplog.records if "component=tools.unsafe_local" in record.message]
    assert [record.message.split()[0] for record in ours] == [
        "workspace.opened",
        "workspace.lost",
        "workspace.closed",
    ]
    assert all("session_id=the-session" in record.message for record in ours)
    assert "hunter2" not in caplog.text
