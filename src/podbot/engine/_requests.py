"""A `ContainerSpec` in the words of an engine: what is sent to make a container.

Docker is asked in its own API; Podman in its own too, because the one both share cannot say which
runtime is meant, joins mounts to strings that odd paths break, and adds writable folders to a
read-only root. Pure: values in, JSON out.
"""

from __future__ import annotations

from collections.abc import Mapping

from podbot.engine.profiles import CPU_PERIOD, Profile
from podbot.engine.specs import BindMount, ContainerSpec, Mount, OverlayMount, VolumeMount
from podbot.errors import ContainerError, Kind

Json = dict[str, object]


def podman_request(
    spec: ContainerSpec, labels: Mapping[str, str], seccomp: str | None = None
) -> Json:
    """For ``POST /libpod/containers/create``; ``seccomp`` as `_seccomp.given` has it."""
    profile = spec.profile
    binds: list[Json] = []
    overlays: list[Json] = []
    volumes: list[Json] = []
    for mount in spec.mounts:
        match mount:
            case BindMount():
                access = "ro" if mount.read_only else "rw"
                binds.append(_podman_bind(mount, access))
            case OverlayMount():
                options = [f"upperdir={mount.upper}", f"workdir={mount.work}"]
                overlays.append(
                    {"source": mount.source, "destination": mount.target, "options": options}
                )
            case VolumeMount():
                options = ["ro"] if mount.read_only else []
                volumes.append({"name": mount.volume, "dest": mount.target, "options": options})
    for memory in profile.tmpfs:
        binds.append(
            {
                "type": "tmpfs",
                "source": "tmpfs",
                "destination": memory.path,
                "options": list(memory.options),
            }
        )
    body: Json = {
        "image": spec.image,
        "env": dict(spec.env),
        "labels": dict(labels),
        "mounts": binds,
        "overlay_volumes": overlays,
        "volumes": volumes,
        "stdin": spec.stdin,
        "terminal": spec.tty,
        # An image's health check would run things unasked, and a systemd mode mounts more.
        "healthconfig": {"test": ["NONE"]},
        "systemd": "false",
        # The root goes with the container: nobody needs it synced to the disk.
        "volatile": True,
    }
    _put(
        body,
        name=spec.name,
        command=_words(spec.command),
        entrypoint=_words(spec.entrypoint),
        work_dir=spec.workdir,
        hostname=spec.hostname,
        oci_runtime=spec.runtime,
        log_configuration=None if spec.logs else {"driver": "none"},
        remove=spec.auto_remove or None,
        stop_signal=9 if spec.killed_at_once else None,
    )
    body |= _podman_confinement(profile, seccomp)
    return body


def _podman_bind(mount: BindMount, access: str) -> Json:
    return {
        "type": "bind",
        "source": mount.source,
        "destination": mount.target,
        "options": [access, "rbind", "rprivate"],
    }


def _podman_confinement(profile: Profile, seccomp: str | None) -> Json:
    if profile.privileged:
        return _put({"privileged": True}, **_podman_common(profile))
    body: Json = {
        "cap_drop": list(profile.drop),
        "cap_add": list(profile.add),
        "no_new_privileges": profile.no_new_privileges,
        "read_only_filesystem": profile.read_only,
        "devices": [
            {"path": f"{device.path}:{device.path}:{device.permissions}"}
            for device in profile.devices
        ],
        "ipcns": {"nsmode": "private"},
    }
    return _put(
        body,
        selinux_opts=["disable"] if profile.selinux == "disable" else None,
        seccomp_profile_path=seccomp,
        unmask=["ALL"] if profile.unmask else None,
        # Volumes that an image asks for would be writable places, on the disk of the host.
        image_volume_mode="ignore" if profile.read_only else None,
        **_podman_common(profile),
    )


def _podman_common(profile: Profile) -> Json:
    limits: Json = {}
    if profile.cpu_quota is not None:
        limits["cpu"] = {"period": CPU_PERIOD, "quota": profile.cpu_quota}
    if profile.memory is not None:
        memory: Json = {"limit": profile.memory}
        limits["memory"] = memory
        if not profile.swap:
            memory["swap"] = profile.memory  # both together
    if profile.pids is not None:
        limits["pids"] = {"limit": profile.pids}
    rlimits = None
    if profile.file_size is not None:
        rlimits = [{"type": "fsize", "soft": profile.file_size, "hard": profile.file_size}]
    return {
        "user": profile.user,
        "userns": _namespace(profile.userns),
        "netns": _namespace(profile.network),
        "resource_limits": limits or None,
        "r_limits": rlimits,
        "shm_size": profile.shm,
        "init": profile.init or None,
    }


