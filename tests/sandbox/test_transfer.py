"""Downloads from a guest that lies: nothing outside of the destination is touched, ever."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from podbot.errors import GuestLostError, Kind, SandboxError
from podbot.sandbox import Sandbox, _transfer
from podbot.sandbox.channel import Call, Reply
from podbot.sandbox.launcher import Launched, Launcher
from podbot.sandbox.limits import Limits
from podbot.sandbox.memory import MemorySandbox
from podbot.sandbox.policy import Policy


class Liar:
    """A channel that lists what it likes and sends what it likes."""

    def __init__(self, rows: list[dict[str, object]], content: Callable[[int], bytes]):
        self.rows = rows
        self.content = content
        self.sent = 0

    def call(self, call: Call) -> Reply:
        match call.op:
            case "stat":
                return Reply({"info": entry("tree", "dir")}, b"")  # type: ignore[dict-item]
            case "list":
                return Reply({}, json.dumps(self.rows).encode())
            case "read" | "handle_read":
                size = call.args["size"]
                assert isinstance(size, int)
                data = self.content(size)
                self.sent += len(data)
                return Reply({"handle": 1}, data)
            case _:
                return Reply({}, b"")

    def close(self) -> None:
        pass


class LiarLauncher(Launcher):
    name = "liar"
    policy = Policy()
    limits = Limits()

    def __init__(self, channel: Liar):
        self.channel = channel

    def launch(self) -> Launched:
        return Launched("/", (), self.channel.close, self.channel)


def entry(path: str, kind: str = "file", **facts: object) -> dict[str, object]:
    return {"path": path, "kind": kind, "size": 0, "mode": 0o644, "mtime_ns": 0, **facts}


def link(path: str, target: object) -> dict[str, object]:
    return entry(path, "link", link_target=target)


def liar(*rows: dict[str, object], content: Callable[[int], bytes] = lambda _: b"") -> Sandbox:
    return Sandbox(LiarLauncher(Liar(list(rows), content)))


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "rows",
    [
        [entry("tree/..")],
        [entry("tree/../../evil")],
        [entry("tree/a/../../evil")],
        [entry("/evil")],
        [entry("evil")],
        [entry("tree")],
        [entry("tree/")],
        [entry("tree//evil")],
        [entry("tree/./evil")],
        [entry("tree/evil\0")],
        [entry("tree/\ud800")],
        [entry("treeevil")],
        [entry("tree/never/listed")],
        [entry("tree/a", "dir"), entry("tree/a", "dir")],
        [entry("tree/a"), entry("tree/a/b")],
        [entry("tree/a", size=-1)],
        [entry("tree/a", mode=0o100644)],
        [entry("tree/a", "door")],
        [{"path": "tree/a"}],
        ["tree/a"],  # type: ignore[list-item]
    ],
    ids=str,
)
def test_a_listing_that_cannot_be_true_ends_it_and_leaves_nothing(
    tmp_path: Path, rows: list[dict[str, object]]
) -> None:
    with pytest.raises(GuestLostError) as caught:
        liar(*rows).download("tree", tmp_path / "out")
    assert caught.value.kind is Kind.PROTOCOL
    assert everything(tmp_path) == set()


def test_nothing_is_written_through_a_link_that_was_listed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    rows = [link("tree/a", str(victim)), entry("tree/a/evil")]
    with pytest.raises(SandboxError):
        liar(*rows).download("tree", tmp_path / "out")
    assert everything(tmp_path) == {"victim"}


def test_a_name_that_is_a_file_and_a_link_is_made_once_and_safely(tmp_path: Path) -> None:
    rows = [entry("tree/a"), link("tree/a", "/etc/passwd")]
    taken = liar(*rows).download("tree", tmp_path / "out")
    assert taken.skipped == (("a", "a link that leads out"),)
    assert (tmp_path / "out" / "a").is_file()
    with pytest.raises(SandboxError):
        liar(entry("tree/a"), link("tree/a", "b")).download("tree", tmp_path / "other")
    assert everything(tmp_path) == {"out", "out/a"}


@pytest.mark.parametrize("target", ["", "/", "..", "a/../../b", "\0", "\ud800", None])
def test_a_link_that_could_lead_out_is_not_made(tmp_path: Path, target: object) -> None:
    taken = liar(link("tree/a", target)).download("tree", tmp_path / "out")
    assert [path for path, _ in taken.skipped] == ["a"]
    assert everything(tmp_path) == {"out"}


def test_no_chain_of_links_leads_out(tmp_path: Path) -> None:
    rows = [
        entry("tree/d", "dir"),
        entry("tree/d/e", "dir"),
        link("tree/d/e/top", "../.."),
        link("tree/out", "d/e/top/../x"),
        link("tree/up", "d/e/top"),
        link("tree/down", "up/up/d"),
    ]
    taken = liar(*rows).download("tree", tmp_path / "out")
    assert [path for path, _ in taken.skipped] == ["out"]
    root = (tmp_path / "out").resolve()
    for path in (tmp_path / "out").rglob("*"):
        if path.is_symlink():
            assert root in (path.resolve(), *path.resolve().parents)


def test_a_small_file_that_never_ends_is_cut_at_the_budget(tmp_path: Path) -> None:
    channel = Liar([entry("tree/a", size=10)], lambda size: b"x" * size)
    sandbox = Sandbox(LiarLauncher(channel))
    with pytest.raises(SandboxError) as caught:
        sandbox.download("tree", tmp_path / "out", max_bytes=5_000_000)
    assert caught.value.kind is Kind.TOO_LARGE
    assert channel.sent <= 5_000_001
    assert everything(tmp_path) == set()


def test_more_than_was_asked_for_in_one_reply_is_still_counted(tmp_path: Path) -> None:
    sandbox = liar(entry("tree/a"), content=lambda size: b"x" * (size * 3))
    with pytest.raises(SandboxError) as caught:
        sandbox.download("tree", tmp_path / "out", max_bytes=1_000_000)
    assert caught.value.kind is Kind.TOO_LARGE
    assert everything(tmp_path) == set()


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_transfer, "MAX_ENTRIES", 3)
    with pytest.raises(GuestLostError):
        liar(*(entry(f"tree/{n}") for n in range(4))).download("tree", tmp_path / "out")
    assert everything(tmp_path) == set()


def test_folders_that_nest_too_deep_are_refused_both_ways(tmp_path: Path) -> None:
    deep = ["tree" + "/d" * depth for depth in range(1, _transfer.MAX_DEPTH + 2)]
    with pytest.raises(SandboxError) as caught:
        liar(*(entry(path, "dir") for path in deep)).download("tree", tmp_path / "out")
    assert caught.value.kind is Kind.TOO_LARGE
    assert everything(tmp_path) == set()
    (tmp_path / ("d/" * (_transfer.MAX_DEPTH + 2))).mkdir(parents=True)
    with MemorySandbox() as sandbox, pytest.raises(SandboxError) as caught:
        sandbox.upload(tmp_path, "in")
    assert caught.value.kind is Kind.TOO_LARGE


def test_modes_give_no_rights_away_and_folders_stay_removable(tmp_path: Path) -> None:
    rows = [
        entry("tree/closed", "dir", mode=0),
        entry("tree/closed/setuid", mode=0o6777),
        entry("tree/sticky", "dir", mode=0o1777),
    ]
    liar(*rows).download("tree", tmp_path / "out")
    modes = {
        path.name: stat.S_IMODE(path.lstat().st_mode) for path in (tmp_path / "out").rglob("*")
    }
    umask = os.umask(0)
    os.umask(umask)
    assert modes == {"closed": 0o700, "setuid": 0o777 & ~umask, "sticky": 0o777 & ~umask}


def test_what_vanishes_or_changes_meanwhile_is_named_and_left_out(tmp_path: Path) -> None:
    class Changing(Liar):
        def call(self, call: Call) -> Reply:
            if call.op == "read":
                raise _transfer.FileError("gone", kind=Kind.NOT_FOUND)
            return super().call(call)

    sandbox = Sandbox(LiarLauncher(Changing([entry("tree/a")], lambda _: b"")))
    taken = sandbox.download("tree", tmp_path / "out")
    assert taken.skipped == (("a", "not_found"),)
    assert everything(tmp_path) == {"out"}


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    calls = 0

    def content(size: int) -> bytes:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise KeyboardInterrupt
        return b"x" * size

    with pytest.raises(KeyboardInterrupt):
        liar(entry("tree/a"), content=content).download("tree", tmp_path / "out")
    assert everything(tmp_path) == set()


@pytest.mark.parametrize("destination", ["", ".", "..", "/", "x/.."])
def test_a_destination_must_be_a_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destination: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SandboxError) as caught:
        liar().download("tree", destination)
    assert caught.value.kind is Kind.BAD_PATH
    assert everything(tmp_path) == set()


def test_an_unreadable_file_of_the_host_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").write_bytes(b"x")
    (tmp_path / "shut").write_bytes(b"x")
    really = os.open

    def refusing(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "shut":
            raise PermissionError(13, "Permission denied")
        return really(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refusing)
    with MemorySandbox() as sandbox:
        sent = sandbox.upload(tmp_path, "in")
        assert [entry.path for entry in sandbox.list("in")] == ["in/open"]
    assert sent.skipped == (("shut", "Permission denied"),)


def test_a_full_disk_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int, _data: object) -> int:
        raise OSError(28, "No space left on device")

    with MemorySandbox(files={"tree/file": b"x"}) as sandbox:
        monkeypatch.setattr(os, "write", full)
        for path in ("tree", "tree/file"):
            with pytest.raises(SandboxError) as caught:
                sandbox.download(path, tmp_path / "out")
            assert caught.value.kind is Kind.DISK_FULL
    assert everything(tmp_path) == set()
