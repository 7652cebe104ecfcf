"""What is taken though it looks odd, and what is refused before it can do harm."""

from __future__ import annotations

import os
import threading
from collections import UserList, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import podbot.sandbox
from podbot import cli
from podbot.engine import ContainerSpec, Facts
from podbot.engine.profiles import PRIVILEGED, TOOLS
from podbot.engine.resolved import compare
from podbot.errors import ConfigError, ContainerError, Kind, LaunchError, SandboxError
from podbot.frozen import replace
from podbot.prompt import MarkdownSection, Prompt, ScriptedModel
from podbot.prompt.scripted import ScriptedCall
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.sandbox import DEFAULT_HIDDEN, Limits, Policy, Pool, Sandbox, pool
from podbot.sandbox.container import place
from podbot.sandbox.container.place import Place
from podbot.sandbox.memory import MemoryLauncher
from podbot.sandbox.options import launcher_of
from podbot.sandbox.overlay import layers
from podbot.sandbox.overlay.launcher import OverlayLauncher
from podbot.sandbox.sandbox import opened as sandbox_of
from podbot.tools import OverlaySandboxConfig, OverlaySandboxSection
from podbot.tools.mounts import normalize_host_roots

# What no type checker would let through is the subject here.
Wrong = Any


@pytest.fixture
def own_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path.resolve() / "layers"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(folder))
    return folder


def wrong(value: object) -> Wrong:
    return value


def once(*items: object) -> Iterator[Wrong]:
    """Items that can be gone through only once."""
    yield from items


# Pools


