"""A container sandbox from its start to its end, on an engine made for tests."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from small_engine import NAMES, SmallEngine, until

import podbot.sandbox
from podbot.errors import ContainerError, GuestLostError, Kind, LaunchError, SandboxError
from podbot.sandbox import ContainerSandbox, Limits, Policy
from podbot.sandbox.container import _overlays, place
from podbot.sandbox.container._session import ContainerSession


def opened(engine: SmallEngine, **options: object) -> ContainerSandbox:
    made = podbot.sandbox.open("container", image="image", engine=engine, **options)
    assert isinstance(made, ContainerSandbox)
    return made


def left(folder: Path) -> list[str]:
    """What lies in a layer root besides the kits."""
    found = [entry.name for entry in folder.iterdir() if entry.name not in ("kits", "containers")]
    places = folder / "containers"
    return found + [entry.name for entry in (places.iterdir() if places.is_dir() else ())]


def test_it_runs_commands_and_keeps_files(engine: SmallEngine, own_layers: Path) -> None:
    with opened(engine) as sandbox:
        sandbox.write("a", "1")
        assert sandbox.exec(["cat", "a"]).stdout == "1"
        assert sandbox.exec(["pwd"]).stdout == "/workspace\n"
        assert sandbox.container is not None and sandbox.container.image == "image"
        process = sandbox.spawn(["echo", "hi"])
        assert process.stdout.read_all() == b"hi\n"
        assert {g.name: g for g in sandbox.guarantees}["channel"].by.startswith("a socket")
    assert sandbox.container is None
    assert left(own_layers) == []


def test_its_environment_is_the_images_and_a_little_more(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("SECRET", "x")
    policy = Policy(environment={"MINE": "yes", "HOME": "/workspace"})
    with opened(engine, policy=policy) as sandbox:
        said = sandbox.exec(["sh", "-c", "echo $TERM $MINE $HOME $TMPDIR"])
        assert said.stdout == "dumb yes /workspace /tmp\n"
        sandbox.set_environment({"LATER": "1"})
        assert sandbox.exec(["sh", "-c", "echo $LATER"]).stdout == "1\n"


def test_changes_to_a_target_are_kept_apart(engine: SmallEngine, target: Path) -> None:
    from podbot.changes import capture

    with opened(engine, target=target) as sandbox:
        sandbox.write("a.txt", "two\n")
        sandbox.remove("src", recursive=True)
        sandbox.write("new", "x")
        assert sandbox.layer is not None
    assert (target / "a.txt").read_text() == "one\n"
    found = {change.path: change.kind.value for change in capture.read(sandbox.layer).changes}
    assert found == {
        "a.txt": "modified", "src": "deleted", "src/b.py": "deleted", "new": "added",
    }  # fmt: skip
    with opened(engine, layer=sandbox.layer) as again:
        assert again.read("a.txt") == b"two\n"
    sandbox.layer.discard()


def test_overlays_that_cannot_be_reviewed_become_copies(
    engine: SmallEngine, target: Path, own_layers: Path
) -> None:
    engine.fuse = True  # mounts something else where an overlay was asked for
    with opened(engine, target=target, discard=True) as sandbox:
        assert "works on a copy" in sandbox.notes[0]
        sandbox.write("a.txt", "two\n")
    assert (target / "a.txt").read_text() == "one\n"
    assert "through" in str(_overlays.able(engine).refused)
    with opened(engine, target=target, discard=True):
        assert engine.containers.made == 3, "it is not tried again"
    assert left(own_layers) == []


def test_a_kept_layer_cannot_become_a_copy(
    engine: SmallEngine, target: Path, own_layers: Path
) -> None:
    with opened(engine, target=target) as sandbox:
        sandbox.write("new", "x")
    engine.fuse = True
    with pytest.raises(LaunchError, match="cannot be used with this engine") as caught:
        opened(engine, layer=sandbox.layer)
    assert caught.value.kind is Kind.UNSUPPORTED
    assert sandbox.layer is not None and not sandbox.layer.live
    sandbox.layer.discard()


# Starting late, again, and when it fails


def test_a_lazy_one_starts_at_the_first_call(engine: SmallEngine) -> None:
    with opened(engine, lazy=True) as sandbox:
        assert engine.containers.made == 0
        assert sandbox.guarantees == () and sandbox.container is None
        sandbox.stop()
        assert sandbox.exec(["true"]).ok
        assert engine.containers.made == 1
        assert sandbox.guarantees
    with opened(engine, lazy=True) as sandbox:
        assert sandbox.spawn(["echo", "x"]).stdout.read_all() == b"x\n"
    with opened(engine, lazy=True) as sandbox:
        pass
    assert engine.containers.made == 2
    with pytest.raises(SandboxError) as caught:
        sandbox.exec(["true"])
    assert caught.value.kind is Kind.CLOSED


def test_a_lost_container_is_said_once_and_started_again(engine: SmallEngine) -> None:
    with opened(engine) as sandbox:
        sandbox.write("a", "1")
        sandbox.python("x = 1")
        old = sandbox.spawn(["sleep", "100"])
        engine.containers.kill_from_outside()
        with pytest.raises(GuestLostError, match="ended while it was in use") as caught:
            sandbox.exec(["true"])
        assert "call again" in (caught.value.remedy or "")
        assert sandbox.read("a") == b"1"
        assert sandbox.python("'x' in globals()").value == "False"
        new = sandbox.spawn(["sleep", "100"])
        assert new.number > 1_000_000 > old.number
        with pytest.raises(SandboxError) as gone:
            old.poll()
        assert gone.value.kind is Kind.NO_SUCH_PROCESS


def test_many_threads_lose_one_container_and_start_one(engine: SmallEngine) -> None:
    with opened(engine) as sandbox:
        outcomes: list[str] = []
        begun = threading.Barrier(5)

        def work() -> None:
            begun.wait(60)
            try:
                sandbox.exec(["sleep", "100"])
            except GuestLostError:
                outcomes.append("lost")
            outcomes.append(sandbox.exec(["echo", "again"]).stdout)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        begun.wait(60)
        assert until(lambda: sandbox.exec(NAMES).stdout.split().count("sleep") == 4)
        engine.containers.kill_from_outside()
        for thread in threads:
            thread.join(60)
        assert sorted(outcomes) == ["again\n"] * 4 + ["lost"] * 4
        assert engine.containers.made == 2


def test_one_that_is_not_to_be_restarted_stays_lost(engine: SmallEngine) -> None:
    with opened(engine, restart=False) as sandbox:
        engine.containers.kill_from_outside()
        for _ in range(2):
            with pytest.raises(GuestLostError) as caught:
                sandbox.exec(["true"])
        assert "open a new one" in (caught.value.remedy or "")


def test_a_restart_that_fails_can_be_tried_again(engine: SmallEngine, own_layers: Path) -> None:
    with opened(engine) as sandbox:
        sandbox.write("a", "1")
        engine.containers.kill_from_outside()
        with pytest.raises(GuestLostError):
            sandbox.exec(["true"])

        def away(verb: str) -> None:
            raise ContainerError("the engine is away", kind=Kind.CONNECTION_FAILED, remedy="x")

        engine.containers.trouble = away
        with pytest.raises(LaunchError, match="is away") as caught:
            sandbox.exec(["true"])
        assert caught.value.kind is Kind.CONNECTION_FAILED
        engine.containers.trouble = lambda verb: None
        assert sandbox.read("a") == b"1"
    assert left(own_layers) == []


@pytest.mark.parametrize("verb", ["create", "start", "verify_filter"])
def test_a_start_that_fails_leaves_nothing(
    engine: SmallEngine, target: Path, own_layers: Path, verb: str
) -> None:
    def refuse(now: str) -> None:
        if now == verb:
            raise ContainerError("no", kind=Kind.START_FAILED, remedy="do not")

    engine.containers.trouble = refuse
    with pytest.raises(LaunchError) as caught:
        opened(engine, target=target)
    assert (caught.value.kind, caught.value.remedy) == (Kind.START_FAILED, "do not")
    assert left(own_layers) == []
    lazy = opened(engine, target=target, lazy=True)
    with pytest.raises(LaunchError):
        lazy.exec(["true"])
    engine.containers.trouble = lambda now: None
    assert lazy.exec(["true"]).ok
    lazy.close()
    assert left(own_layers) == []


def test_a_container_under_another_filter_is_ended_before_anything_runs_in_it(
    engine: SmallEngine, own_layers: Path
) -> None:
    def other(verb: str) -> None:
        if verb == "verify_filter":
            raise ContainerError("another filter", kind=Kind.PROFILE_MISMATCH, remedy="x")

    engine.containers.trouble = other
    for by_stream in (False, True):
        engine.shuts_sockets = by_stream
        with pytest.raises(LaunchError, match="another filter") as caught:
            opened(engine)
        assert caught.value.kind is Kind.PROFILE_MISMATCH
        assert engine.containers.all == {}
        assert left(own_layers) == []


def test_an_image_without_python_is_named(engine: SmallEngine) -> None:
    def lacks(verb: str) -> None:
        if verb == "start":
            said = 'exec: "python3": executable file not found in $PATH'
            raise ContainerError(said, kind=Kind.START_FAILED)

    engine.containers.trouble = lacks
    with pytest.raises(LaunchError, match="no python3 in it") as caught:
        opened(engine)
    assert "podbot image build" in (caught.value.remedy or "")


def test_podman_is_asked_again_when_it_could_not_read_its_ids(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "keep-id requires additional UIDs or GIDs defined in /etc/subuid"
    tries: list[str] = []

    def confused(verb: str) -> None:
        if verb == "create":
            tries.append(verb)
            if len(tries) != 3:
                raise ContainerError(said, kind=Kind.CREATE_FAILED)

    monkeypatch.setattr("podbot.sandbox.container._making.MAPPING_PAUSE", 0)
    engine.containers.trouble = confused
    with opened(engine) as sandbox:
        assert sandbox.exec(["true"]).ok
    with pytest.raises(LaunchError, match="keep-id") as caught:
        opened(engine)
    assert caught.value.kind is Kind.USERNS_DENIED
    assert "subuids" in (caught.value.remedy or "")


def test_an_image_that_is_not_there_is_pulled(engine: SmallEngine) -> None:
    engine.pullable.add("other")
    with podbot.sandbox.open("container", image="other", engine=engine) as sandbox:
        assert sandbox.exec(["true"]).ok
    for image, words in (("third", "cannot be pulled"), ("localhost/x", "no image")):
        with pytest.raises(LaunchError, match=words) as caught:
            podbot.sandbox.open("container", image=image, engine=engine)
        assert caught.value.kind is Kind.IMAGE_NOT_FOUND


def test_a_name_belongs_to_one(engine: SmallEngine) -> None:
    with opened(engine, name="same") as first:
        with pytest.raises(LaunchError) as caught:
            opened(engine, name="same")
        assert caught.value.kind is Kind.NAME_IN_USE
        assert first.container is not None and first.container.name == "same"
        assert first.exec(["true"]).ok
        first.stop()
        assert first.exec(["true"]).ok, "it takes its own name again"


def test_a_stranger_at_the_door_is_not_taken_for_the_guest(
    engine: SmallEngine, own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_is_first", lambda pid: False)
    with pytest.raises(LaunchError, match="someone else connected") as caught:
        opened(engine)
    assert caught.value.kind is Kind.PROTOCOL
    assert left(own_layers) == []


def test_a_host_that_cannot_do_a_plain_thing_is_an_error_of_launching(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch, own_layers: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("podbot.sandbox.container._session.Door", full)
    with pytest.raises(LaunchError, match="No space left"):
        opened(engine)
    assert left(own_layers) == []


# Between start and end


def test_a_stopped_one_goes_on_with_its_files(engine: SmallEngine) -> None:
    with opened(engine) as sandbox:
        sandbox.write("a", "1")
        process = sandbox.spawn(["sleep", "100"])
        sandbox.stop()
        sandbox.stop()
        assert sandbox.container is None and not engine.containers.all
        with pytest.raises(SandboxError):
            process.stdout.read()
        assert sandbox.read("a") == b"1"


def test_a_frozen_one_goes_on_at_the_next_call(engine: SmallEngine) -> None:
    with opened(engine) as sandbox:
        sandbox.pause()
        (container,) = engine.containers.all.values()
        assert container.paused
        assert sandbox.exec(["true"]).ok
        assert not container.paused
        sandbox.pause()
        sandbox.resume()
        assert not container.paused
        assert engine.containers.made == 1


def test_what_cannot_be_frozen_says_what_to_do_instead(engine: SmallEngine) -> None:
    def refuse(verb: str) -> None:
        if verb in ("pause", "unpause"):
            raise ContainerError("no freezer", kind=Kind.ENGINE_FAILED, remedy="x")

    with opened(engine) as sandbox:
        engine.containers.trouble = refuse
        with pytest.raises(SandboxError, match="no freezer") as caught:
            sandbox.pause()
        assert caught.value.kind is Kind.UNSUPPORTED
        assert sandbox.exec(["true"]).ok
        engine.containers.trouble = lambda verb: None
        sandbox.pause()
        engine.containers.trouble = refuse
        with pytest.raises(SandboxError, match="no freezer"):
            sandbox.resume()
        engine.containers.trouble = lambda verb: None


def test_an_idle_one_is_stopped_and_comes_back(engine: SmallEngine) -> None:
    with opened(engine, idle=0.5) as sandbox:
        sandbox.write("a", "1")
        before = sandbox.last_used
        assert until(lambda: sandbox.container is None)
        assert sandbox.read("a") == b"1"
        assert sandbox.last_used > before
        process = sandbox.spawn(["sleep", "1.5"])
        assert sandbox.unused() == 0.0, "what runs in it is use"
        assert process.wait() == 0
        assert process.stdout.read_all() == process.stderr.read_all() == b""
        assert until(lambda: sandbox.container is None)


def test_whoever_asked_is_told_that_it_was_stopped(engine: SmallEngine) -> None:
    with opened(engine, idle=0.2) as sandbox:
        told: list[object] = []
        sandbox.on_stop = lambda: told.append(sandbox.container)
        assert until(lambda: told)  # because nobody used it
        assert sandbox.exec(["true"]).ok
        sandbox.stop()
        assert told[:2] == [None, None]
        told.clear()
        sandbox.stop()  # it was stopped
        assert told == []


def test_one_that_came_into_use_meanwhile_is_not_stopped(engine: SmallEngine) -> None:
    with opened(engine) as sandbox:
        sandbox.exec(["true"])
        sandbox.stop_if_unused(1000.0)
        assert sandbox.container is not None
        sandbox.stop_if_unused(0.0)
        assert sandbox.container is None
        sandbox.stop_if_unused(0.0)


def test_more_than_the_disk_limit_ends_it_for_good(engine: SmallEngine) -> None:
    with opened(engine, limits=Limits(disk=200_000)) as sandbox:
        with pytest.raises(SandboxError) as caught:
            sandbox.exec(["sh", "-c", "head -c 3000000 /dev/zero > big; sleep 60"])
        assert caught.value.kind is Kind.DISK_LIMIT
        with pytest.raises(SandboxError):
            sandbox.exec(["true"])


def test_the_disk_limit_goes_along_when_a_target_is_given(
    engine: SmallEngine, target: Path
) -> None:
    with opened(engine, limits=Limits(disk=300_000), discard=True) as sandbox:
        sandbox.fill(target)
        with pytest.raises(SandboxError) as caught:
            sandbox.exec(["sh", "-c", "head -c 3000000 /dev/zero > big; sleep 60"])
        assert caught.value.kind is Kind.DISK_LIMIT


def test_what_is_not_ours_to_kill_the_engine_kills(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError

    sandbox = opened(engine)
    (container,) = engine.containers.all.values()
    monkeypatch.setattr("signal.pidfd_send_signal", forbidden)
    sandbox.close()
    assert container.process is not None and container.process.poll() is not None


def test_an_endpoint_that_cannot_be_meant_is_an_error_of_launching() -> None:
    with pytest.raises(LaunchError, match="not an engine's endpoint") as caught:
        podbot.sandbox.open("container", engine="gopher://x")
    assert caught.value.remedy


def test_a_target_can_be_given_later(engine: SmallEngine, target: Path) -> None:
    from podbot.changes import capture

    with opened(engine) as sandbox:
        assert sandbox.layer is None
        sandbox.fill(target)
        assert "a copy of the target" in {g.name: g.by for g in sandbox.guarantees}["files"]
        assert sandbox.read("a.txt") == b"one\n"
        sandbox.write("new", "x")
        with pytest.raises(SandboxError, match="a target already"):
            sandbox.fill(target)
        sandbox.stop()
        assert sandbox.read("new") == b"x"
    assert sandbox.layer is not None
    assert [change.path for change in capture.read(sandbox.layer).changes] == ["new"]
    assert not (target / "new").exists()
    sandbox.layer.discard()


# Its end


def test_what_another_thread_waits_for_can_be_ended(engine: SmallEngine) -> None:
    with opened(engine, lazy=True) as sandbox:
        assert not sandbox.cancel(threading.get_ident())
        done: list[bool] = []
        waiting = threading.Thread(target=lambda: done.append(sandbox.exec(["sleep", "100"]).ok))
        waiting.start()
        assert until(lambda: waiting.ident is not None and sandbox.cancel(waiting.ident))
        waiting.join(60)
        assert done == [False]


def test_nothing_can_be_ended_until_the_first_start_is_through(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bool] = []
    attach = ContainerSandbox._attach

    def asked_meanwhile(sandbox: ContainerSandbox, *launched: object) -> None:
        said.append(sandbox.cancel(threading.get_ident()))
        attach(sandbox, *launched)  # type: ignore[arg-type]  # what its launcher gave

    monkeypatch.setattr(ContainerSandbox, "_attach", asked_meanwhile)
    with opened(engine) as sandbox:
        assert sandbox.exec(["true"]).ok
    assert said == [False]


def test_file_verbs_can_be_kept_in_the_workspace(engine: SmallEngine) -> None:
    with opened(engine, confined=True) as sandbox:
        sandbox.write("mine", "x")
        with pytest.raises(SandboxError) as caught:
            sandbox.read("/etc/passwd")
        assert caught.value.kind is Kind.PATH_ESCAPE
        assert sandbox.exec(["cat", "/etc/passwd"]).ok
    with opened(engine) as sandbox:
        assert sandbox.read("/etc/passwd")


def test_a_forgotten_one_is_closed(engine: SmallEngine, own_layers: Path) -> None:
    sandbox = opened(engine)
    assert engine.containers.all
    del sandbox
    gc.collect()
    assert not engine.containers.all
    assert left(own_layers) == []


def test_closing_does_without_an_engine(engine: SmallEngine, own_layers: Path) -> None:
    def away(verb: str) -> None:
        raise ContainerError("the engine is away", kind=Kind.CONNECTION_FAILED, remedy="x")

    sandbox = opened(engine)
    (container,) = engine.containers.all.values()
    engine.containers.trouble = away
    sandbox.close()
    assert container.process is not None
    container.process.wait(60)
    engine.containers.trouble = lambda verb: None
    assert engine.containers.list({}) == ()
    assert left(own_layers) == []


def test_a_busy_engine_is_asked_again(engine: SmallEngine) -> None:
    asked: list[str] = []

    def busy(verb: str) -> None:
        if verb == "remove":
            asked.append(verb)
            if len(asked) < 3:
                raise ContainerError("being removed", kind=Kind.ENGINE_FAILED, remedy="x")

    sandbox = opened(engine)
    engine.containers.trouble = busy
    sandbox.close()
    assert len(asked) == 3


def test_an_engine_that_never_removes_is_no_error_of_closing(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(verb: str) -> None:
        if verb == "remove":
            raise ContainerError("device busy", kind=Kind.ENGINE_FAILED, remedy="x")

    monkeypatch.setattr("podbot.sandbox.container._running.END_SECONDS", 0.1)
    sandbox = opened(engine)
    engine.containers.trouble = stuck
    sandbox.close()
    assert sandbox.closed
    engine.containers.trouble = lambda verb: None
    assert until(lambda: engine.containers.list({}) == ())


def test_a_fork_ends_nothing(engine: SmallEngine) -> None:
    with opened(engine, lazy=True) as sandbox:
        child = os.fork()
        if child == 0:
            sandbox.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert sandbox.exec(["true"]).ok


def test_at_exit_nothing_is_left(own_layers: Path) -> None:
    code = (
        "from small_engine import SmallEngine; import podbot.sandbox\n"
        "engine = SmallEngine()\n"
        "kept = podbot.sandbox.open('container', image='image', engine=engine)\n"
        "print(kept.exec(['echo', 'ran']).stdout, engine.folder)"
    )
    paths = [os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    ran, folder = done.stdout.split()
    assert ran == "ran"
    assert left(own_layers) == []
    subprocess.run(["rm", "-rf", folder], check=True)


def test_a_stay_that_is_over_starts_nothing(engine: SmallEngine) -> None:
    sandbox = opened(engine)
    sandbox.close()
    session: ContainerSession = sandbox._session
    with pytest.raises(LaunchError) as caught:
        session.start()
    assert caught.value.kind is Kind.CLOSED
    assert "of this sandbox" in str(session.reason())


def test_a_failed_first_request_closes_it(
    engine: SmallEngine, own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("podbot.sandbox.ops.init", _broken)
    with pytest.raises(GuestLostError):
        opened(engine)
    assert left(own_layers) == []


def _broken(config: object):  # type: ignore[no-untyped-def]
    raise GuestLostError("it speaks another protocol", kind=Kind.PROTOCOL)
    yield
