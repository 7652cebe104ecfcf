"""What a sandbox cannot be made of: each a named error with its remedy, and no leftovers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from inside import fill, new_folder, unchanged, until

from podbot.errors import Kind, LaunchError, SandboxError
from podbot.sandbox import Limits, Policy, layers
from podbot.sandbox.overlay.launcher import OverlaySandbox


def refusal(target: object, **options: object) -> SandboxError:
    """The error a target is refused with; it must leave nothing behind."""
    before = {entry.name for entry in layers.root().iterdir()}
    with pytest.raises(LaunchError) as caught:
        OverlaySandbox(target, **options)  # type: ignore[arg-type]
    assert {entry.name for entry in layers.root().iterdir()} - before <= {"templates"}
    assert caught.value.remedy
    return caught.value


def test_a_target_that_is_missing(own_layers: Path) -> None:
    assert refusal("/nonexistent/folder").kind is Kind.TARGET_MISSING


def test_a_target_that_is_a_file(target: Path, own_layers: Path) -> None:
    assert refusal(target / "README.md").kind is Kind.TARGET_NOT_DIRECTORY
    assert refusal(target / "README.md" / "x").kind is Kind.TARGET_MISSING


def test_a_target_that_is_a_link_to_itself(folder: Path, own_layers: Path) -> None:
    (folder / "loop").symlink_to("loop")
    with pytest.raises(LaunchError) as caught:
        OverlaySandbox(folder / "loop")
    assert caught.value.kind is Kind.TARGET_REFUSED


@pytest.mark.parametrize(
    "path", ["/", "/proc", "/proc/self", "/sys", "/dev", "/dev/shm", "/run", "/tmp", "/var/tmp"]
)
def test_a_target_that_belongs_to_the_system(path: str, own_layers: Path) -> None:
    assert refusal(path).kind is Kind.TARGET_REFUSED


def test_targets_that_overlap(target: Path, own_layers: Path) -> None:
    (target / "link-to-src").symlink_to("src")
    for pair in ((target, target), (target, target / "src"), (target / "src", target),
                 (target / "src", target / "link-to-src")):  # fmt: skip
        assert refusal(pair).kind is Kind.TARGET_REFUSED


def test_no_target_at_all(own_layers: Path) -> None:
    assert refusal(()).kind is Kind.INVALID


@pytest.mark.parametrize("name", [".ssh", ".ssh/deep/er", ".aws"])
def test_a_target_in_a_hidden_place(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, own_layers: Path
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    (folder / name).mkdir(parents=True)

    error = refusal(folder / name)

    assert error.kind is Kind.TARGET_REFUSED
    assert "readable" in (error.remedy or "")


def test_a_target_with_a_null_byte(own_layers: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        OverlaySandbox("/tmp/a\0b")
    assert caught.value.kind in (Kind.TARGET_REFUSED, Kind.TARGET_MISSING)


def test_a_target_that_holds_the_layers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(folder / "a" / "layers"))
    assert refusal(folder).kind is Kind.TARGET_REFUSED
    assert refusal(folder / "a").kind is Kind.TARGET_REFUSED


def test_a_home_that_holds_the_layers_works_or_is_refused_by_name(
    folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(folder / "layers"))
    try:
        sandbox = OverlaySandbox(target, discard=True)
    except LaunchError as error:
        assert layers.ROOT_VARIABLE in (error.remedy or ""), error
    else:
        with sandbox:
            assert sandbox.read("README.md") == b"read me\n"
            assert sandbox.exec(["sh", "-c", f"ls -A {folder}/layers"]).stdout == ""


ODD_NAMES = {
    "colon": b"a:b", "comma": b"a,b", "backslash": b"a\\b", "newline": b"a\nb", "quotes": b"'\"`$x",
    "blanks": b" a  b ", "latin-1": b"caf\xe9", "not-utf-8": b"\xff\xfe\x80", "long": b"n" * 255,
    "option": b"-rf", "equals": b"upperdir=x,lowerdir=y", "percent": b"%s%d", "octal": b"a\\040b",
    "control": bytes(range(1, 32)), "umlaut": "Überblick 試験 🎈".encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_target_with_an_odd_name_works(folder: Path, name: str) -> None:
    target = Path(os.fsdecode(os.fsencode(folder) + b"/" + ODD_NAMES[name]))
    target.mkdir()
    fill(target)

    with unchanged(folder), OverlaySandbox(target) as sandbox:
        assert sandbox.workdir == str(target)
        assert sandbox.read("README.md") == b"read me\n"
        sandbox.write("new", b"x")
        odd = os.fsdecode(ODD_NAMES[name])
        sandbox.write(f"sub/{odd}", b"y")
        assert sandbox.exec(["sh", "-c", "cat new sub/*"]).stdout == "xy"
        assert sandbox.exec(["pwd"]).stdout_bytes == os.fsencode(target) + b"\n"
    assert (sandbox.layer.upper(0) / "sub" / odd).read_bytes() == b"y"
    assert [layer.targets for layer in layers.found() if layer.id == sandbox.layer.id] == [
        (str(target),)
    ]
    sandbox.layer.discard()


def test_a_target_of_another_kind_of_mode_keeps_it(folder: Path) -> None:
    target = folder / "t"
    target.mkdir()
    target.chmod(0o2751)

    with OverlaySandbox(target, discard=True) as sandbox:
        assert sandbox.stat(".").mode & 0o7777 == target.stat().st_mode & 0o7777


def test_a_target_that_may_not_be_written_cannot_be_written_inside_either(folder: Path) -> None:
    target = folder / "t"
    target.mkdir()
    target.chmod(0o555)

    with OverlaySandbox(target, discard=True) as sandbox:
        assert not sandbox.exec(["sh", "-c", "echo x > y"]).ok


def test_a_target_that_may_not_be_entered_is_an_error_of_the_command_at_the_latest(
    folder: Path,
) -> None:
    target = folder / "t"
    target.mkdir()
    target.chmod(0o000)
    try:
        with pytest.raises(SandboxError) as caught, OverlaySandbox(target) as sandbox:
            sandbox.exec(["true"])
        assert caught.value.kind in (Kind.BAD_CWD, Kind.TARGET_REFUSED, Kind.OVERLAY_REFUSED)
    finally:
        target.chmod(0o700)


@pytest.mark.parametrize("place", ["/var/tmp", "~"], ids=["private", "plain"])
def test_git_data_outside_of_the_target_is_readable_and_said(place: str) -> None:
    folder = new_folder(os.path.expanduser(place))
    data, target = folder / "main" / ".git" / "worktrees" / "w", folder / "w"
    data.mkdir(parents=True)
    target.mkdir()
    (data / "HEAD").write_text("ref: refs/heads/w\n")
    (data / "commondir").write_text("../..\n")
    (data / "gitdir").write_text(f"{target}/.git\n")
    (data.parent.parent / "HEAD").write_text("ref: refs/heads/main\n")
    (data.parent.parent / "objects").mkdir()
    (data.parent.parent / "config").write_text("[core]\n")
    (target / ".git").write_text(f"gitdir: {data}\n")
    try:
        with unchanged(folder), OverlaySandbox(target, discard=True) as sandbox:
            (note,) = [note for note in sandbox.notes if "git" in note]
            assert str(data) in note
            assert "readable" in note
            assert sandbox.read(data / "HEAD") == b"ref: refs/heads/w\n"
            assert sandbox.read(data.parent.parent / "config") == b"[core]\n"
            sandbox.exec(["sh", "-c", f"echo x > {data}/HEAD"])
    finally:
        layers.remove(folder)


def test_a_pointer_to_git_data_alone_shows_nothing_of_a_private_folder(folder: Path) -> None:
    private, target = folder / "private", folder / "w"
    private.mkdir()
    target.mkdir()
    (private / "HEAD").write_text("secret")
    (private / "objects").mkdir()
    (target / ".git").write_text(f"gitdir: {private}\n")

    with OverlaySandbox(target, discard=True) as sandbox:
        assert not sandbox.exists(private)
        assert [note for note in sandbox.notes if "not there inside" in note]


def test_a_pointer_to_a_pipe_is_not_waited_for(folder: Path) -> None:
    data, target = folder / "data", folder / "w"
    data.mkdir()
    target.mkdir()
    os.mkfifo(data / "gitdir")
    os.mkfifo(data / "commondir")
    (target / ".git").write_text(f"gitdir: {data}\n")

    with OverlaySandbox(target, discard=True) as sandbox:
        assert not sandbox.exists(data)


def test_git_data_inside_of_the_target_needs_no_note(target: Path) -> None:
    (target / ".git").mkdir()
    (target / "modules").mkdir()
    (target / "sub").mkdir()

    with OverlaySandbox(target, discard=True) as sandbox:
        assert [note for note in sandbox.notes if "git" in note] == []


def test_a_policy_that_makes_no_sense(target: Path) -> None:
    for policy in (
        {"network": "some"}, {"hidden": "~/.ssh"}, {"environment": {"A=B": "x"}},
        {"environment": {"A": "x\0"}},
    ):  # fmt: skip
        with pytest.raises(SandboxError) as caught:
            Policy(**policy)  # type: ignore[arg-type]
        assert caught.value.kind is Kind.INVALID
    with pytest.raises(SandboxError) as caught:
        OverlaySandbox(target, policy=Policy(hidden=("relative",)))
    assert caught.value.kind is Kind.INVALID
    with pytest.raises(SandboxError) as caught:
        OverlaySandbox(target, policy=Policy(writable=("/nonexistent/x",)))
    assert caught.value.remedy


def test_limits_that_make_no_sense() -> None:
    for limits in ({"memory": 0}, {"pids": 1}, {"cpu": float("nan")}, {"output": 1 << 40}):
        with pytest.raises(SandboxError) as caught:
            Limits(**limits)  # type: ignore[arg-type]
        assert caught.value.kind is Kind.INVALID


def test_a_host_without_descriptors_is_told_so(target: Path, own_layers: Path) -> None:
    code = """
