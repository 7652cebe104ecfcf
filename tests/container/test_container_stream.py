"""Guests that are reached through their engine, because no socket gets through to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_engine import SmallEngine, until

import podbot.sandbox
from podbot.errors import ContainerError, GuestLostError, Kind, LaunchError, SandboxError
from podbot.sandbox import ContainerSandbox
from podbot.sandbox.container import _engines, place


def opened(engine: SmallEngine, **options: object) -> ContainerSandbox:
    made = podbot.sandbox.open("container", image="image", engine=engine, **options)
    assert isinstance(made, ContainerSandbox)
    return made


def channel(sandbox: ContainerSandbox) -> str:
    return next(found.by for found in sandbox.guarantees if found.name == "channel")


def works(sandbox: ContainerSandbox) -> None:
    """Every kind of traffic gets through: large, both ways, in parts."""
    data = bytes(range(256)) * 20_000
    sandbox.write("big", data)
    assert sandbox.read("big") == data
    assert sandbox.exec(["cat"], stdin=data).stdout_bytes == data[: 1 << 20]
    process = sandbox.spawn(["sh", "-c", "head -c 3000000 big; echo done >&2"])
    assert process.stdout.read_all() == data[:3_000_000]
    assert process.stderr.read_all() == b"done\n"
    assert process.wait() == 0


@pytest.mark.parametrize("runtime", ["runsc", "kata"])
def test_a_runtime_with_a_kernel_of_its_own_is_known(engine: SmallEngine, runtime: str) -> None:
    engine.runtime = runtime
    with opened(engine, runtime=runtime) as sandbox:
        assert runtime in channel(sandbox)
        works(sandbox)
    assert engine.containers.made == 1


def test_a_default_runtime_is_noticed_before_anything_runs(engine: SmallEngine) -> None:
    engine.runtime = "runsc"
    with opened(engine) as sandbox:
        assert "runsc" in channel(sandbox)
        assert engine.containers.made == 2
    with opened(engine) as sandbox:
        assert engine.containers.made == 3, "what turned out is remembered"
        assert sandbox.exec(["true"]).ok


def test_when_no_socket_gets_through_the_stream_is_taken(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "LOOK_SECONDS", 0.05)
    engine.shuts_sockets = True
    with opened(engine) as sandbox:
        assert "did not connect to the socket" in channel(sandbox)
        works(sandbox)
    assert _engines.why_stream(engine, None) is not None


def test_an_engine_elsewhere_mounts_nothing_and_is_sent_the_guest(
    own_layers: Path, target: Path
) -> None:
    engine = SmallEngine(local=False)
    with opened(engine, target=target, workspace="copy") as sandbox:
        (container,) = engine.containers.all.values()
        assert container.spec.mounts == ()
        assert {memory.path for memory in container.spec.profile.tmpfs} == {"/tmp", "/workspace"}
        assert "not on this machine" in channel(sandbox)
        assert sandbox.read("src/b.py") == b"b = 1\n"
        assert sandbox.layer is None
        works(sandbox)
        with pytest.raises(SandboxError, match="a target already"):
            sandbox.fill(target)
        engine.containers.kill_from_outside()
        with pytest.raises(GuestLostError) as caught:
            sandbox.exec(["true"])
        assert "is gone" in (caught.value.remedy or "")
        assert sandbox.read("a.txt") == b"one\n", "it is sent again"
    with opened(engine) as sandbox:
        with pytest.raises(SandboxError) as refused:
            sandbox.fill(target)
        assert refused.value.kind is Kind.UNSUPPORTED
    engine.close()


def test_a_lost_stream_is_a_lost_guest(engine: SmallEngine) -> None:
    engine.runtime = "runsc"
    with opened(engine) as sandbox:
        engine.containers.kill_from_outside()
        with pytest.raises(GuestLostError):
            sandbox.exec(["true"])
        assert sandbox.exec(["true"]).ok


def test_what_the_guest_says_when_it_cannot_run_is_shown(
    engine: SmallEngine, own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.runtime = "runsc"
    old = "import sys; sys.exit('podbot: Python 3.6.1\\x1b[31m')"
    monkeypatch.setattr("podbot.sandbox.container._kit.START", old)
    monkeypatch.setattr("podbot.sandbox.container._kit.command.__defaults__", (old,))
    with pytest.raises(LaunchError, match=r"Python 3\.6\.1") as caught:
        opened(engine)
    assert caught.value.kind is Kind.START_FAILED
    assert "\x1b" not in caught.value.message
    assert "Python 3.8" in (caught.value.remedy or "")


def test_a_guest_that_talks_nonsense_is_no_guest(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.runtime = "runsc"
    nonsense = "import os; os.write(1, b'\\xff' * 100); os.read(0, 100)"
    monkeypatch.setattr("podbot.sandbox.container._kit.command.__defaults__", (nonsense,))
    with pytest.raises(LaunchError, match="does not run"):
        opened(engine)


def test_a_silent_death_is_told_too(engine: SmallEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.runtime = "runsc"
    monkeypatch.setattr("podbot.sandbox.container._kit.command.__defaults__", ("pass",))
    with pytest.raises(LaunchError, match=r"hung up|Broken pipe|reset"):
        opened(engine)


def test_an_engine_that_does_not_say_which_process_it_is_ends_it_itself(
    engine: SmallEngine,
) -> None:
    def mute(verb: str) -> None:
        if verb == "inspect":
            raise ContainerError("no", kind=Kind.ENGINE_FAILED, remedy="x")

    engine.runtime = "runsc"
    engine.containers.trouble = mute
    sandbox = opened(engine)
    assert sandbox.exec(["true"]).ok
    sandbox.close()
    assert until(lambda: not engine.containers.all)


def test_trouble_while_waiting_for_a_guest_is_the_engines(
    engine: SmallEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(verb: str) -> None:
        if verb == "inspect":
            raise ContainerError("it is away", kind=Kind.CONNECTION_FAILED, remedy="x")

    monkeypatch.setattr(place, "LOOK_SECONDS", 0.05)
    engine.shuts_sockets = True
    engine.containers.trouble = away
    with pytest.raises(LaunchError, match="it is away"):
        opened(engine)
    engine.containers.trouble = lambda verb: None
    assert until(lambda: engine.containers.list({}) == ())
