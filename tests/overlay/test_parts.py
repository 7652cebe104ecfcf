"""Decisions of the overlay backend that need no sandbox to be seen."""

from __future__ import annotations

import errno
import gc
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from podbot import kernel, system_calls
from podbot.errors import Kind, LaunchError, SandboxError
from podbot.sandbox import Limits, Policy, interpreter, layers, wire
from podbot.sandbox.layers import copying, disk_watcher, mounts
from podbot.sandbox.overlay import (
    _failures,
    _git_data,
    _hiding,
    _report,
    _seccomp,
    ahead,
    cgroups,
    owner,
)
from podbot.sandbox.overlay.cgroups import NO_GROUP, Group


def test_a_copy_keeps_links_modes_and_times_and_leaves_out_what_is_hidden(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    (source / "folder").mkdir(parents=True)
    (source / "folder" / "file").write_text("x")
    (source / "folder" / "file").chmod(0o640)
    (source / "link").symlink_to("folder/file")
    (source / "secret").write_text("s")
    os.mkfifo(source / "fifo")
    os.utime(source / "folder", ns=(1, 1_000_000_000))
    copying.copy(str(source), destination, Limits(), (str(source / "secret"),))
    assert sorted(os.listdir(destination)) == ["folder", "link"]
    assert os.readlink(destination / "link") == "folder/file"
    assert (destination / "folder" / "file").stat().st_mode & 0o777 == 0o640
    assert (destination / "folder").stat().st_mtime_ns == 1_000_000_000


def test_a_copy_that_is_too_large_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "big").write_bytes(b"x" * 5000)
    with pytest.raises(LaunchError) as caught:
        copying.copy(str(tmp_path / "source"), tmp_path / "to", Limits(disk=1000), ())
    assert caught.value.kind is Kind.TARGET_TOO_LARGE
    assert caught.value.remedy


def test_a_copy_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        copying.copy(str(tmp_path / "missing"), tmp_path / "to", Limits(), ())
    assert caught.value.kind is Kind.LAYER_FAILED


@pytest.mark.parametrize(
    ("version", "controller", "value", "expected"),
    [
        (2, "cpu", 1.5, [("cpu.max", "150000 100000")]),
        (1, "cpu", 0.5, [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "50000")]),
        (2, "memory", 4096, [("memory.max", "4096")]),
        (1, "memory", 4096, [("memory.limit_in_bytes", "4096")]),
        (2, "pids", 7, [("pids.max", "7")]),
    ],
)
def test_limits_are_written_as_each_version_of_groups_wants_them(
    version: int, controller: str, value: float, expected: list[tuple[str, str]]
) -> None:
    assert cgroups._settings(version, controller, value) == expected


def test_a_group_that_cannot_be_made_enforces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = cgroups.Hierarchy(2, {"memory": tmp_path / "missing", "pids": tmp_path})
    monkeypatch.setattr(cgroups, "hierarchy", lambda: nowhere)
    group = cgroups.create(1.0, 1 << 30, 100)
    assert group.enforced == {"pids": "cgroup v2"}
    assert (group.folders[0] / "pids.max").read_text() == "100"


def test_a_group_with_someone_in_it_is_given_up_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "group" / "busy").mkdir(parents=True)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    Group((tmp_path / "group", tmp_path / "gone"), {}).remove()
    assert (tmp_path / "group").is_dir()


def test_a_delegated_folder_above_us_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slice_ = tmp_path / "user.slice"
    (slice_ / "app.scope").mkdir(parents=True)
    for folder, controllers in ((slice_, "memory pids"), (slice_ / "app.scope", "")):
        (folder / "cgroup.subtree_control").write_text(controllers)
        (folder / "cgroup.procs").write_text("")
    monkeypatch.setattr(cgroups, "_memberships", lambda: {"": "/user.slice/app.scope"})
    monkeypatch.setattr(cgroups, "_mounts", lambda: [(str(tmp_path), "cgroup2", "rw")])
    found = cgroups._delegated_v2()
    assert found is not None
    assert found.parents == {"memory": slice_, "pids": slice_}


def test_guarantees_say_no_where_the_answer_is_no() -> None:
    limits = Limits(cpu=1, memory=1 << 30, pids=64, file_size=1 << 20, disk=1 << 30)
    policy = Policy(network="host", writable=("/srv/data",))
    found = {g.name: g for g in _report.guarantees(policy, limits, NO_GROUP, "no overlay")}
    assert not found["network"].enforced
    assert not found["writable:/srv/data"].enforced
    assert not found["limit.cpu"].enforced
    assert "copy" in found["files"].by
    assert "per process" in found["limit.memory"].by
    assert not found["limit.memory"].enforced
    assert "moment" in found["limit.disk"].by
    grouped = Group((), {"memory": "cgroup v2", "cpu": "cgroup v2", "pids": "cgroup v2"})
    enforced = {g.name: g.by for g in _report.guarantees(Policy(), limits, grouped, None)}
    assert enforced["limit.memory"] == enforced["limit.cpu"] == "cgroup v2"