import os, resource, sys
from podbot.errors import LaunchError
from podbot.sandbox.overlay.launcher import OverlaySandbox
OverlaySandbox(sys.argv[1], discard=True).close()
kinds = set()
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
used = len(os.listdir("/proc/self/fd"))
for room in range(0, 14):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + room, hard))
    try:
        OverlaySandbox(sys.argv[1], discard=True).close()
        kinds.add("worked")
    except LaunchError as error:
        kinds.add(error.kind.value)
        assert error.remedy, error
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
assert len(os.listdir("/proc/self/fd")) <= used, os.listdir("/proc/self/fd")
with OverlaySandbox(sys.argv[1], discard=True) as sandbox:
    assert sandbox.exec(["true"]).ok
print(*sorted(kinds))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"out_of_descriptors", "worked"}
    # Its zygote may still be removing what was discarded.
    assert until(lambda: {entry.name for entry in own_layers.iterdir()} <= {"templates"})


def test_a_layer_folder_that_is_not_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "file"
    file.touch()
    target = new_folder()
    try:
        for place in (file, file / "below", Path("/proc/layers")):
            monkeypatch.setenv(layers.ROOT_VARIABLE, str(place))
            with pytest.raises(LaunchError) as caught:
                OverlaySandbox(target)
            assert caught.value.kind is Kind.LAYER_FAILED
            assert layers.ROOT_VARIABLE in (caught.value.remedy or "")
        theirs = Path("/usr") if os.geteuid() else None
        if theirs is not None:
            monkeypatch.setenv(layers.ROOT_VARIABLE, str(theirs))
            with pytest.raises(LaunchError):
                OverlaySandbox(target)
    finally:
        target.rmdir()
