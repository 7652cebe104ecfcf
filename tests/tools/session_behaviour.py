"""What a session knows of a workspace, how mounts get there, and how a section ends."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from workplace import Clock, Place, SectionTests

from podbot.errors import PodbotError
from podbot.runtime.events import InProcessEventBus, ToolInvoked
from podbot.runtime.session import Session
from podbot.tools import DeleteEntry, HostMount, VfsPath, VirtualFileSystem, WriteFile


class SessionTests(SectionTests):
    """Slices, mounts, clones, ends, and many threads at once."""

    # What the session knows

    def test_versions_count_what_was_written(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="1")
        for number in range(1, 4):
            place.ok(
                "edit_file", file_path="a.txt", old_string=str(number), new_string=str(number + 1)
            )
        file = place.files["a.txt"]
        assert (file.content, file.version) == ("4", 4)
        assert file.created_at <= file.updated_at

    def test_every_call_counts_as_use(self, session: Session) -> None:
        place = Place(session, self.make_section(session, clock=Clock()))
        place.ok("ls")
        started = place.workspace.started_at
        moments = [place.workspace.last_used_at]
        for name, arguments in (
            ("write_file", {"file_path": "a.txt", "content": "x"}),
            ("read_file", {"file_path": "a.txt"}),
            ("read_file", {"file_path": "missing"}),
            ("grep", {"pattern": "x"}),
            ("rm", {"path": "a.txt"}),
        ):
            place.call(name, **arguments)
            moments.append(place.workspace.last_used_at)
        assert moments == sorted(set(moments))  # also after the call that failed
        assert place.workspace.started_at == started
        place.section.close()

    def test_a_call_that_fails_leaves_the_files_as_they_are_known(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="x")
        before = place.files
        place.fails("write_file", file_path="a.txt", content="y")
        place.fails("edit_file", file_path="a.txt", old_string="q", new_string="y")
        place.fails("rm", path="b.txt")
        assert {path: file.content for path, file in place.files.items()} == {"a.txt": "x"}
        assert place.files["a.txt"].version == before["a.txt"].version

    def test_a_failure_of_the_first_call_still_tells_of_the_workspace(self, place: Place) -> None:
        place.fails("read_file", file_path="missing")
        assert place.workspace is not None
        failed = place.session.query(ToolInvoked).latest()
        assert failed is not None and not failed.success

    @pytest.mark.parametrize(
        "arguments",
        [
            {"file_path": "a.txt", "content": "x", "mode": "overwrite"},
            {"file_path": 7, "content": "x"},
            {"file_path": "a.txt"},
            {"file_path": "a.txt", "content": float("nan")},
            {"file_path": "a.txt", "content": ["x"]},
            {"file_path": "ä.txt", "content": "x"},
        ],
    )
    def test_bad_arguments_change_nothing_in_the_session(
        self, place: Place, arguments: dict[str, object]
    ) -> None:
        place.ok("ls")
        before = place.session.query(VirtualFileSystem).all()
        message = place.fails("write_file", **arguments)
        assert message
        assert place.session.query(VirtualFileSystem).all() == before
        assert place.ok("ls").entries == ()

    def test_nothing_is_said_to_be_complete_before_anybody_looked(
        self, session: Session, project: Path
    ) -> None:
        place = self.mounted(session, HostMount("project"))
        known = session.query(VirtualFileSystem).latest()
        assert known is not None and known.files and not known.complete
        place.ok("ls")
        known = session.query(VirtualFileSystem).latest()
        assert known is not None and known.complete and known.left_out == 0
        place.section.close()

    # What programs dispatch

    def test_a_file_that_a_program_dispatches_is_written(self, place: Place) -> None:
        files = place.session.mutate(VirtualFileSystem)
        files.dispatch(WriteFile(VfsPath(("notes", "a.txt")), "one\n"))
        assert place.ok("read_file", file_path="notes/a.txt").content == "   1 | one"
        place.session.mutate().dispatch(
            WriteFile(VfsPath(("notes", "a.txt")), "two\n", mode="append")
        )
        assert place.read("notes/a.txt") == b"one\ntwo\n"
        assert place.files["notes/a.txt"].content == "one\ntwo\n"
        files.dispatch(DeleteEntry(VfsPath(("notes",))))
        assert place.ok("ls").entries == ()
        assert place.files == {}

    @pytest.mark.parametrize(
        ("event", "said"),
        [
            (WriteFile(VfsPath(("..", "a.txt")), "x"), r"'\.\.'"),
            (WriteFile(VfsPath(("there.txt",)), "x"), "exists"),
            (WriteFile(VfsPath(("a.bin",)), None, encoding="binary"), "its text"),
            (DeleteEntry(VfsPath(("missing",))), "missing"),
            (DeleteEntry(VfsPath()), "workspace itself"),
        ],
    )
    def test_what_cannot_be_done_is_refused_and_nothing_is_noted(
        self, place: Place, event: object, said: str
    ) -> None:
        place.ok("write_file", file_path="there.txt", content="there")
        before = place.session.query(VirtualFileSystem).all()
        with pytest.raises(PodbotError, match=said):
            place.session.mutate(VirtualFileSystem).dispatch(event)
        assert place.session.query(VirtualFileSystem).all() == before

    def test_a_closed_workspace_takes_no_files(self, place: Place) -> None:
        place.section.close()
        with pytest.raises(PodbotError, match="closed"):
            place.session.mutate(VirtualFileSystem).dispatch(WriteFile(VfsPath(("a",)), "x"))

    def test_a_clone_without_a_section_of_its_own_writes_nowhere(self, place: Place) -> None:
        place.ok("ls")
        other = place.session.clone(bus=InProcessEventBus())
        other.mutate(VirtualFileSystem).dispatch(WriteFile(VfsPath(("a.txt",)), "x"))
        assert place.ok("ls").entries == ()

    def test_a_reset_session_learns_of_the_workspace_again(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="x")
        place.session.mutate().reset()
        place.ok("ls")
        assert place.workspace is not None

    # Mounts

    def test_mounts_are_copied_in_and_known_before_the_first_call(
        self, session: Session, project: Path
    ) -> None:
        place = self.mounted(session, HostMount("project"))
        assert place.section.sandbox is None
        known = {path: file.content for path, file in place.files.items()}
        assert known == {
            "project/README.md": "read me\n",
            "project/picture.bin": None,
            "project/src/deep/low.py": "low = 1\n",
            "project/src/main.py": "print('main')\n",
        }
        assert place.ok("read_file", file_path="project/README.md").content == "   1 | read me"
        assert place.read("project/picture.bin") == b"\x89PNG\0\xff"
        assert {path: file.content for path, file in place.files.items()} == known
        assert all(file.version == 1 for file in place.files.values())
        place.section.close()

    def test_what_is_done_to_a_mount_stays_in_the_workspace(
        self, session: Session, project: Path
    ) -> None:
        place = self.mounted(session, HostMount("project", mount_path="/"))
        place.ok("edit_file", file_path="README.md", old_string="read", new_string="wrote")
        place.ok("rm", path="src")
        assert (project / "README.md").read_text() == "read me\n"
        assert (project / "src" / "main.py").exists()
        assert sorted(place.files) == ["README.md", "picture.bin"]
        assert place.files["README.md"].version == 2
        place.section.close()

    def test_a_mount_keeps_what_can_be_run(self, session: Session, project: Path) -> None:
        (project / "run.sh").write_text("#!/bin/sh\n")
        (project / "run.sh").chmod(0o700)
        place = self.mounted(session, HostMount("project"))
        assert place.sandbox.stat("project/run.sh").mode & 0o111
        assert not place.sandbox.stat("project/README.md").mode & 0o111
        place.section.close()

    def test_later_mounts_win(self, session: Session, project: Path) -> None:
        other = self.tmp_path / "host" / "other"
        (other / "README.md").mkdir(parents=True)
        (other / "README.md" / "x.txt").write_text("a folder now")
        (other / "src").write_text("a file now")
        place = self.mounted(session, HostMount("project", "/"), HostMount("other", "/"))
        known = sorted(place.files)
        place.ok("ls")
        assert known == sorted(place.files) == ["README.md/x.txt", "picture.bin", "src"]
        assert place.read("src") == b"a file now"
        place.section.close()

    def test_the_prompt_shows_twenty_files_of_a_mount(self, session: Session) -> None:
        many = self.tmp_path / "host" / "many"
        many.mkdir(parents=True)
        for number in range(25):
            (many / f"{number:02}.txt").write_text("x")
        place = self.mounted(session, HostMount("many"))
        text = place.prompt.render(session=session).text
        assert text.count("many/") == 20
        assert "and 5 more" in text
        place.section.close()

    # Clones

    def test_a_clone_is_fully_apart(self, session: Session, project: Path) -> None:
        place = self.mounted(session, HostMount("project"))
        place.ok("write_file", file_path="mine.txt", content="x")
        bus = InProcessEventBus()
        told: list[ToolInvoked] = []
        bus.subscribe(ToolInvoked, told.append)
        other_session = session.clone(bus=bus)
        section = place.section.clone(session=other_session, bus=bus)
        other = Place(other_session, section)
        assert "mine.txt" not in other.files
        assert other.workspace is None
        other.ok("rm", path="project/src")
        other.ok("write_file", file_path="theirs.txt", content="y")
        assert sorted(other.files) == [
            "project/README.md", "project/picture.bin", "theirs.txt",
        ]  # fmt: skip
        assert "theirs.txt" not in place.files and "mine.txt" in place.files
        assert place.ok("glob", pattern="*.txt").matches[0].segments == ("mine.txt",)
        assert [event.name for event in told] == ["rm", "write_file"]
        section.close()
        assert place.ok("read_file", file_path="mine.txt").total_lines == 1
        place.section.close()

    def test_a_clone_is_told_of_on_the_bus_it_was_given(self, place: Place) -> None:
        session = place.session.clone(bus=InProcessEventBus())
        bus = InProcessEventBus()
        told: list[ToolInvoked] = []
        bus.subscribe(ToolInvoked, told.append)
        before = len(session.query(ToolInvoked).all())
        other = Place(session, place.section.clone(session=session, bus=bus))
        other.ok("write_file", file_path="a.txt", content="x")
        other.fails("write_file", file_path="a.txt", content="y")
        assert [event.success for event in told] == [True, False]
        assert len(session.query(ToolInvoked).all()) == before + 2
        other.section.close()

    # The end

    def test_a_closed_section_says_so(self, place: Place) -> None:
        place.ok("ls")
        sandbox = place.sandbox
        place.section.close()
        place.section.close()
        assert sandbox.closed
        assert "closed" in place.fails("ls")

    def test_a_section_that_was_never_used_closes_too(self, place: Place) -> None:
        place.section.close()
        assert "closed" in place.fails("ls")

    def test_collecting_a_section_ends_its_sandbox(self, session: Session) -> None:
        section = self.make_section(session)
        place = Place(session, section)
        place.ok("ls")
        sandbox = place.sandbox
        del section, place
        gc.collect()
        assert sandbox.closed

    # Many at once

    def test_32_threads_lose_no_event(self, place: Place) -> None:
        place.ok("ls")
        calls = 4

        def work(number: int) -> None:
            for turn in range(calls):
                path = f"thread{number}/{turn}.txt"
                place.ok("write_file", file_path=path, content=f"{number} {turn}")
                text = place.ok("read_file", file_path=path).content
                assert text == f"   1 | {number} {turn}"

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(work, range(32)))
        assert len(place.files) == 32 * calls
        events = place.session.query(ToolInvoked).where(lambda event: event.name == "write_file")
        assert len(events) == 32 * calls
        for path, file in place.files.items():
            assert file.content == path.removeprefix("thread").removesuffix(".txt").replace(
                "/", " "
            )