def test_an_old_kernel_is_told_from_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        release = "5.15.0-rc1-generic"

    monkeypatch.setattr(os, "uname", lambda: Old)
    assert _report._kernel_version() == (5, 15)


def test_hidden_paths_beside_mounts_are_covered_one_by_one(
    tmp_path: Path, own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").write_text("s")
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(mounts, "any_below", lambda _: str(tmp_path / "mount"))
    hidden = tuple(str(tmp_path / name) for name in ("folder", "later", "there"))
    found = _hiding.arrange(hidden, (), ())
    assert set(found.covers) == {str(tmp_path / "there"), str(tmp_path / "folder")}
    assert found.uncovered == (str(tmp_path / "later"),)
    assert os.path.isdir(found.covers[str(tmp_path / "folder")])


def test_a_git_pointer_that_is_none_is_ignored(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("not a pointer")
    assert _git_data.outside(str(tmp_path), (str(tmp_path),)) is None
    (tmp_path / ".git").unlink()
    (tmp_path / ".git").symlink_to(tmp_path / ".git")
    assert _git_data.outside(str(tmp_path), (str(tmp_path),)) is None


def test_a_kernel_call_says_of_a_path_what_python_says(folder: Path) -> None:
    # Who leaves out what went meanwhile asks for these.
    with pytest.raises(FileNotFoundError) as caught:
        kernel.open_real(os.fsencode(folder / "gone"), os.O_PATH)
    assert isinstance(caught.value, kernel.KernelError)
    assert isinstance(kernel.KernelError(errno.EACCES, "openat2"), PermissionError)
    # Refused by the kernel itself is another matter, and never left out.
    assert not isinstance(kernel.KernelError(errno.EPERM, "move_mount"), PermissionError)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_fits_its_machine(machine: str) -> None:
    """Run the program as the kernel would, on calls that must and must not pass."""
    program = _seccomp.program(machine)
    column = ("x86_64", "aarch64").index(machine)
    arch = _seccomp.AUDIT_ARCH[machine]

    def verdict(number: int, *args: int, architecture: int = arch) -> int:
        import struct

        data = struct.pack("=iIQ6Q", number, architecture, 0, *args, *[0] * (6 - len(args)))
        pc, accumulator = 0, 0
        while True:
            code, jt, jf, k = struct.unpack_from("HBBI", program, pc * 8)
            pc += 1
            if code == 0x20:
                accumulator = struct.unpack_from("=I", data, k)[0]
            elif code == 0x54:
                accumulator &= k
            elif code == 0x06:
                return k
            else:
                hit = {
                    0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k),
                }[code]  # fmt: skip
                pc += jt if hit else jf

    allow, kill, deny = 0x7FFF0000, 0x80000000, 0x00050000
    for name, numbers in system_calls.REFUSED.items():
        number = numbers[column]
        if number is not None:
            assert verdict(number) == deny | 1, name
    calls = {
        name: number
        for name, (numbers, _) in system_calls.JUDGED.items()
        if (number := numbers[column]) is not None
    }
    absent = system_calls.ABSENT["clone3"][column]
    assert absent is not None
    assert verdict(calls["clone"], 17) == allow
    assert verdict(calls["clone"], 0x10000000) == deny | 1
    assert verdict(absent) == deny | 38
    assert verdict(calls["unshare"], 0x400) == allow
    assert verdict(calls["unshare"], 0x20000) == deny | 1
    assert verdict(calls["ptrace"], 0) == allow
    assert verdict(calls["ptrace"], 16) == deny | 1
    assert verdict(calls["ioctl"], 0, 0x5401) == allow
    assert verdict(calls["ioctl"], 0, 0x5412) == deny | 1
    assert verdict(calls["socket"], 2) == allow
    assert verdict(calls["socket"], 40) == deny | 97
    assert verdict(0 if machine == "x86_64" else 63) == allow  # read
    assert verdict(calls["clone"], architecture=0x40000003) == kill
    if machine == "x86_64":
        assert verdict(0x40000000) == deny | 38
    assert verdict(system_calls.NEWEST) == allow
    assert verdict(system_calls.NEWEST + 1) == deny | 38  # nobody has judged it
    most = [n for pair in system_calls.REFUSED.values() if (n := pair[column]) is not None]
    assert max(most) <= system_calls.NEWEST


def test_a_readable_path_inside_a_hidden_folder_is_refused() -> None:
    policy = Policy(hidden=("~/.aws",), readable=("~/.aws/config",))
    with pytest.raises(SandboxError) as caught:
        policy.hidden_paths(Path("/home/someone"))
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EMFILE, Kind.OUT_OF_DESCRIPTORS),
        (errno.ENOSPC, Kind.DISK_FULL),
        (errno.EAGAIN, Kind.OUT_OF_PROCESSES),
        (errno.EIO, Kind.LAUNCH_FAILED),
    ],
)
def test_what_the_host_could_not_do_is_named(number: int, kind: Kind) -> None:
    found = _failures.of_the_host(OSError(number, "no"))
    assert found.kind is kind
    assert found.remedy


