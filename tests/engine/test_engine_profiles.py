"""Profiles: what a container may do, as values, as requests, compared with what came of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from podbot.engine import (
    TOOLS,
    BindMount,
    ContainerSpec,
    Facts,
    OverlayMount,
    Profile,
    SandboxSettings,
    VolumeMount,
    _seccomp,
    agent_profile,
)
from podbot.engine._requests import docker_request, podman_request
from podbot.engine._resolved import compare
from podbot.engine.profiles import GIB, MIB
from podbot.errors import ConfigError, ContainerError, Kind
from podbot.frozen import replace

PODMAN = Facts(True, "4.3.1", "1.41", False, 2, True)
DOCKER = Facts(False, "27.5.1", "1.44", False, 2, True)
ROOTLESS_V1 = Facts(True, "4.3.1", "1.41", True, 1, True)

IMAGE = "localhost/x:latest"


# As values


def test_the_tools_profile_is_what_the_contract_says() -> None:
    assert TOOLS.user == "65534:65534"
    assert TOOLS.drop == ("ALL",) and TOOLS.add == () and TOOLS.no_new_privileges
    assert TOOLS.read_only and not TOOLS.privileged and not TOOLS.devices
    assert TOOLS.network == "none"
    assert (TOOLS.cpu, TOOLS.cpu_quota, TOOLS.memory, TOOLS.swap) == (1.0, 100_000, GIB, False)
    assert [(mount.path, mount.size) for mount in TOOLS.tmpfs] == [("/tmp", 256 * MIB)]
    assert TOOLS.pids and TOOLS.init
    assert (TOOLS.seccomp, TOOLS.selinux, TOOLS.unmask) == ("podbot", "default", False)


def test_a_privileged_agent_leaves_everything_else_to_the_engine() -> None:
    odd = SandboxSettings(
        privileged=True, mount_dev_fuse=True, selinux_label_mode="keep_default", nested="sys_admin"
    )

    profile = agent_profile(odd)

    assert profile == Profile(name="agent, privileged", privileged=True)


def test_a_minimal_agent_has_no_more_than_the_engine_gives_by_default() -> None:
    assert agent_profile() == Profile(name="agent", selinux="disable", seccomp="podbot")
    kept = agent_profile(SandboxSettings(selinux_label_mode="keep_default"))
    assert kept == Profile(name="agent", seccomp="podbot")


def test_dev_fuse_brings_sys_admin_as_the_source_says() -> None:
    profile = agent_profile(SandboxSettings(mount_dev_fuse=True))

    assert profile.add == ("SYS_ADMIN",)
    assert [(device.path, device.permissions) for device in profile.devices] == [
        ("/dev/fuse", "rwm")
    ]


def test_nesting_without_root_adds_no_capability() -> None:
    profile = agent_profile(SandboxSettings(nested="rootless"))

    assert profile.add == ()
    assert [device.path for device in profile.devices] == ["/dev/fuse", "/dev/net/tun"]
    assert profile.seccomp == "nested" and profile.unmask
    both = agent_profile(SandboxSettings(nested="rootless", mount_dev_fuse=True))
    assert len(both.devices) == 2 and both.add == ("SYS_ADMIN",)


def test_nesting_with_sys_admin_is_said_loudly() -> None:
    profile = agent_profile(SandboxSettings(nested="sys_admin"))

    assert profile.add == ("SYS_ADMIN", "NET_ADMIN")
    assert "SYS_ADMIN" in profile.name and "SYS_ADMIN" in profile.describe()


@pytest.mark.parametrize("name", ["nested", "selinux_label_mode"])
def test_a_setting_with_an_unknown_word_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"sandbox.{name} = 'sometimes'") as caught:
        SandboxSettings(**{name: "sometimes"})  # type: ignore[arg-type]
    assert caught.value.field == f"sandbox.{name}"


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["cpu", "memory", "pids", "file_size", "shm"])
def test_a_limit_is_a_positive_number(name: str, limit: float) -> None:
    with pytest.raises(ConfigError, match=name):
        Profile("x", **{name: limit})  # type: ignore[arg-type]


def test_a_profile_can_be_printed_for_people() -> None:
    said = TOOLS.describe()

    for words in ("65534:65534", "none", "read-only", "/tmp (rw,nosuid,nodev", "no swap"):
        assert words in said
    assert "take over the machine" in agent_profile(SandboxSettings(privileged=True)).describe()
    loose = Profile("x", drop=("NET_RAW",), memory=1, devices=agent_profile().devices)
    assert "without NET_RAW" in loose.describe() and "swap too" in loose.describe()
    nested = agent_profile(SandboxSettings(nested="rootless")).describe()
    assert "calls for namespaces and mounts" in nested and "/dev/fuse (rwm)" in nested
    assert "seccomp off" in Profile("x", seccomp="unconfined").describe()
    assert "writable" in nested and "the image's" in nested


def test_a_profile_can_be_printed_as_data() -> None:
    data = json.loads(json.dumps(TOOLS.as_dict()))

    assert data["drop"] == ["ALL"] and data["memory"] == GIB
    assert data["tmpfs"] == {"/tmp": "rw,nosuid,nodev,exec,size=268435456,mode=1777"}
    assert set(data) == set(Profile.__match_args__)


# As requests


MOUNTS = (
    BindMount("/odd,dir:x", "/ro", read_only=True),
    BindMount("/b", "/rw"),
    VolumeMount("inner", "/var/lib/containers"),
    VolumeMount("fixed", "/fixed", read_only=True),
)
OVERLAY = OverlayMount("/src", "/workspace", "/up", "/work")


def test_podman_is_asked_for_the_tools_profile_in_its_own_words() -> None:
    spec = ContainerSpec(
        IMAGE, ("sleep", "1"), mounts=(*MOUNTS, OVERLAY), env={"A": "b"}, name="n", runtime="crun"
    )

    body = podman_request(spec, {"l": "v"})

    assert body["image"] == IMAGE and body["command"] == ["sleep", "1"]
    assert body["user"] == "65534:65534" and body["env"] == {"A": "b"}
    assert body["labels"] == {"l": "v"} and body["name"] == "n" and body["oci_runtime"] == "crun"
    assert body["cap_drop"] == ["ALL"] and body["cap_add"] == []
    assert body["no_new_privileges"] is True and body["read_only_filesystem"] is True
    assert body["netns"] == {"nsmode": "none"} and body["init"] is True
    assert body["resource_limits"] == {
        "cpu": {"period": 100_000, "quota": 100_000},
        "memory": {"limit": GIB, "swap": GIB},
        "pids": {"limit": 1024},
    }
    assert body["mounts"] == [
        {
            "type": "bind",
            "source": "/odd,dir:x",
            "destination": "/ro",
            "options": ["ro", "rbind", "rprivate"],
        },
        {
            "type": "bind",
            "source": "/b",
            "destination": "/rw",
            "options": ["rw", "rbind", "rprivate"],
        },
        {
            "type": "tmpfs",
            "source": "tmpfs",
            "destination": "/tmp",
            "options": ["rw", "nosuid", "nodev", "exec", "size=268435456", "mode=1777"],
        },
    ]
    assert body["overlay_volumes"] == [
        {
            "source": "/src",
            "destination": "/workspace",
            "options": ["upperdir=/up", "workdir=/work"],
        }
    ]
    assert body["volumes"] == [
        {"name": "inner", "dest": "/var/lib/containers", "options": []},
        {"name": "fixed", "dest": "/fixed", "options": ["ro"]},
    ]
    for absent in ("privileged", "selinux_opts", "seccomp_profile_path", "unmask", "userns"):
        assert absent not in body


def test_docker_is_asked_for_the_tools_profile_in_its_own_words() -> None:
    spec = ContainerSpec(IMAGE, ("sleep", "1"), mounts=MOUNTS, env={"A": "b"}, logs=False)

    body = docker_request(spec, {"l": "v"})
    host = body["HostConfig"]

    assert body["Image"] == IMAGE and body["Cmd"] == ["sleep", "1"] and body["Env"] == ["A=b"]
    assert body["User"] == "65534:65534" and body["Labels"] == {"l": "v"}
    assert body["OpenStdin"] is body["StdinOnce"] is False
    assert isinstance(host, dict)
    assert host["CapDrop"] == ["ALL"] and host["SecurityOpt"] == ["no-new-privileges"]
    assert host["ReadonlyRootfs"] is True and host["NetworkMode"] == "none" and host["Init"] is True
    assert host["Memory"] == host["MemorySwap"] == GIB and host["PidsLimit"] == 1024
    assert (host["CpuPeriod"], host["CpuQuota"]) == (100_000, 100_000)
    assert host["Tmpfs"] == {"/tmp": "rw,nosuid,nodev,exec,size=268435456,mode=1777"}
    assert host["LogConfig"] == {"Type": "none"}
    assert [mount["Type"] for mount in host["Mounts"]] == ["bind", "bind", "volume", "volume"]
    assert host["Mounts"][0]["Source"] == "/odd,dir:x" and host["Mounts"][0]["ReadOnly"] is True


def test_docker_cannot_mount_copy_on_write_and_says_so() -> None:
    with pytest.raises(ContainerError, match="copy-on-write") as caught:
        docker_request(ContainerSpec(IMAGE, mounts=(OVERLAY,)), {})

    assert caught.value.kind is Kind.UNSUPPORTED
    assert "Podman" in str(caught.value.remedy)


def test_a_privileged_request_asks_for_nothing_else() -> None:
    spec = ContainerSpec(IMAGE, profile=agent_profile(SandboxSettings(privileged=True)))

    podman, docker = podman_request(spec, {}), docker_request(spec, {})

    assert podman["privileged"] is True
    for absent in ("cap_add", "cap_drop", "devices", "selinux_opts", "read_only_filesystem"):
        assert absent not in podman
    assert docker["HostConfig"] == {"Mounts": [], "Tmpfs": {}, "Privileged": True}


def test_a_nested_request_loosens_what_nesting_needs() -> None:
    spec = ContainerSpec(IMAGE, profile=agent_profile(SandboxSettings(nested="rootless")))

    podman = podman_request(spec, {}, "/a/filter.json")
    docker = docker_request(spec, {}, "{a filter}")["HostConfig"]

    assert podman["devices"] == [
        {"path": "/dev/fuse:/dev/fuse:rwm"},
        {"path": "/dev/net/tun:/dev/net/tun:rwm"},
    ]
    assert podman["selinux_opts"] == ["disable"] and podman["unmask"] == ["ALL"]
    assert podman["seccomp_profile_path"] == "/a/filter.json"
    assert isinstance(docker, dict)
    assert docker["SecurityOpt"] == ["label=disable", "seccomp={a filter}"]
    assert docker["MaskedPaths"] == docker["ReadonlyPaths"] == []
    assert docker["Devices"][0] == {
        "PathOnHost": "/dev/fuse",
        "PathInContainer": "/dev/fuse",
        "CgroupPermissions": "rwm",
    }


def test_the_callers_user_is_mapped_onto_nobody_where_that_is_asked_for() -> None:
    mapped = replace(TOOLS, userns="keep-id:uid=65534,gid=65534", shm=MIB, file_size=GIB)
    spec = ContainerSpec(IMAGE, profile=mapped, entrypoint=(), hostname="h", workdir="/w", tty=True)

    podman, docker = podman_request(spec, {}), docker_request(spec, {})

    assert podman["userns"] == {"nsmode": "keep-id", "value": "uid=65534,gid=65534"}
    assert podman["shm_size"] == MIB and podman["entrypoint"] == [] and podman["hostname"] == "h"
    assert podman["r_limits"] == [{"type": "fsize", "soft": GIB, "hard": GIB}]
    assert podman["terminal"] is True and podman["work_dir"] == "/w"
    assert isinstance(docker["HostConfig"], dict)
    assert docker["HostConfig"]["Ulimits"] == [{"Name": "fsize", "Soft": GIB, "Hard": GIB}]
    assert docker["Hostname"] == "h"


# Specs


def test_a_blank_image_is_refused_before_any_engine_is_asked() -> None:
    for blank in ("", "  \n", None):
        with pytest.raises(ConfigError) as caught:
            ContainerSpec(blank)  # type: ignore[arg-type]  # callers need not be typed
        assert caught.value.kind is Kind.MISSING_REQUIRED
        assert caught.value.field == "image"
        assert "podbot image build" in str(caught.value.remedy)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ContainerSpec("x\0y"),
        lambda: ContainerSpec(3),  # type: ignore[arg-type]
        lambda: ContainerSpec(IMAGE, ("a\0b",)),
        lambda: ContainerSpec(IMAGE, entrypoint=("\0",)),
        lambda: ContainerSpec(IMAGE, env={"A=B": "c"}),
        lambda: ContainerSpec(IMAGE, env={"": "c"}),
        lambda: ContainerSpec(IMAGE, env={"A": "c\0"}),
        lambda: ContainerSpec(IMAGE, name="-x"),
        lambda: ContainerSpec(IMAGE, name="a/b"),
        lambda: ContainerSpec(IMAGE, name="x" * 201),
        lambda: BindMount("relative", "/x"),
        lambda: BindMount("/x", "relative"),
        lambda: BindMount("/x\n", "/x"),
        lambda: VolumeMount("../x", "/x"),
        lambda: VolumeMount("x", ""),
        lambda: OverlayMount("/a,b", "/x", "/u", "/w"),
        lambda: OverlayMount("/a", "/x", "/u:u", "/w"),
        lambda: OverlayMount("/a", "/x", "/u", "/w\\"),
        lambda: OverlayMount("/a", "/x", "u", "/w"),
    ],
)
def test_what_no_engine_could_mean_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.remedy


def test_a_refused_variable_does_not_show_its_value() -> None:
    with pytest.raises(ConfigError) as caught:
        ContainerSpec(IMAGE, env={"TOKEN": "secret\0"})
    assert "secret" not in str(caught.value)


# Compared


def made_by_podman() -> dict[str, Any]:
    """What Podman says of a container of the tools profile."""
    return {
        "State": {"Status": "created"},
        "OCIRuntime": "runc",
        "EffectiveCaps": None,
        "BoundingCaps": [],
        "Config": {"User": "65534:65534"},
        "Mounts": [],
        "HostConfig": {
            "Privileged": False,
            "ReadonlyRootfs": True,
            "Init": True,
            "SecurityOpt": ["no-new-privileges"],
            "CapAdd": [],
            "CapDrop": ["CAP_CHOWN"],
            "NetworkMode": "none",
            "PidMode": "private",
            "IpcMode": "private",
            "UTSMode": "private",
            "UsernsMode": "",
            "Devices": [],
            "Tmpfs": {"/tmp": "rw,nosuid,nodev,exec,size=268435456,mode=1777,rprivate"},
            "Memory": GIB,
            "MemorySwap": GIB,
            "PidsLimit": 1024,
            "CpuPeriod": 100_000,
            "CpuQuota": 100_000,
        },
    }


def made_by_docker() -> dict[str, Any]:
    found = made_by_podman()
    del found["OCIRuntime"], found["EffectiveCaps"], found["BoundingCaps"]
    found["HostConfig"] |= {"CapDrop": ["ALL"], "Runtime": "runc", "CapAdd": None}
    found["HostConfig"]["SecurityOpt"].append("seccomp=" + _seccomp.text("podbot"))
    return found


TOOLS_SPEC = ContainerSpec(IMAGE)


@pytest.mark.parametrize(
    ("facts", "found"), [(PODMAN, made_by_podman()), (DOCKER, made_by_docker())]
)
def test_a_container_that_is_what_was_asked_for_has_no_difference(
    facts: Facts, found: dict[str, Any]
) -> None:
    resolved = compare(TOOLS_SPEC, facts, found)

    assert resolved.differences == () and resolved.unenforced == ()
    resolved.check("c")


WIDER: list[tuple[str, dict[str, Any], str]] = [
    ("user", {"Config": {"User": ""}}, "user: wanted 65534:65534, got root"),
    ("privileged", {"HostConfig": {"Privileged": True}}, "privileged"),
    ("bounding", {"BoundingCaps": ["CAP_CHOWN"]}, "kept CHOWN"),
    ("effective", {"EffectiveCaps": ["CAP_NET_RAW"]}, "kept NET_RAW"),
    ("added", {"HostConfig": {"CapAdd": ["SYS_ADMIN"]}}, "capabilities"),
    ("privileges", {"HostConfig": {"SecurityOpt": []}}, "no-new-privileges"),
    ("seccomp", {"HostConfig": {"SecurityOpt": ["no-new-privileges", "seccomp=unconfined"]}},
     "seccomp: wanted on"),
    ("label", {"HostConfig": {"SecurityOpt": ["no-new-privileges", "label:disable"]}},
     "SELinux label"),
    ("root", {"HostConfig": {"ReadonlyRootfs": False}}, "root: wanted read-only"),
    ("init", {"HostConfig": {"Init": False}}, "init"),
    ("network", {"HostConfig": {"NetworkMode": "bridge"}}, "network: wanted none, got bridge"),
    ("pid", {"HostConfig": {"PidMode": "host"}}, "PidMode"),
    ("ipc", {"HostConfig": {"IpcMode": "host"}}, "IpcMode"),
    ("uts", {"HostConfig": {"UTSMode": "host"}}, "UTSMode"),
    ("device", {"HostConfig": {"Devices": [{"PathOnHost": "/dev/kvm"}]}}, "/dev/kvm"),
    ("tmpfs", {"HostConfig": {"Tmpfs": {}}}, "/tmp: wanted"),
    ("large tmpfs", {"HostConfig": {"Tmpfs": {"/tmp": "rw,nosuid,nodev"}}}, "size=268435456"),
    ("more tmpfs", {"HostConfig": {"Tmpfs": {"/tmp": "nosuid,nodev,size=268435456", "/run": ""}}},
     "/run: wanted read-only"),
    ("memory", {"HostConfig": {"Memory": 0}}, "memory: wanted"),
    ("swap", {"HostConfig": {"MemorySwap": -1}}, "memory with swap"),
    ("pids", {"HostConfig": {"PidsLimit": 0}}, "pids"),
    ("cpu", {"HostConfig": {"CpuQuota": 0}}, "cpu: wanted 1, got 0"),
    ("more cpu", {"HostConfig": {"CpuQuota": 0, "NanoCpus": 2_000_000_000}}, "got 2"),
    ("mount", {"Mounts": [{"Type": "bind", "Destination": "/x", "Source": "/etc"}]},
     "/x: wanted nothing mounted, got /etc"),
    ("volume", {"Mounts": [{"Type": "volume", "Destination": "/x"}]},
     "/x: wanted nothing mounted, got a volume"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "change", "said"), WIDER, ids=[each[0] for each in WIDER])
def test_a_container_that_may_do_more_than_asked_is_an_error(
    what: str, change: dict[str, Any], said: str
) -> None:
    found = copy.deepcopy(made_by_podman())
    for name, value in change.items():
        found[name] = found[name] | value if isinstance(value, dict) else value

    resolved = compare(TOOLS_SPEC, PODMAN, found)

    assert len(resolved.differences) == 1
    with pytest.raises(ContainerError) as caught:
        resolved.check("c1")
    assert said in caught.value.message
    assert (caught.value.kind, caught.value.subject) == (Kind.PROFILE_MISMATCH, "c1")


def test_docker_must_have_dropped_what_was_to_be_dropped() -> None:
    found = made_by_docker()
    found["HostConfig"]["CapDrop"] = ["NET_RAW"]

    (difference,) = compare(TOOLS_SPEC, DOCKER, found).differences

    assert difference.what == "dropped capabilities"


def test_some_capabilities_dropped_must_not_be_kept() -> None:
    spec = ContainerSpec(IMAGE, profile=Profile("x", drop=("NET_RAW",)))
    found = made_by_podman() | {"BoundingCaps": ["CAP_NET_RAW", "CAP_CHOWN"]}

    (difference,) = compare(spec, PODMAN, found).differences

    assert "kept NET_RAW" in str(difference)


def test_processor_time_may_be_told_in_another_unit() -> None:
    found = made_by_docker()
    found["HostConfig"] |= {"CpuQuota": 0, "CpuPeriod": 0, "NanoCpus": 1_000_000_000}

    assert compare(TOOLS_SPEC, DOCKER, found).differences == ()


def test_limits_that_the_engine_cannot_hold_are_reported_apart() -> None:
    found = made_by_podman()
    found["HostConfig"] |= {"Memory": 0, "MemorySwap": 0, "PidsLimit": 0, "CpuQuota": 0}

    resolved = compare(TOOLS_SPEC, ROOTLESS_V1, found)

    assert resolved.differences == ()
    assert resolved.unenforced == ("cpu", "memory", "pids")


def test_the_runtime_that_was_asked_for_must_be_the_one() -> None:
    wanted = ContainerSpec(IMAGE, runtime="runsc")

    (by_podman,) = compare(wanted, PODMAN, made_by_podman()).differences
    (by_docker,) = compare(wanted, DOCKER, made_by_docker()).differences
    assert str(by_podman) == str(by_docker) == "runtime: wanted runsc, got runc"

    by_path = made_by_podman() | {"OCIRuntime": "/usr/bin/runsc"}
    assert compare(wanted, PODMAN, by_path).differences == ()


def test_a_mapped_user_must_be_mapped() -> None:
    spec = ContainerSpec(IMAGE, profile=replace(TOOLS, userns="keep-id:uid=65534,gid=65534"))

    (difference,) = compare(spec, PODMAN, made_by_podman()).differences
    assert difference.what == "user namespace"

    mapped = made_by_podman()
    mapped["HostConfig"]["UsernsMode"] = "private"
    assert compare(spec, PODMAN, mapped).differences == ()


def mounted(*mounts: dict[str, Any], status: str = "running") -> dict[str, Any]:
    return made_by_podman() | {"Mounts": list(mounts), "State": {"Status": status}}


def test_mounts_must_be_those_that_were_asked_for() -> None:
    spec = ContainerSpec(IMAGE, mounts=(BindMount("/a", "/x", read_only=True), OVERLAY))
    bind = {"Type": "bind", "Source": "/a", "Destination": "/x", "RW": False}
    overlay = {"Type": "bind", "Destination": "/workspace", "RW": True,
               "Options": ["lowerdir=/src", "upperdir=/up", "workdir=/work"]}  # fmt: skip

    assert compare(spec, PODMAN, mounted(bind, overlay)).differences == ()
    for wrong in (
        mounted(bind | {"RW": True}, overlay),
        mounted(bind | {"Source": "/b"}, overlay),
        mounted(bind, overlay | {"Options": ["upperdir=/other"]}),
        mounted(bind, overlay | {"Options": None}),
        mounted(bind),
        mounted(overlay),
    ):
        assert len(compare(spec, PODMAN, wrong).differences) == 1


def test_an_overlay_is_mounted_only_when_a_container_starts() -> None:
    spec = ContainerSpec(IMAGE, mounts=(OVERLAY,))

    assert compare(spec, PODMAN, mounted(status="created")).differences == ()
    assert len(compare(spec, PODMAN, mounted(status="running")).differences) == 1


def test_a_privileged_container_is_compared_in_little() -> None:
    spec = ContainerSpec(IMAGE, profile=agent_profile(SandboxSettings(privileged=True)))
    found = made_by_podman()
    found["HostConfig"] = {"Privileged": True, "NetworkMode": "bridge"}

    assert compare(spec, PODMAN, found).differences == ()
    assert len(compare(spec, PODMAN, made_by_podman()).differences) == 1


def test_a_nested_agent_may_be_as_loose_as_it_was_asked_to_be() -> None:
    spec = ContainerSpec(IMAGE, profile=agent_profile(SandboxSettings(nested="sys_admin")))
    found = made_by_podman() | {"BoundingCaps": ["CAP_SYS_ADMIN", "CAP_NET_ADMIN", "CAP_CHOWN"]}
    found["HostConfig"] = {
        "CapAdd": ["CAP_SYS_ADMIN", "CAP_NET_ADMIN"],
        "SecurityOpt": ["label=disable", "unmask=ALL"],
        "Devices": [{"PathOnHost": "/dev/fuse"}, {"PathInContainer": "/dev/net/tun"}],
        "Tmpfs": {"/run": "rw"},
    }

    assert compare(spec, PODMAN, found).differences == ()


def test_a_description_of_the_wrong_shape_is_an_error_of_the_protocol() -> None:
    for odd in ({"HostConfig": []}, {"Mounts": {}}, {"Config": {"User": 5}}):
        with pytest.raises(ContainerError) as caught:
            compare(TOOLS_SPEC, PODMAN, made_by_podman() | odd)
        assert caught.value.kind is Kind.ENGINE_PROTOCOL


def test_volumes_of_an_image_do_not_make_a_read_only_root_writable() -> None:
    assert podman_request(ContainerSpec(IMAGE), {})["image_volume_mode"] == "ignore"
    spec = ContainerSpec(IMAGE, profile=agent_profile())
    assert "image_volume_mode" not in podman_request(spec, {})
    volume = {"Type": "volume", "Destination": "/data"}
    found = mounted(volume)
    assert not [each for each in compare(spec, PODMAN, found).differences if each.what == "/data"]
