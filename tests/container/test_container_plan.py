"""What is asked of an engine, and what a sandbox says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podbot.engine import BindMount, Facts, Profile, labels
from podbot.errors import Kind, LaunchError
from podbot.frozen import replace
from podbot.sandbox import Limits, Policy, layers
from podbot.sandbox.container import _plan, _report
from podbot.sandbox.container._identity import EngineKind, Identity, choose
from podbot.sandbox.container._plan import Draft
from podbot.sandbox.container._report import Made
from podbot.sandbox.container._workspace import Contents
from podbot.sandbox.container.settings import Settings
from podbot.sandbox.limits import MIB

PODMAN = Facts(True, "5.0", "1.41", True, 2, True)
OLD = Facts(True, "4.3.1", "1.41", True, 1, True)
ME: Identity = choose(EngineKind(True, True), (1000, 1000), None)
NOBODY: Identity = choose(EngineKind(True, False), (0, 0), None)
WORKSPACE = BindMount("/somewhere", "/workspace")


def draft(settings: Settings | None = None, **more: object) -> Draft:
    values = {
        "settings": settings or Settings(image="image"), "facts": PODMAN, "identity": ME,
        "workspace": WORKSPACE, "name": "podbot-x", "door": Path("/private/door"), **more,
    }  # fmt: skip
    return Draft(**values)  # type: ignore[arg-type]


def test_the_profile_is_the_one_for_tools() -> None:
    found: Profile = _plan.spec(draft()).profile
    assert found.user == "65534:65534"
    assert found.userns == "keep-id:uid=65534,gid=65534"
    assert found.drop == ("ALL",) and found.add == ()
    assert found.no_new_privileges and found.read_only and not found.privileged
    assert (found.network, found.cpu, found.memory, found.swap) == ("none", 1.0, 1024 * MIB, False)
    assert found.pids == 1024
    assert [(memory.path, memory.size) for memory in found.tmpfs] == [("/tmp", 256 * MIB)]
    assert not found.init, "the guest is process 1, and reaps"
    assert found.seccomp == "podbot"
    chosen = _plan.spec(draft(Settings(image="image", seccomp="engine"))).profile
    assert chosen == replace(found, seccomp="default")


def test_the_container_ends_with_its_guest(own_layers: Path) -> None:
    found = _plan.spec(draft())
    assert found.auto_remove and found.killed_at_once and not found.stdin
    assert found.entrypoint == ()
    assert found.command is not None and found.command[0] == "python3"
    assert found.command[-1] == "/run/podbot/door/line"
    assert found.labels == {"podbot.kind": "sandbox"}
    mounts = {mount.target: mount for mount in found.mounts}
    assert set(mounts) == {"/run/podbot/kit", "/run/podbot/door", "/workspace"}
    for target in ("/run/podbot/kit", "/run/podbot/door"):
        mount = mounts[target]
        assert isinstance(mount, BindMount) and mount.read_only


def test_limits_and_policy_are_passed_on(tmp_path: Path) -> None:
    settings = Settings(
        image="image",
        runtime="crun",
        limits=Limits(cpu=0.5, memory=64 * MIB, pids=None),
        policy=Policy(network="host", writable=(str(tmp_path),)),
    )
    found = _plan.spec(draft(settings, selinux=True))
    assert (found.profile.cpu, found.profile.memory, found.profile.pids) == (0.5, 64 * MIB, None)
    assert found.profile.network == "host"
    assert found.profile.selinux == "disable"
    assert found.runtime == "crun"
    assert BindMount(str(tmp_path), str(tmp_path)) in found.mounts


def test_a_writable_folder_must_be_there(tmp_path: Path) -> None:
    policy = Policy(writable=(str(tmp_path / "missing"),))
    with pytest.raises(LaunchError, match="writable") as caught:
        _plan.spec(draft(Settings(image="image", policy=policy)))
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize("given", ["", ".ssh", ".ssh/keys", "link"])
def test_a_writable_folder_shows_no_secret(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".ssh" / "keys").mkdir(parents=True)
    (home / "link").symlink_to(".ssh")
    monkeypatch.setenv("HOME", str(home))
    policy = Policy(writable=(str(home / given),))
    with pytest.raises(LaunchError, match=r"hides .*\.ssh") as caught:
        _plan.spec(draft(Settings(image="image", policy=replace(policy, hidden=("~/.ssh",)))))
    assert caught.value.kind is Kind.INVALID
    shown = replace(policy, hidden=())
    assert len(_plan.spec(draft(Settings(image="image", policy=shown))).mounts) == 4


def test_the_whole_machine_or_the_layers_cannot_be_writable() -> None:
    for given in ("/", str(layers.root())):
        with pytest.raises(LaunchError, match="hides"):
            _plan.spec(draft(Settings(image="image", policy=Policy(writable=(given,)))))


def test_a_guest_on_a_stream_uses_its_standard_streams() -> None:
    found = _plan.spec(draft(stream=True))
    assert found.stdin
    assert found.command is not None and found.command[-2:] == ("0", "1")
    assert "/run/podbot/door" not in {mount.target for mount in found.mounts}


def test_the_first_request_says_what_the_guest_must_know() -> None:
    found = _plan.config(Settings(image="image"), {"RLIMIT_FSIZE": 5}, 2, "/rg")
    assert found["workdir"] == "/workspace"
    assert found["rlimits"] == {"RLIMIT_FSIZE": 5}
    assert found["numbers_after"] == 2_000_000
    assert found["rg"] == "/rg"


def test_of_the_hosts_environment_only_what_means_something_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TERM", "PATH", "HOME", "LANG", "OWN"):
        monkeypatch.setenv(name, f"/host/{name}")
    policy = Policy(pass_environment=("TERM", "PATH", "HOME", "LANG", "OWN", "UNSET"))
    found = _plan.environment(Settings(image="image", policy=policy))
    assert found == {"TERM": "/host/TERM", "OWN": "/host/OWN", "HOME": "/tmp", "TMPDIR": "/tmp"}


# What it says of itself


def made(settings: Settings | None = None, **more: object) -> Made:
    values = {
        "settings": settings or Settings(image="image"), "facts": PODMAN, "identity": ME,
        "contents": Contents(WORKSPACE, Path("/somewhere")), "runtime": "crun", **more,
    }  # fmt: skip
    return Made(**values)  # type: ignore[arg-type]


def said(found: Made) -> dict[str, tuple[bool, str]]:
    return {each.name: (each.enforced, each.by) for each in _report.guarantees(found)}


def test_every_guarantee_has_a_name_of_its_own_and_a_reason() -> None:
    everything = Settings(
        "/x",
        image="image",
        workspace="bind",
        limits=Limits(cpu=1, memory=MIB, wall_time=1, file_size=1, disk=1),
        policy=Policy(network="host", writable=("/y",)),
    )
    found = _report.guarantees(made(everything, selinux=True))
    names = [each.name for each in found]
    assert len(set(names)) == len(names)
    assert all(each.by for each in found)
    lacking = {each.name for each in found if not each.enforced}
    assert lacking == {"files", "kernel", "network", "selinux", "writable:/y", "limit.disk"}


@pytest.mark.parametrize(
    ("facts", "identity", "runtime", "grouped", "held"),
    [
        (PODMAN, ME, "crun", None, {"cpu": True, "memory": True, "pids": True}),
        (PODMAN, ME, "crun", True, {"cpu": True, "memory": True, "pids": True}),
        (OLD, ME, "runc", None, {"cpu": False, "memory": True, "pids": True}),
        (OLD, ME, "runc", False, {"cpu": False, "memory": True, "pids": True}),
        (PODMAN, NOBODY, "runc", False, {"cpu": False, "memory": True, "pids": False}),
        (PODMAN, NOBODY, "runsc", False, {"cpu": False, "memory": False, "pids": False}),
    ],
)
def test_a_limit_holds_or_is_said_not_to(
    facts: Facts, identity: Identity, runtime: str, grouped: bool | None, held: dict[str, bool]
) -> None:
    found = made(facts=facts, identity=identity, runtime=runtime, grouped=grouped)
    limits = said(found)
    assert {name: limits[f"limit.{name}"][0] for name in held} == held
    notes = " ".join(_report.notes(found))
    for name, holds in held.items():
        assert (f"limit on {name} is not enforced" in notes) is not holds


def test_what_no_group_holds_each_process_carries() -> None:
    limits = Limits(memory=5 * MIB, pids=7, file_size=9)
    settings = Settings(image="image", limits=limits)
    assert _report.rlimits(made(settings)) == {"RLIMIT_FSIZE": 9}
    assert _report.rlimits(made(settings, facts=OLD)) == {
        "RLIMIT_FSIZE": 9, "RLIMIT_DATA": 5 * MIB, "RLIMIT_NPROC": 7,
    }  # fmt: skip


def test_where_the_files_are_is_said() -> None:
    from podbot.sandbox.layers import Layer

    layer = Layer(Path("/l/x"), ("/t",), 0.0, 1, "overlay")
    cases = {
        "an empty folder": Contents(WORKSPACE, Path("/w")),
        "overlay file system": Contents(WORKSPACE, Path("/w"), layer),
        "because I say so": Contents(WORKSPACE, Path("/w"), layer, copied="because I say so"),
        "gone with the container": Contents(None, Path("/w")),
    }
    for words, contents in cases.items():
        assert words in said(made(contents=contents))["files"][1]
    copied = cases["because I say so"]
    assert _report.notes(made(contents=copied)) == ("works on a copy, because because I say so",)


def test_which_system_calls_there_are_is_said() -> None:
    holds, by = said(made())["system_calls"]
    assert holds and "podbot's seccomp filter, as on the overlay" in by
    holds, by = said(made(Settings(image="image", seccomp="engine")))["system_calls"]
    assert not holds and "the engine's own" in by
    holds, by = said(made(runtime="runsc"))["system_calls"]
    assert not holds and "gVisor's kernel" in by


def test_a_kernel_of_its_own_is_said() -> None:
    assert said(made(runtime="runsc"))["kernel"] == (True, "runsc: gVisor's kernel, not the host's")
    assert said(made(runtime="crun"))["kernel"] == (False, "crun: the host's kernel, shared")


def test_a_container_bears_the_session_it_works_for() -> None:
    given = Settings(image="image", session="the-session")
    assert _plan.spec(draft(given)).labels[labels.SESSION] == "the-session"
    assert labels.SESSION not in _plan.spec(draft()).labels
    with pytest.raises(LaunchError, match="the id of a session"):
        Settings(image="image", session="a b")


@pytest.mark.parametrize("image", ["", None])
def test_an_image_without_a_name_is_missing(image: Any) -> None:
    with pytest.raises(LaunchError) as raised:
        Settings(image=image)
    assert raised.value.kind is Kind.MISSING_REQUIRED
