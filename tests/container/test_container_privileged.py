"""Privileged containers: never by themselves, and honest about what is left of the promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from podbot.engine import BindMount, ContainerSpec, Facts
from podbot.engine._resolved import compare
from podbot.engine.profiles import PRIVILEGED, TOOLS
from podbot.errors import ContainerError, Kind, LaunchError, PromptError
from podbot.frozen import replace
from podbot.prompt.builtins.podman import PodmanShellSection
from podbot.runtime.events import InProcessEventBus
from podbot.runtime.session import Session
from podbot.sandbox import Policy
from podbot.sandbox.container import _plan, _report
from podbot.sandbox.container._identity import EngineKind, choose_root
from podbot.sandbox.container._plan import Draft
from podbot.sandbox.container._report import Made
from podbot.sandbox.container._session import ContainerSession
from podbot.sandbox.container._workspace import Contents
from podbot.sandbox.container.settings import Settings

ROOTLESS = Facts(True, "5.0", "1.41", True, 2, True)
ROOTFUL = replace(ROOTLESS, rootless=False)
ASKED = Settings(image="image", privileged=True)
MINE = choose_root(EngineKind(podman=True, rootless=True), (1000, 1000))
ROOTS = choose_root(EngineKind(podman=True, rootless=False), (0, 0))


def made(facts: Facts) -> Made:
    who = MINE if facts.rootless else ROOTS
    folder = Path("/somewhere")
    contents = Contents(BindMount(str(folder), "/workspace"), folder)
    return Made(ASKED, facts, who, contents, "runc")


def test_nothing_is_privileged_unless_asked_for() -> None:
    assert not Settings(image="image").privileged
    assert "without privileges" in PodmanShellSection().template


def test_who_asked_gets_root_and_no_network() -> None:
    draft = Draft(
        ASKED, ROOTLESS, MINE, BindMount("/somewhere", "/workspace"), "podbot-x", Path("/door")
    )
    found = _plan.profile(draft)
    assert found.privileged and found.user == "0:0" and found.userns is None
    assert found.network == "none"
    assert (found.cpu, found.memory, found.pids) == (1.0, 1024 * 1024 * 1024, 1024)
    assert "take over the machine" in found.describe()


def test_root_inside_is_the_caller_outside_where_the_engine_is_theirs() -> None:
    assert (MINE.inside, MINE.outside) == ((0, 0), (1000, 1000))
    assert (ROOTS.inside, ROOTS.outside) == ((0, 0), (0, 0))
    with pytest.raises(LaunchError, match="user 7's own") as caught:
        choose_root(EngineKind(podman=True, rootless=True, user=7), (1000, 1000))
    assert caught.value.kind is Kind.PERMISSION_DENIED


def test_an_ordinary_user_gets_none_from_an_engine_of_roots() -> None:
    with pytest.raises(LaunchError, match="only root") as caught:
        choose_root(EngineKind(podman=False, rootless=False), (1000, 1000))
    assert caught.value.kind is Kind.PERMISSION_DENIED and "rootless" in str(caught.value)


@pytest.mark.parametrize(
    "choices", [{"target": "/somewhere"}, {"policy": Policy(writable=("/somewhere",))}]
)
def test_one_is_given_no_folder(choices: dict[str, object]) -> None:
    with pytest.raises(LaunchError, match="given no folder"):
        Settings(image="image", privileged=True, **choices)  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize("value", ["false", "no", 0, 1, [False]])
def test_nothing_but_true_asks_for_it(value: object) -> None:
    with pytest.raises(LaunchError, match="neither True nor False"):
        Settings.of(None, {"privileged": value})  # type: ignore[typeddict-item]  # on purpose
    with pytest.raises(PromptError, match="neither True nor False"):
        PodmanShellSection(privileged=value)  # type: ignore[arg-type]  # likewise


def test_one_that_runs_is_given_no_folder_either(tmp_path: Path) -> None:
    session = ContainerSession(ASKED)
    with pytest.raises(LaunchError, match="given no folder"):
        session.fill(tmp_path)


def test_the_guarantees_say_what_is_lost() -> None:
    found = {each.name: each.enforced for each in _report.guarantees(made(ROOTLESS))}
    assert not any(found[name] for name in ("privileges", "system_calls", "read_only_root"))
    assert found["files"] and found["network"]

    everything = _report.guarantees(made(ROOTFUL))
    kept = {each.name for each in everything if each.enforced}
    assert kept == {"engine", "channel", "environment", "limit.output"}
    assert any("privileged" in note for note in _report.notes(made(ROOTFUL)))


def test_a_section_says_so_and_its_clones_too() -> None:
    section = PodmanShellSection(privileged=True)
    assert "as root, with every privilege" in section.template
    session = Session(bus=InProcessEventBus())
    other = section.clone(session=session, bus=InProcessEventBus())
    assert "as root, with every privilege" in other.template


# What an engine made


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
    assert compare(spec, ROOTLESS, privileged()).differences == ()
    by_docker = privileged(PidMode="", IpcMode="private", UTSMode="", Runtime="runc")
    assert compare(spec, replace(ROOTLESS, is_podman=False), by_docker).differences == ()


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
    resolved = compare(ContainerSpec("image", profile=PRIVILEGED), ROOTLESS, privileged(**host))

    assert [str(each) for each in resolved.differences] == [said]
    with pytest.raises(ContainerError) as caught:
        resolved.check("c1")
    assert caught.value.kind is Kind.PROFILE_MISMATCH


def test_a_privileged_container_with_ids_of_its_own_has_them() -> None:
    spec = ContainerSpec("image", profile=replace(PRIVILEGED, userns="auto"))
    (difference,) = compare(spec, ROOTLESS, privileged()).differences
    assert difference.what == "user namespace"
    assert compare(spec, ROOTLESS, privileged(UsernsMode="private")).differences == ()