@pytest.mark.parametrize(
    ("backend", "options", "words"),
    [
        ("memory", {"polcy": 1}, "no option 'polcy' (did you mean policy?)"),
        ("memory", {"policy": 1}, "the option policy of the backend memory is 1"),
        ("overlay", {"target": 5}, "not the path of a folder"),
        ("nonesuch", {}, "there is no sandbox backend 'nonesuch'"),
    ],
)
def test_a_pool_refuses_wrong_options_at_once(
    backend: str, options: dict[str, Wrong], words: str
) -> None:
    with pytest.raises(SandboxError) as raised:
        Pool(backend, size=1, **options)
    assert words in raised.value.message and raised.value.remedy


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3), LaunchError("no room")])
def test_whatever_a_fill_raises_reaches_whoever_claims(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(_: MemoryLauncher) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(MemoryLauncher, "launch", launch)
        stock = Pool("memory", size=1)
        with pytest.raises(type(error)) as raised:
            stock.claim()
        assert raised.value is error
        assert stock.wait_full(60)
    with stock:
        with pytest.raises(type(error)):  # from before it was mended
            stock.claim()
        with stock.claim() as sandbox:
            assert sandbox.backend == "memory"


def test_a_sandbox_that_fails_its_first_command_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[podbot.sandbox.Sandbox] = []

    def opened(launcher: MemoryLauncher) -> podbot.sandbox.Sandbox:
        made.append(sandbox_of(launcher))
        return made[-1]

    def fail(*_: object) -> None:
        raise ValueError("odd")

    monkeypatch.setattr(pool, "opened", opened)
    monkeypatch.setattr(podbot.sandbox.Sandbox, "exec", fail)
    with Pool("memory", size=1) as stock, pytest.raises(ValueError, match="odd"):
        stock.claim()
    assert made and "closed" in repr(made[0])


# Iterators, which can be gone through only once


def test_roots_may_come_from_an_iterator(tmp_path: Path) -> None:
    assert normalize_host_roots(wrong(once(tmp_path, "/"))) == (tmp_path.resolve(), Path("/"))


def test_the_steps_of_a_script_may_come_from_an_iterator() -> None:
    call = ScriptedCall("none_such")
    model = ScriptedModel(wrong(once(call, call)))
    assert model.steps == (call, call)
    assert model == ScriptedModel([call, call])

    seen: list[int] = []
    model = ScriptedModel(wrong(once(lambda _: seen.append(1))))
    section = MarkdownSection(key="notes", title="Notes", template="x")
    prompt = Prompt(ns="a", key="b", sections=[section])
    for _ in range(2):
        assert model.run(prompt, Session(bus=InProcessEventBus())).text == "Done."
    assert seen == [1, 1]


def test_the_targets_of_a_section_may_come_from_an_iterator(tmp_path: Path) -> None:
    session = Session(bus=InProcessEventBus())
    config = OverlaySandboxConfig(target=wrong(once(tmp_path, str(tmp_path))))
    section = OverlaySandboxSection(session=session, config=config)
    assert str(tmp_path) in section.template
    other = section.clone(session=Session(bus=InProcessEventBus()), bus=InProcessEventBus())
    assert other.config.target == (tmp_path, str(tmp_path))

    with pytest.raises(LaunchError, match="there is no target"):
        OverlaySandboxSection(session=session, config=OverlaySandboxConfig(target=wrong(once())))
    with pytest.raises(ConfigError, match="is an int"):
        OverlaySandboxSection(
            session=session, config=OverlaySandboxConfig(target=wrong(once(tmp_path, 5)))
        )


# Policies


@pytest.mark.parametrize(
    "given",
    [
        ["/a", "~/b"],
        {"/a", "~/b"},
        {"/a": 1, "~/b": 2}.keys(),
        once("/a", "~/b"),
        (Path("/a"), "~/b"),
    ],
    ids=["list", "set", "keys", "generator", "path"],
)
def test_a_policy_takes_any_collection_and_keeps_it(given: Wrong) -> None:
    policy = Policy(hidden=given)

    assert sorted(policy.hidden) == ["/a", "~/b"] and isinstance(policy.hidden, tuple)
    assert policy.hidden_paths(Path("/h")) == ("/a", "/h/b")
    assert policy.hidden_paths(Path("/second")) == ("/a", "/second/b")
    assert replace(policy, network="host").hidden_paths(Path("/h")) == ("/a", "/h/b")
    hash(policy.hidden)


def test_what_else_a_policy_lists_may_come_from_an_iterator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PODBOT_TEST_WORD", "x")
    policy = Policy(
        readable=wrong(once("~/.aws")),
        writable=wrong(once(Path("/srv"))),
        pass_environment=wrong(once("PODBOT_TEST_WORD")),
    )
    for home in ("/one", "/two"):
        assert f"{home}/.aws" not in policy.hidden_paths(Path(home))
        assert policy.environment_inside(Path(home))["PODBOT_TEST_WORD"] == "x"
    assert policy.writable == ("/srv",)
    assert Policy().hidden == DEFAULT_HIDDEN


@pytest.mark.parametrize("name", ["hidden", "readable", "writable", "pass_environment"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("/a", "a tuple of strings, not one string"),
        (b"/a", "a tuple of strings, not b'/a'"),
        (5, "a tuple of strings, not 5"),
        (Path("/a"), "a tuple of strings, not PosixPath('/a')"),
        ((1,), "holds 1, which is not a string"),
        ((b"/a",), "holds b'/a', which is not a string"),
        (("/a", None), "holds None, which is not a string"),
    ],
)
def test_a_policy_refuses_what_are_no_strings(name: str, given: Wrong, words: str) -> None:
    with pytest.raises(SandboxError) as raised:
        Policy(**{name: given})
    assert f"Policy.{name} " in raised.value.message and words in raised.value.message
    assert raised.value.kind is Kind.INVALID and raised.value.remedy


def test_a_variable_has_no_path_for_a_name() -> None:
    with pytest.raises(SandboxError, match="is not a string"):
        Policy(pass_environment=wrong((Path("HOME"),)))


def test_a_path_of_bytes_is_none(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with os.scandir(os.fsencode(tmp_path)) as entries, pytest.raises(SandboxError):
        Policy(hidden=wrong(tuple(entries)))


# Options


@pytest.mark.parametrize("several", [list, tuple, deque, UserList])
def test_several_targets_may_be_any_sequence(several: Wrong, tmp_path: Path) -> None:
    launcher = launcher_of("overlay", {"target": several([str(tmp_path), tmp_path])})
    assert isinstance(launcher, OverlayLauncher)
    assert launcher.targets == (str(tmp_path), tmp_path)


@pytest.mark.parametrize("given", [b"/etc", b"", deque([5]), range(2), {"/etc"}])
def test_what_is_no_sequence_of_paths_is_no_target(given: Wrong) -> None:
    with pytest.raises(SandboxError, match="not the path of a folder"):
        launcher_of("overlay", {"target": given})


# Privileged containers

PODMAN = Facts(True, "5.0", "1.41", True, 2, True)


def privileged(**host: object) -> dict[str, object]:
    """What Podman says of a privileged container."""
    return {
        "State": {"Status": "created"},
        "OCIRuntime": "runc",
        "EffectiveCaps": ["CAP_SYS_ADMIN"],
        "BoundingCaps": ["CAP_SYS_ADMIN"],
        "Config": {"User": "0:0"},
        "Mounts": [],
        "HostConfig": {
            "Privileged": True,
            "Init": True,
            "SecurityOpt": ["label=disable", "seccomp=unconfined"],
            "CapAdd": ["SYS_ADMIN"],
            "Devices": [{"PathOnHost": "/dev/kvm"}],
            "NetworkMode": "none",
            "PidMode": "private",
            "IpcMode": "shareable",
            "UTSMode": "private",
            "UsernsMode": "",
            "Memory": TOOLS.memory,
            "MemorySwap": TOOLS.memory,
            "PidsLimit": TOOLS.pids,
            "CpuPeriod": 100_000,
            "CpuQuota": 100_000,
            **host,
        },
    }


def test_a_privileged_container_may_have_what_that_word_means() -> None:
    spec = ContainerSpec("image", profile=PRIVILEGED)
    assert compare(spec, PODMAN, privileged()).differences == ()
    by_docker = privileged(PidMode="", IpcMode="private", UTSMode="", Runtime="runc")
    assert compare(spec, replace(PODMAN, is_podman=False), by_docker).differences == ()


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ({"NetworkMode": "bridge"}, "network: wanted none, got bridge"),
        ({"NetworkMode": "host"}, "network: wanted none, got host"),
        ({"PidMode": "host"}, "PidMode: wanted its own, got the host's"),
        ({"IpcMode": "host"}, "IpcMode: wanted its own, got the host's"),
        ({"UTSMode": "host"}, "UTSMode: wanted its own, got the host's"),
    ],
)
def test_a_privileged_container_has_only_the_namespaces_that_were_asked_for(
    host: dict[str, object], said: str
) -> None:
    resolved = compare(ContainerSpec("image", profile=PRIVILEGED), PODMAN, privileged(**host))

    assert [str(each) for each in resolved.differences] == [said]
    with pytest.raises(ContainerError) as caught:
        resolved.check("c1")
    assert caught.value.kind is Kind.PROFILE_MISMATCH


