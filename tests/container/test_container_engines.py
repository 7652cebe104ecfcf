"""Engines that sandboxes share, and what is known of their overlays."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from small_engine import SmallEngine

import podbot.sandbox
from podbot.engine import BindMount, OverlayMount
from podbot.errors import ContainerError, Kind
from podbot.sandbox.container import _engines, _overlays
from podbot.sandbox.container._workspace import Contents
from podbot.sandbox.layers import Layer


def test_an_engine_is_connected_once_while_it_is_used(
    own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str | None] = []

    def connect(endpoint: str | None) -> SmallEngine:
        made.append(endpoint)
        return SmallEngine()

    monkeypatch.setattr(_engines, "_connect", connect)
    first = _engines.connect("unix:///x")
    assert _engines.connect("unix:///x") is first
    found = _engines.connect(None)
    assert found is not first
    monkeypatch.setenv("PODBOT_ENGINE_SOCKET", "unix:///y")
    other = _engines.connect("unix:///x")
    assert other is not first, "another environment may mean another engine"
    assert _engines.connect(other) is other
    for engine in (first, found, other):
        engine.close()
    before = len(made)
    del first, found, other, engine
    gc.collect()
    _engines.connect("unix:///x").close()
    assert len(made) == before + 1


def test_who_runs_an_engine_is_seen_by_its_socket(engine: SmallEngine) -> None:
    assert _engines.owner(engine) == os.geteuid()
    (engine.folder / "socket").unlink()
    assert _engines.owner(engine) is None
    elsewhere = SmallEngine(local=False)
    assert _engines.owner(elsewhere) is None
    elsewhere.close()


def test_overlays_need_podman_that_marks_them_readably(monkeypatch: pytest.MonkeyPatch) -> None:
    def able(**kind: bool) -> _overlays.Overlaying:
        made = SmallEngine(**kind)
        made.close()
        return _overlays.able(made)

    assert able() == _overlays.Overlaying(None, "user")
    assert "no overlay volumes" in str(able(podman=False).refused)
    assert able(local=False).elsewhere
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "only root" in str(able(rootful=True).refused)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert able(rootful=True) == _overlays.Overlaying(None, "trusted")


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("overlay", ["upperdir=/l/x/0.upper", "userxattr"], None),
        ("overlay", ["upperdir=/l/x/0.upper"], "marks"),
        ("overlay", ["upperdir=/elsewhere", "userxattr"], "through overlay"),
        ("fuse.fuse-overlayfs", [], "through fuse"),
        ("", [], "nothing we know"),
    ],
)
def test_what_was_mounted_must_be_readable(
    monkeypatch: pytest.MonkeyPatch, kind: str, options: list[str], reason: str | None
) -> None:
    engine = SmallEngine()
    monkeypatch.setattr(_overlays, "mounted", lambda pid: (kind, options))
    layer = Layer(Path("/l/x"), ("/t",), 0.0, 1, "overlay")
    mount = OverlayMount("/t", "/workspace", "/l/x/0.upper", "/l/x/0.work")
    if reason is None:
        _overlays.check(engine, 1, Contents(mount, layer.upper(0), layer))
    else:
        with pytest.raises(_overlays.Unfit, match=reason):
            _overlays.check(engine, 1, Contents(mount, layer.upper(0), layer))
        assert reason in str(_overlays.able(engine).refused)
    _overlays.check(engine, 1, Contents(BindMount("/t", "/workspace"), Path("/t")))
    engine.close()


def test_a_process_without_a_workspace_has_nothing_mounted_there() -> None:
    assert _overlays.mounted(os.getpid()) == ("", [])


REFUSAL = ContainerError("runtime: wanted crun, got runc", kind=Kind.PROFILE_MISMATCH)


def test_another_runtime_is_had_from_a_service_that_has_it(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SmallEngine()
    other.runtime = "crun"
    asked: list[str] = []

    def connect(runtime: str) -> SmallEngine:
        asked.append(runtime)
        return other

    def refuse(verb: str) -> None:
        if verb == "create":
            raise REFUSAL

    monkeypatch.setattr(_engines, "connect_with_runtime", connect)
    engine.containers.trouble = refuse
    with podbot.sandbox.open("container", image="image", engine=engine, runtime="crun") as sandbox:
        assert sandbox.exec(["true"]).ok
        assert {g.name: g.by for g in sandbox.guarantees}["kernel"].startswith("crun")
        sandbox.stop()  # type: ignore[attr-defined]
        assert sandbox.exec(["true"]).ok
    assert asked == ["crun"]
    assert _engines.with_runtime(other, "crun", REFUSAL) is None, "it is that one already"
    other.close()


def test_not_every_refusal_is_about_the_runtime(engine: SmallEngine) -> None:
    elsewhere = ContainerError("user: wanted 1, got 0", kind=Kind.PROFILE_MISMATCH)
    assert _engines.with_runtime(engine, None, REFUSAL) is None
    assert _engines.with_runtime(engine, "crun", elsewhere) is None
    docker = SmallEngine(podman=False)
    assert _engines.with_runtime(docker, "crun", REFUSAL) is None
    docker.close()


def test_a_runtime_that_is_not_there_is_named(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(runtime: str) -> SmallEngine:
        raise ContainerError("no such runtime", kind=Kind.CONNECTION_FAILED, remedy="x")

    monkeypatch.setattr(_engines, "connect_with_runtime", fail)
    with pytest.raises(ContainerError, match="crun cannot be used here") as caught:
        _engines.with_runtime(engine, "crun", REFUSAL)
    assert caught.value.kind is Kind.UNSUPPORTED
    assert "install crun" in (caught.value.remedy or "")
