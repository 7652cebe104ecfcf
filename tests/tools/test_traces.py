"""A command that changed nothing in the layer is not looked after; any other is."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from workplace import Place

from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.sandbox import OverlaySandbox
from podbot.testing.base import eventually
from podbot.tools import OverlaySandboxConfig, OverlaySandboxSection, _traces
from podbot.tools._mirror import Mirror


def test_a_layer_that_was_not_written_to_is_what_it_was(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one")
    with OverlaySandbox(tmp_path, discard=True) as sandbox:
        for script in (
            "true", "echo two > file", "echo six > file", "chmod 600 file", "mkdir -p a/b",
            "echo x > a/b/c", "rm file", "ln -s x y",
        ):  # fmt: skip
            eventually(lambda: _traces.of(sandbox.layer) is not None)
            before = _traces.of(sandbox.layer)
            sandbox.exec(["sh", "-c", script]).check()
            eventually(lambda: _traces.of(sandbox.layer) is not None)
            assert (_traces.of(sandbox.layer) == before) == (script == "true")


def test_a_layer_that_has_just_changed_or_holds_much_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OverlaySandbox(tmp_path, discard=True) as sandbox:
        sandbox.exec(["sh", "-c", "echo x > file"]).check()
        monkeypatch.setattr(_traces, "FRESH_NS", 3_600_000_000_000)
        assert _traces.of(sandbox.layer) is None
        monkeypatch.setattr(_traces, "FRESH_NS", -3_600_000_000_000)
        assert _traces.of(sandbox.layer) is not None
        sandbox.exec(["sh", "-c", f"rm file; seq {_traces.MOST} | xargs touch"]).check()
        assert _traces.of(sandbox.layer) is None
    assert _traces.of(None) is None


def test_only_a_command_that_wrote_is_looked_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    compare = Mirror.compare

    def counted(self: Mirror, *arguments: Any) -> Any:
        looks.append(1)
        return compare(self, *arguments)

    monkeypatch.setattr(Mirror, "compare", counted)
    session = Session(bus=InProcessEventBus())
    config = OverlaySandboxConfig(target=tmp_path, discard=True)
    with closing(OverlaySandboxSection(session=session, config=config)) as section:
        place = Place(session, section)

        def is_quiet() -> bool:
            before = len(looks)
            place.ok("shell_execute", command=["true"])
            return len(looks) == before

        eventually(is_quiet)
        place.shell("echo x > new")
        assert "new" in place.files
        eventually(is_quiet)
        place.ok("write_file", file_path="other", content="x")
        place.shell("rm new other")
        assert place.files == {}