def _namespace(word: str | None) -> Json | None:
    if word is None:
        return None
    mode, _, value = word.partition(":")
    return _put({"nsmode": mode}, value=value or None)


def docker_request(
    spec: ContainerSpec, labels: Mapping[str, str], seccomp: str | None = None
) -> Json:
    """For ``POST /containers/create``; ``seccomp`` as `_seccomp.given` has it."""
    profile = spec.profile
    host: Json = {
        "Mounts": [_docker_mount(mount) for mount in spec.mounts],
        "Tmpfs": {memory.path: ",".join(memory.options) for memory in profile.tmpfs},
        "Privileged": profile.privileged,
    }
    _put(
        host,
        Runtime=spec.runtime,
        LogConfig=None if spec.logs else {"Type": "none"},
        AutoRemove=spec.auto_remove or None,
        NetworkMode=profile.network,
        Memory=profile.memory,
        MemorySwap=None if profile.swap else profile.memory,
        CpuPeriod=None if profile.cpu is None else CPU_PERIOD,
        CpuQuota=profile.cpu_quota,
        PidsLimit=profile.pids,
        ShmSize=profile.shm,
        Init=profile.init or None,
        UsernsMode=profile.userns,
    )
    if profile.file_size is not None:
        host["Ulimits"] = [{"Name": "fsize", "Soft": profile.file_size, "Hard": profile.file_size}]
    if not profile.privileged:
        host |= _docker_confinement(profile, seccomp)
    body: Json = {
        "Image": spec.image,
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "Labels": dict(labels),
        "OpenStdin": spec.stdin,
        "StdinOnce": spec.stdin,  # it ends with whoever was attached, as Podman has it
        "Tty": spec.tty,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }
    return _put(
        body,
        Cmd=_words(spec.command),
        Entrypoint=_words(spec.entrypoint),
        WorkingDir=spec.workdir,
        Hostname=spec.hostname,
        User=profile.user,
        StopSignal="SIGKILL" if spec.killed_at_once else None,
    )


def _docker_confinement(profile: Profile, seccomp: str | None) -> Json:
    security = []
    if profile.no_new_privileges:
        security.append("no-new-privileges")
    if profile.selinux == "disable":
        security.append("label=disable")
    if seccomp is not None:
        security.append(f"seccomp={seccomp}")
    body: Json = {
        "CapDrop": list(profile.drop),
        "CapAdd": list(profile.add),
        "SecurityOpt": security,
        "ReadonlyRootfs": profile.read_only,
        "Devices": [
            {
                "PathOnHost": device.path,
                "PathInContainer": device.path,
                "CgroupPermissions": device.permissions,
            }
            for device in profile.devices
        ],
        "IpcMode": "private",
    }
    if profile.unmask:
        body |= {"MaskedPaths": [], "ReadonlyPaths": []}
    return body


def _docker_mount(mount: Mount) -> Json:
    match mount:
        case BindMount():
            return {
                "Type": "bind",
                "Source": mount.source,
                "Target": mount.target,
                "ReadOnly": mount.read_only,
                "BindOptions": {"Propagation": "rprivate"},
            }
        case VolumeMount():
            return {
                "Type": "volume",
                "Source": mount.volume,
                "Target": mount.target,
                "ReadOnly": mount.read_only,
            }
    raise ContainerError(
        f"Docker cannot mount {mount.source} copy-on-write at {mount.target}",
        kind=Kind.UNSUPPORTED,
        remedy='use Podman, or workspace="copy"',
        subject=mount.source,
    )


def _words(words: tuple[str, ...] | None) -> list[str] | None:
    return None if words is None else list(words)


def _put(body: Json, **more: object) -> Json:
    """Add what is set: engines take null for a value in some places."""
    body.update((name, value) for name, value in more.items() if value is not None)
    return body
