"""Workspaces: an overlay, a copy, the folder itself, an empty one; and what becomes of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from podbot import kernel
from podbot.engine.specs import BindMount, OverlayMount
from podbot.errors import Kind, LaunchError
from podbot.sandbox import Policy, layers
from podbot.sandbox.container import _target as targets
from podbot.sandbox.container import _workspace
from podbot.sandbox.container._identity import EngineKind, Identity, choose
from podbot.sandbox.container._target import Overlaying, Target
from podbot.sandbox.container._workspace import Contents, Workspace, prepare
from podbot.sandbox.container.place import Place
from podbot.sandbox.container.settings import Settings
from podbot.sandbox.limits import Limits

ABLE = Overlaying(None)
UNABLE = Overlaying("it cannot be had")
ELSEWHERE = Overlaying("it is not here", elsewhere=True)


def me() -> Identity:
    return choose(EngineKind(True, True), (os.geteuid(), os.getegid()), None)


def found(folder: Path, policy: Policy | None = None) -> Target:
    return targets.checked(folder, policy or Policy())


def made(settings: Settings, target: Target | None, able: Overlaying = ABLE) -> Contents:
    contents, place = prepare(settings, target, me(), able)
    place.remove()
    return contents


def test_a_reviewed_folder_is_an_overlay_over_it(own_layers: Path, target: Path) -> None:
    contents = made(Settings(target), found(target))
    assert isinstance(contents.mount, OverlayMount)
    assert contents.layer is not None
    assert contents.mount.source == str(target)
    assert contents.mount.upper == str(contents.layer.upper(0))
    assert contents.copied is None
    assert contents.layer.live
    Workspace(contents, False).release()
    assert not contents.layer.path.exists(), "nothing was changed, so nothing is kept"


def test_a_copy_is_whole_and_has_a_manifest(own_layers: Path, target: Path) -> None:
    contents = made(Settings(target, workspace="copy"), found(target))
    assert isinstance(contents.mount, BindMount)
    assert contents.layer is not None and contents.layer.method == "copy"
    assert (contents.folder / "src" / "b.py").read_text() == "b = 1\n"
    assert os.readlink(contents.folder / "link") == "a.txt"
    assert contents.layer.baseline(0).exists()
    Workspace(contents, False).release()
    assert contents.layer.path.exists() and not contents.layer.live
    contents.layer.discard()


def test_what_cannot_be_an_overlay_is_copied_and_says_why(own_layers: Path, target: Path) -> None:
    contents = made(Settings(target), found(target), UNABLE)
    assert contents.copied == "it cannot be had"
    assert contents.layer is not None and contents.layer.method == "copy"
    Workspace(contents, True).release()
    assert not contents.layer.path.exists()


def test_what_is_hidden_is_not_copied(own_layers: Path, target: Path) -> None:
    policy = Policy(hidden=(str(target / "src"),))
    contents = made(Settings(target, policy=policy), found(target, policy))
    assert not (contents.folder / "src").exists()
    assert (contents.folder / "a.txt").exists()
    Workspace(contents, True).release()


def test_a_bound_folder_is_itself(own_layers: Path, target: Path) -> None:
    contents = made(Settings(target, workspace="bind"), found(target))
    assert contents.mount == BindMount(str(target), "/workspace")
    assert contents.layer is None
    Workspace(contents, True).release()
    assert (target / "a.txt").exists()


def test_a_sandbox_without_a_target_has_an_empty_folder(own_layers: Path) -> None:
    contents, place = prepare(Settings(), None, me(), ABLE)
    assert contents.mount == BindMount(str(place.workspace), "/workspace")
    assert list(place.workspace.iterdir()) == []
    place.remove()


def test_a_copy_that_is_too_large_leaves_nothing_behind(own_layers: Path, target: Path) -> None:
    settings = Settings(target, workspace="copy", limits=Limits(disk=3))
    with pytest.raises(LaunchError) as caught:
        made(settings, found(target))
    assert caught.value.kind is Kind.TARGET_TOO_LARGE
    assert [entry.name for entry in own_layers.iterdir()] == ["containers"]
    assert list((own_layers / "containers").iterdir()) == []


def test_one_can_go_on_in_a_kept_layer(own_layers: Path, target: Path) -> None:
    for kind in ("review", "copy"):
        first = made(Settings(target, workspace=kind), found(target))
        (first.folder / "new").write_text("x")
        Workspace(first, False).release()
        assert first.layer is not None
        again = made(Settings(layer=first.layer), found(target))
        assert again.mount == first.mount
        assert again.layer is not None and again.layer.live
        assert (again.copied is None) is (kind == "review")
        Workspace(again, False).release()
        again.layer.discard()


def test_a_layer_that_does_not_fit_is_refused(own_layers: Path, target: Path) -> None:
    layer, lock = layers.create((str(target),), "overlay", False)
    os.close(lock)
    cases = (
        (Overlaying(None, "trusted"), found(target), "made by another"),
        (UNABLE, found(target), "it cannot be had"),
        (ABLE, found(target / "src"), "not what they were"),
    )
    for able, where, words in cases:
        with pytest.raises(LaunchError, match=words):
            made(Settings(layer=layer), where, able)
    assert not layer.live
    layer.discard()


def test_an_empty_workspace_can_be_filled_later(own_layers: Path, target: Path) -> None:
    contents, place = prepare(Settings(), None, me(), ABLE)
    held = os.open(contents.folder, os.O_PATH)  # as a mount would
    full = Workspace(contents, False)
    full.fill(found(target), me(), Limits())
    assert sorted(os.listdir(f"/proc/self/fd/{held}")) == ["a.txt", "link", "src"]
    os.close(held)
    assert full.layer is not None and full.layer.targets == (str(target),)
    assert full.layer.live
    place.remove()
    full.release()
    full.release()
    full.layer.discard()


def test_a_filling_that_fails_leaves_no_layer(own_layers: Path, target: Path) -> None:
    contents, place = prepare(Settings(), None, me(), ABLE)
    with pytest.raises(LaunchError):
        Workspace(contents, False).fill(found(target), me(), Limits(disk=1))
    assert layers.found() == []
    place.remove()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workspace": "bind"}, "cannot be mounted"),
        ({"workspace": "copy", "policy": Policy(writable=("/tmp",))}, "cannot be mounted"),
        ({"workspace": "review"}, "for review"),
    ],
)
def test_another_machine_mounts_nothing_of_this_one(
    own_layers: Path, target: Path, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(LaunchError, match=words) as caught:
        made(Settings(target, **settings), found(target), ELSEWHERE)  # type: ignore[arg-type]
    assert caught.value.kind is Kind.UNSUPPORTED


def test_secrets_are_not_sent_to_another_machine(own_layers: Path, target: Path) -> None:
    policy = Policy(hidden=(str(target / "a.txt"),))
    with pytest.raises(LaunchError, match="cannot be sent"):
        made(Settings(target, workspace="copy", policy=policy), found(target, policy), ELSEWHERE)
    contents = made(Settings(target, workspace="copy"), found(target), ELSEWHERE)
    assert contents.mount is None


# What only root has to do


@pytest.fixture
def nobody() -> Identity:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to others")
    return choose(EngineKind(True, False), (0, 0), None)


def test_roots_own_folder_is_copied_for_nobody_where_ids_cannot_be_mapped(
    own_layers: Path, target: Path, nobody: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(kernel, "clone_tree", refuse)
    os.link(target / "a.txt", target / "other")
    contents, place = prepare(Settings(target), found(target), nobody, Overlaying(None, "trusted"))
    place.remove()
    assert "is root's" in str(contents.copied)
    assert "ids cannot be mapped there: Function not implemented" in str(contents.copied)
    assert contents.layer is not None and contents.layer.traits.nobody == 65534
    for name in ("", "a.txt", "src", "src/b.py", "link"):
        assert os.lstat(contents.folder / name).st_uid == 65534
        assert os.lstat(target / name).st_uid == 0
    Workspace(contents, True).release()


def test_a_users_folder_is_an_overlay_for_its_owner(own_layers: Path, target: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files to others")
    os.chown(target, 1234, 1235)
    where = found(target)
    who = choose(EngineKind(True, False), (0, 0), where.owner)
    contents, place = prepare(Settings(target), where, who, Overlaying(None, "trusted"))
    place.remove()
    assert contents.layer is not None and contents.layer.traits.marks == "trusted"
    assert contents.layer.upper(0).stat().st_uid == 1234
    Workspace(contents, False).release()


def test_roots_own_folder_is_bound_only_when_it_is_handed_over(
    own_layers: Path, target: Path, nobody: Identity
) -> None:
    settings = Settings(target, workspace="bind")
    with pytest.raises(LaunchError, match="may not write it") as caught:
        prepare(settings, found(target), nobody, ABLE)
    assert "hand_over" in (caught.value.remedy or "")
    assert target.stat().st_uid == 0
    elsewhere = target.parent / f"{target.name}.link"
    os.link(target / "a.txt", elsewhere)
    _, place = prepare(
        Settings(target, workspace="bind", hand_over=True), found(target), nobody, ABLE
    )
    place.remove()
    assert target.stat().st_uid == (target / "src" / "b.py").stat().st_uid == 65534
    assert elsewhere.stat().st_uid == 0, "a file with a name elsewhere stays whose it is"
    elsewhere.unlink()


def test_an_overlay_that_cannot_be_given_to_its_owner_leaves_nothing(
    own_layers: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place()
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(PermissionError):
        _workspace._overlaid(found(target), me(), ABLE, place)
    place.remove()
    assert layers.found() == []