@pytest.mark.parametrize(
    "first_word",
    [b"", b"\0\0\0", wire.HEADER.pack(wire.MAX_HEAD + 1, 0), wire.HEADER.pack(3, 0) + b"{x}"],
)
def test_a_child_that_says_nonsense_before_it_is_ready_is_an_error(first_word: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(first_word)
        theirs.close()
        with pytest.raises(SandboxError) as caught:
            _failures.await_ready(ours)
    assert caught.value.kind in (Kind.LAUNCH_FAILED, Kind.PROTOCOL)


def test_a_child_that_says_nothing_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_failures, "READY_SECONDS", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(LaunchError) as caught:
        _failures.await_ready(ours)
    assert caught.value.kind is Kind.GUEST_UNRESPONSIVE


def test_a_layer_folder_that_is_not_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link", "file/below"):
        monkeypatch.setenv(layers.ROOT_VARIABLE, str(tmp_path / name))
        with pytest.raises(LaunchError) as caught:
            layers.root()
        assert caught.value.kind is Kind.LAYER_FAILED
        assert layers.ROOT_VARIABLE in str(caught.value.remedy)


def test_a_layer_folder_open_to_others_is_refused_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(tmp_path / "open"))
    with pytest.raises(LaunchError) as caught:
        layers.root()
    assert caught.value.kind is Kind.LAYER_FAILED
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o755


def test_a_relative_layer_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(layers.ROOT_VARIABLE, "somewhere")
    with pytest.raises(LaunchError, match="not an absolute path"):
        layers.root()


def test_a_sweep_leaves_alone_what_podbot_did_not_make(own_layers: Path) -> None:
    foreign = [own_layers / "stuff", own_layers / "20260101-000000-project", own_layers / "empty"]
    for folder in foreign:
        folder.mkdir()
        (folder / "file").write_text("mine")
        os.utime(folder, (0, 0))
    half_made = own_layers / "20260101-000000-0123abcd"
    (half_made / "0.upper").mkdir(parents=True)
    os.utime(half_made, (0, 0))
    assert layers.sweep().removed == (half_made.name,)
    assert all((folder / "file").read_text() == "mine" for folder in foreign)


def test_a_sweep_does_not_make_the_folder_it_looks_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(tmp_path / "none"))
    assert layers.sweep() == layers.SweptLayers((), (), ())
    assert not (tmp_path / "none").exists()


def test_a_layer_that_is_gone_is_neither_live_nor_full(own_layers: Path) -> None:
    layer = layers.Layer(own_layers / "gone", ("/x",), 0.0, 1, "overlay")
    assert not layer.live
    assert layer.empty
    assert not layers.Layer(own_layers, (), 0.0, 1, "copy").empty


def test_two_who_remove_the_same_layer_do_not_stop_each_other(
    own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = own_layers / "layer"
    for name in ("one", "two", "three"):
        (layer / name / "below").mkdir(parents=True)
        (layer / name / "below" / "file").touch()
    listed = os.listdir

    def and_another_is_quicker(folder: int) -> list[str]:
        names = listed(folder)
        if "two" in names:
            monkeypatch.setattr(os, "listdir", listed)
            layers.remove(layer / "two")
            layers.remove(layer / "three" / "below")
        return names

    monkeypatch.setattr(os, "listdir", and_another_is_quicker)
    layers.remove(layer)

    assert not layer.exists()


def test_a_zygote_that_cannot_start_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "command", lambda *_: ["/nonexistent/python"])
    monkeypatch.setattr(ahead, "_begun", None)  # some test of the command line may have begun one
    gc.collect()  # what earlier tests left may still go in between, but nothing may come
    before = open_now()
    with pytest.raises(FileNotFoundError):  # the launcher names it for the caller
        owner.ZygoteOwner()
    assert open_now() <= before


def open_now() -> set[str]:
    """What this process has open: a pipe and a socket have names that no other has."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile, or that of this look
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


def test_usage_counts_what_is_there_and_stops_when_it_is_enough(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 100_000)
    assert disk_watcher.usage(tmp_path, 1 << 30) >= 100_000
    assert disk_watcher.usage(tmp_path / "missing", 1 << 30) >= 0
    for number in range(50):
        (tmp_path / f"empty{number}").touch()
    assert disk_watcher.usage(tmp_path, 1 << 30) >= 100_000 + 50 * disk_watcher.NAME_BYTES