def test_a_privileged_container_with_ids_of_its_own_has_them() -> None:
    spec = ContainerSpec("image", profile=replace(PRIVILEGED, userns="auto"))
    (difference,) = compare(spec, PODMAN, privileged()).differences
    assert difference.what == "user namespace"
    assert compare(spec, PODMAN, privileged(UsernsMode="private")).differences == ()


# Folders of sandboxes


def test_a_sweep_tells_only_what_it_removed(
    own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, loose = (own_layers / "containers" / name for name in ("stuck", "loose"))
    for dead in (stuck, loose):
        dead.mkdir(parents=True)
    really = layers.remove

    def remove(path: Path) -> None:
        if path == stuck:
            raise PermissionError(13, "Permission denied")
        really(path)

    monkeypatch.setattr(layers, "remove", remove)
    assert place.sweep(dry_run=True) == ["loose", "stuck"]
    assert place.sweep() == ["loose"]
    assert stuck.exists() and not loose.exists()
    monkeypatch.undo()
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(own_layers))
    assert place.sweep() == ["stuck"]


def test_a_place_that_cannot_be_removed_is_let_go(
    own_layers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    made = Place()
    assert place.sweep(dry_run=True) == []
    with monkeypatch.context() as patch:
        patch.setattr(layers, "remove", remove)
        with pytest.raises(PermissionError):
            made.remove()
    assert place.sweep() == [made.path.name]
    made.remove()
    assert not made.path.exists()


# Words of the command line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["changes", "apply", "last", "--on-conflict", "skp"],
            "--on-conflict: there is no `skp`; did you mean `skip`? there are: stop, skip,",
        ),
        (["changes", "lis't"], "there is no `lis't`; did you mean `list`? there are: list, show,"),
        (["it's"], "there is no `it's`; there are: run, shell,"),
        (["mcp", "--backend", "over'lay"], "--backend: there is no `over'lay`; did you mean"),
    ],
)
def test_a_mistyped_word_is_told_wherever_it_stands(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_who_waits_for_a_pool_that_is_closed_is_told() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: Pool) -> Sandbox:
        begun.set()
        go_on.wait(60)
        raise SandboxError("nothing came of it", kind=Kind.LAUNCH_FAILED)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "_warm", slow)
        pool = Pool("memory", size=1)
        begun.wait(60)
        with ThreadPoolExecutor(3) as threads:
            waiting = [threads.submit(pool.claim) for _ in range(2)]
            closing = threads.submit(pool.close)
            go_on.set()
            closing.result(60)
            kinds = {each.exception(60).kind for each in waiting}  # type: ignore[union-attr]
    assert Kind.CLOSED in kinds and kinds <= {Kind.CLOSED, Kind.LAUNCH_FAILED}


@pytest.mark.parametrize("backend", ["local", "memory"])
def test_the_longest_time_is_eleven_days(backend: str) -> None:
    with podbot.sandbox.open(backend) as sandbox:
        sandbox.write("a", "needle\n")
        for pattern in ("needle", "(?=needle)n"):
            assert sandbox.grep(pattern, timeout=1_000_000).matches
        with pytest.raises(SandboxError, match="eleven days"):
            sandbox.grep("needle", timeout=1e300)


def test_commands_and_limits_may_last_as_long() -> None:
    with podbot.sandbox.open("local", limits=Limits(wall_time=1e300)) as sandbox:
        assert sandbox.exec(["true"]).ok
        assert sandbox.exec(["true"], timeout=1_000_000).ok
        assert sandbox.python("1 + 1", timeout=1_000_000).value == "2"
        with pytest.raises(SandboxError, match="eleven days"):
            sandbox.exec(["true"], timeout=1_000_001)
