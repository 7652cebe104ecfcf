"""What owners that are gone left behind is found and removed; what others own is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from small_engine import SmallEngine

import podbot.sandbox
from podbot.engine import ContainerSpec, labels
from podbot.errors import ContainerError, Kind
from podbot.frozen import replace
from podbot.sandbox.container import _running
from podbot.sandbox.container.sweeping import sweep


def test_nothing_is_swept_where_nothing_is(own_layers: Path) -> None:
    found = sweep(None)
    assert found.containers == found.folders == ()


def test_the_dead_are_swept_and_the_living_are_not(engine: SmallEngine, own_layers: Path) -> None:
    code = (
        "from podbot.engine import owner_label; print(owner_label())\n"
        "from podbot.sandbox.container.place import Place; print(Place().path.name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    dead, folder = done.stdout.split()
    there = podbot.sandbox.open("container", image="image", engine=engine)
    for name, owner in (("orphan", dead), ("elsewhere", "1/another/boot/1/2/3"), ("odd", "x")):
        spec = ContainerSpec("image", ("true",), name=name, labels={labels.OWNER: owner})
        engine.containers.create(spec)
    old = own_layers / "kits" / "0123456789abcdef"
    old.mkdir()
    planned = sweep(engine, dry_run=True)
    assert (planned.containers, planned.folders) == (("orphan",), (folder,))
    assert sweep(engine) == planned
    names = {container.name for container in engine.containers.list({labels.OWNER: None})}
    assert names == {there.container.name, "elsewhere", "odd"}  # type: ignore[attr-defined]
    assert old.exists(), "someone may use it"
    assert there.exec(["true"]).ok
    there.close()
    sweep(None)
    assert not old.exists()
    engine.containers.all.clear()


def test_a_container_that_cannot_be_removed_keeps_no_other(
    engine: SmallEngine, own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_running, "END_SECONDS", 0.0)
    dead = replace(labels.this_process(), started=1).label()
    for name in ("stuck", "orphan"):
        engine.containers.create(ContainerSpec("image", name=name, labels={labels.OWNER: dead}))
    failures = iter([ContainerError("it is stuck", kind=Kind.ENGINE_FAILED, remedy="x")])

    def fail_once(verb: str) -> None:
        if verb == "remove" and (error := next(failures, None)):
            raise error

    engine.containers.trouble = fail_once

    found = sweep(engine)

    assert (found.containers, found.problem) == (("orphan",), "it is stuck")
    assert [one.spec.name for one in engine.containers.all.values()] == ["stuck"]
    engine.containers.all.clear()
