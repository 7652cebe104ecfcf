"""What the container section decides, on machines without an engine."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from stand_in import PlainContainer, crashed
from workplace import Place

from podbot.errors import ConfigError, FileError, Kind, PromptError
from podbot.prompt import Prompt
from podbot.prompt.builtins.podman import PodmanShellSection
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.tools import HostMount, PodmanSandboxConfig, PodmanSandboxSection
from podbot.tools.podman import overlay_root


def placed(session_id: str = "one", **config: Any) -> Place:
    session = Session(bus=InProcessEventBus(), session_id=session_id)
    chosen = PodmanSandboxConfig(**config)
    return Place(session, PodmanSandboxSection(session=session, config=chosen))


def test_the_container_is_made_as_the_contract_says(
    cache: Path, containers: list[PlainContainer]
) -> None:
    place = placed(base_environment={"A": "b"}, idle_seconds=60.0, runtime="runc")
    assert containers == [] and not cache.exists()
    place.ok("ls")
    (container,) = containers
    options = container.options
    assert (options["image"], options["name"]) == ("python:3.12-bookworm", "wink-one")
    assert (options["workspace"], options["hand_over"], options["confined"]) == (
        "bind", True, True,
    )  # fmt: skip
    assert (options["idle"], options["runtime"], options["engine"]) == (60.0, "runc", None)
    assert container.workdir == str(cache / "one" / "workspace")
    place.section.close()


def test_the_session_knows_the_container(cache: Path, containers: list[PlainContainer]) -> None:
    place = placed(base_environment={"A": "b"}, image="an/image")
    place.ok("ls")
    known = place.workspace
    assert containers[0].container is not None
    assert known.container_id == containers[0].container.id
    assert (known.container_name, known.image, known.workdir) == (
        "wink-one", "an/image", "/workspace",
    )  # fmt: skip
    assert known.overlay_path == str(cache / "one" / "workspace")
    assert known.env == (("A", "b"),)
    containers[0].container = None  # stopped, because nobody used it
    place.ok("ls")
    assert place.workspace.container_id == ""
    place.section.close()


def test_files_outlive_the_section_and_mounts_are_copied_once(
    cache: Path, containers: list[PlainContainer], tmp_path: Path
) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "a.txt").write_text("from the host")
    mounts = {"mounts": (HostMount("host"),), "allowed_host_roots": (tmp_path,)}
    place = placed(**mounts)
    place.ok("edit_file", file_path="host/a.txt", old_string="from", new_string="not from")
    place.section.close()
    (tmp_path / "host" / "a.txt").write_text("changed since")
    again = placed(**mounts)
    assert again.ok("read_file", file_path="host/a.txt").content == "   1 | not from the host"
    assert again.files["host/a.txt"].content == "not from the host"
    again.section.close()
    assert stat.S_IMODE((cache / "one").stat().st_mode) == 0o700


def test_a_session_that_is_taken_up_again_knows_the_files_that_were_kept(
    cache: Path, containers: list[PlainContainer], tmp_path: Path
) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "a.txt").write_text("from the host")
    mounts = {"mounts": (HostMount("host"),), "allowed_host_roots": (tmp_path,)}
    place = placed(**mounts)
    place.shell("printf 'made by it' > mine.txt; printf changed > host/a.txt; touch -d @1 mine.txt")
    place.section.close()
    (tmp_path / "host" / "a.txt").write_text("another")
    (tmp_path / "host" / "later.txt").write_text("came later")
    again = placed(**mounts)
    kept = {"host/a.txt": "changed", "mine.txt": "made by it"}
    assert {path: file.content for path, file in again.files.items()} == kept
    again.ok("ls")
    assert {path: file.content for path, file in again.files.items()} == kept
    again.section.close()


def test_a_container_that_was_stopped_is_no_longer_told_of(
    cache: Path, containers: list[PlainContainer]
) -> None:
    place = placed(idle_seconds=60.0)
    place.ok("ls")
    used = place.workspace.last_used_at
    assert place.workspace.container_id
    containers[0].container = None
    assert containers[0].on_stop is not None
    containers[0].on_stop()  # as a container's sandbox does it: because nobody used it
    assert (place.workspace.container_id, place.workspace.last_used_at) == ("", used)
    place.section.close()


def test_the_folder_of_a_subagent_goes_with_it(
    cache: Path, containers: list[PlainContainer]
) -> None:
    place = placed()
    place.ok("write_file", file_path="a.txt", content="x")
    session = place.session.clone(bus=InProcessEventBus(), parent=place.session)
    child = Place(session, place.section.clone(session=session, bus=session.bus))
    child.ok("write_file", file_path="b.txt", content="x")
    child.section.close()
    place.section.close()
    assert [entry.name for entry in cache.iterdir()] == ["one"]


def test_the_next_section_removes_what_a_killed_one_left(
    cache: Path, containers: list[PlainContainer]
) -> None:
    left = crashed(cache / "subagent", "remove", "a.txt")
    place = placed()
    place.ok("ls")
    assert not left.exists()
    place.section.close()


@pytest.mark.parametrize(("keep", "written", "stays"), [
    (True, True, True), (True, False, False), (False, True, False),
])  # fmt: skip
def test_a_folder_nobody_wants_goes(
    cache: Path, containers: list[PlainContainer], keep: bool, written: bool, stays: bool
) -> None:
    place = placed(keep_workspace=keep)
    if written:
        place.ok("write_file", file_path="a.txt", content="x")
    else:
        place.ok("ls")
    place.section.close()
    assert (cache / "one").exists() == stays


def test_a_section_that_was_never_used_leaves_nothing(cache: Path) -> None:
    placed().section.close()
    assert not cache.exists()


def test_a_clone_has_a_folder_and_a_container_of_its_own(
    cache: Path, containers: list[PlainContainer]
) -> None:
    place = placed()
    place.ok("write_file", file_path="a.txt", content="x")
    bus = InProcessEventBus()
    session = place.session.clone(bus=bus, session_id="two")
    other = Place(session, place.section.clone(session=session, bus=bus))
    assert other.ok("ls").entries == ()
    assert [container.options["name"] for container in containers] == ["wink-one", "wink-two"]
    place.section.close()
    other.section.close()


def test_a_lost_container_is_made_anew_over_the_same_files(
    cache: Path, containers: list[PlainContainer]
) -> None:
    place = placed()
    place.ok("write_file", file_path="a.txt", content="x")
    containers[0].close()
    assert place.ok("read_file", file_path="a.txt").total_lines == 1
    assert len(containers) == 2
    assert containers[1].container is not None
    assert place.workspace.container_id == containers[1].container.id
    place.section.close()


def test_a_workspace_that_is_not_there_is_said_to_be_missing(
    cache: Path, containers: list[PlainContainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> object:
        raise FileError("no such folder", kind=Kind.NOT_FOUND)

    place = placed()
    monkeypatch.setattr(PlainContainer, "stat", missing)
    assert "/workspace is not there in the container" in place.fails("ls")
    place.section.close()


def test_a_workspace_that_is_no_folder_is_refused(
    cache: Path, containers: list[PlainContainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    from podbot.sandbox import FileInfo

    place = placed()
    file = FileInfo(".", "file", 0, 0o644, 0)
    monkeypatch.setattr(PlainContainer, "stat", lambda *_, **__: file)
    assert "it is no folder" in place.fails("ls")
    place.section.close()


def test_an_engine_that_is_not_there_is_a_failing_result(cache: Path, tmp_path: Path) -> None:
    place = placed(engine=f"unix://{tmp_path}/no.sock")
    message = place.fails("shell_execute", command=["true"])
    assert "no.sock" in message
    assert not place.call("ls").success
    place.section.close()
    assert not (cache / "one").exists()


def test_a_cache_that_cannot_be_used_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PODBOT_CACHE", str(tmp_path / "file"))
    place = placed()
    assert "PODBOT_CACHE" in place.fails("ls")
    place.section.close()
    monkeypatch.setenv("PODBOT_CACHE", "relative")
    with pytest.raises(ConfigError, match="not an absolute path"):
        placed()


def test_a_folder_that_somebody_else_made_is_not_used(
    cache: Path, containers: list[PlainContainer], tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    cache.mkdir()
    (cache / "one").symlink_to(tmp_path / "elsewhere")
    place = placed()
    assert "not a folder of yours" in place.fails("ls")
    place.section.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_that_others_could_look_into_is_closed(
    cache: Path, containers: list[PlainContainer]
) -> None:
    (cache / "one").mkdir(parents=True, mode=0o755)
    place = placed()
    place.ok("write_file", file_path="a.txt", content="x")
    assert stat.S_IMODE((cache / "one").stat().st_mode) == 0o700
    place.section.close()


def test_the_cache_is_in_the_home_unless_a_variable_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PODBOT_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert overlay_root("x") == tmp_path / ".cache" / "podbot" / "podman" / "x"
    monkeypatch.setenv("WEAKINCENTIVES_CACHE", "/elsewhere")
    assert overlay_root("x") == Path("/elsewhere/x")


def test_the_engine_is_told_whose_session_it_is(
    cache: Path, containers: list[PlainContainer]
) -> None:
    place = placed("the-session")
    place.ok("ls")
    assert containers[0].options["session"] == "the-session"
    place.section.close()


@pytest.mark.parametrize("image", ["", "  ", None])
def test_a_section_without_an_image_is_told_so(cache: Path, image: Any) -> None:
    with pytest.raises(ConfigError, match="no image is set") as raised:
        placed(image=image)
    assert raised.value.kind is Kind.MISSING_REQUIRED


def test_the_prompt_promises_no_limit_that_an_engine_may_not_enforce(cache: Path) -> None:
    place = placed()
    text = " ".join(place.prompt.render(session=place.session).text.split())
    assert "where the machine can hold it to that" in text
    place.section.close()


def test_a_prompt_has_one_container_shell_at_most(cache: Path) -> None:
    session = Session(bus=InProcessEventBus())
    sections = [PodmanSandboxSection(session=session), PodmanShellSection()]
    with pytest.raises(PromptError, match="container-backed shell"):
        Prompt(ns="a", key="b", sections=sections)


def test_the_prompt_tells_of_the_container(cache: Path) -> None:
    place = placed()
    text = " ".join(place.prompt.render(session=place.session).text.split())
    assert "no network" in text and "1 GiB" in text and "read-only" in text
    place.section.close()
