"""The probe on this host, and on hosts made worse for one process at a time.

A user namespace of one's own is enough to take things away for real: its limits,
its view of /proc, its system calls. Where the host refuses even that, there is
nothing to take away and the test skips.
"""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from podbot.sandbox import probe as probing
from podbot.sandbox.layers import ageing
from podbot.sandbox.probe import Attempt, Finding, overlay_can_run, probe

DOCTOR = "import sys; from podbot.cli import main; sys.exit(main(['doctor', '--json']))"

needs_user_namespaces = pytest.mark.skipif(
    subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode != 0,
    reason="this host refuses user namespaces (see `podbot doctor`)",
)


def by_name(findings: tuple[Finding, ...]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def doctor_after(setup: str) -> tuple[int, dict[str, Finding]]:
    """What the doctor says in a namespace where the shell lines `setup` have run."""
    script = f'set -e\n{setup}\nexec "$0" -c "$1"'
    command = ["unshare", "-Urm", "sh", "-c", script, sys.executable, DOCTOR]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    findings = json.loads(done.stdout)["findings"]
    return done.returncode, {finding["name"]: Finding(**finding) for finding in findings}


def test_each_finding_that_is_not_found_says_how_to_fix_it() -> None:
    for finding in probe():
        assert finding.detail
        assert (finding.fix is None) == (finding.state == "found")


def test_the_probe_agrees_with_unshare_about_user_namespaces() -> None:
    works = subprocess.run(["unshare", "-Urmpf", "true"], check=False).returncode == 0
    assert (by_name(probe())["user namespaces"].state == "found") == works


def test_the_probe_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mounts = Path("/proc/self/mounts").read_text()
    probe()
    assert list(tmp_path.iterdir()) == []
    # Others may mount meanwhile; what the probe makes has this folder in its name.
    new = set(Path("/proc/self/mounts").read_text().splitlines()) - set(mounts.splitlines())
    assert not [line for line in new if str(tmp_path) in line]


@needs_user_namespaces
def test_a_limit_of_no_user_namespaces_is_named_with_its_sysctl() -> None:
    code, found = doctor_after("echo 0 >/proc/sys/user/max_user_namespaces")
    assert code == 1
    assert found["user namespaces"].state == "missing"
    assert found["user namespaces"].fix == "sudo sysctl -w user.max_user_namespaces=28633"
    assert found["overlay"].detail == "not reached: an earlier step failed"


@needs_user_namespaces
def test_a_masked_proc_is_named_with_the_engine_option() -> None:
    code, found = doctor_after("mount --bind /dev/null /proc/kallsyms")
    assert code == 1
    assert found["user namespaces"].state == "found"
    assert found["fresh /proc"].state == "missing"
    assert "unmask=ALL" in str(found["fresh /proc"].fix)


@needs_user_namespaces
def test_a_container_root_that_cannot_hold_a_layer_is_named(tmp_path: Path) -> None:
    # As in a container: the only folder for layers lies on an overlay already.
    lower, upper, work, root = (tmp_path / name for name in ("lower", "upper", "work", "root"))
    options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
    code, found = doctor_after(
        f"""
        mkdir {lower} {upper} {work} {root}
        mount -t overlay -o {options} none {root}
        export PODBOT_LAYERS={root}/podbot-probed
        """
    )
    assert code == 1
    assert (found["fresh /proc"].state, found["overlay"].state) == ("found", "missing")
    assert found["overlay"].detail == f"below {root}: Invalid argument"
    assert "set PODBOT_LAYERS" in str(found["overlay"].fix)


def test_a_host_without_any_folder_to_write_to_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # /proc takes no folder from anybody.
    monkeypatch.setattr(probing, "_layer_parents", lambda: ["/proc"])
    found = by_name(probe())
    assert found["overlay"].detail == "no folder to try it in"
    assert not overlay_can_run(tuple(found.values()))


def test_a_container_that_filters_unshare_is_named() -> None:
    # What a container engine does: a filter that answers unshare with EPERM.
    script = """
import ctypes, errno, os, platform, struct, sys
number = {"x86_64": 272, "aarch64": 97}[platform.machine()]
code = b"".join(struct.pack("=HBBI", *i) for i in (
    (0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50000 | errno.EPERM), (6, 0, 0, 0x7FFF0000)))
keep = ctypes.create_string_buffer(code, len(code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("@HP", 4, ctypes.addressof(keep))) == 0
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
    command = [sys.executable, "-c", script, DOCTOR]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1
    assert found["user namespaces"]["detail"] == "unshare user: Operation not permitted"
    if not any(
        Path("/proc/sys/kernel", name).exists()
        for name in ("unprivileged_userns_clone", "apparmor_restrict_unprivileged_userns")
    ):
        assert "seccomp=unconfined" in found["user namespaces"]["fix"]


def test_an_engine_is_found_where_its_socket_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "engine.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer_one_ping() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nOK")

        server = threading.Thread(target=answer_one_ping)
        server.start()
        monkeypatch.setenv("CONTAINER_HOST", f"unix://{path}")
        monkeypatch.setattr(probing, "PING_SECONDS", 60.0)
        engine = by_name(probe())["container engine"]
        server.join()
    assert (engine.state, engine.detail) == ("found", f"answers at {path}")


def test_without_any_program_on_the_path_the_probe_still_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", shutil.copy("/bin/true", tmp_path / "python3"))
    found = by_name(probe())
    assert found["ripgrep"].state == "limited"
    assert found["user namespaces"].detail == "the helper ended early"
    assert not overlay_can_run(tuple(found.values()))


@pytest.mark.parametrize(
    ("release", "version"),
    [("6.18.44-fc", (6, 18)), ("5.4.0-150-generic", (5, 4)), ("6.12-rc3", (6, 12)), ("?", (0, 0))],
)
def test_kernel_releases_are_read_as_numbers(release: str, version: tuple[int, int]) -> None:
    assert probing._version(release) == version


OK = Attempt(0)
NAMESPACES = {"unshare user": OK, "map ids": OK, "unshare rest": OK}


@pytest.mark.parametrize(
    ("error", "sysctls", "remedy"),
    [
        (errno.ENOSPC, {}, "user.max_user_namespaces="),
        (errno.EPERM, {"kernel/unprivileged_userns_clone": "0"}, "unprivileged_userns_clone=1"),
        (errno.EPERM, {"kernel/apparmor_restrict_unprivileged_userns": "1"}, "--apparmor"),
        (errno.EINVAL, {}, "CONFIG_USER_NS"),
        (errno.EPERM, {}, "allow them for this user"),
    ],
)
def test_a_refused_namespace_is_explained_by_the_setting_behind_it(
    error: int, sysctls: dict[str, str], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The settings of a whole machine cannot be changed for one test.
    monkeypatch.setattr(probing, "_sysctl", sysctls.get)
    monkeypatch.setattr(probing, "_in_container", lambda: False)
    monkeypatch.setattr(probing, "_is_filtered", lambda: False)
    finding = probing._user_namespaces({"unshare user": OK, "map ids": Attempt(error)})
    assert finding.state == "missing"
    assert remedy in str(finding.fix)


@pytest.mark.parametrize(
    ("step", "error", "name", "remedy"),
    [
        ("read-only root", errno.ENOSYS, "read-only root", "5.12"),
        ("overlay /x/y", errno.ENODEV, "overlay", "modprobe overlay"),
        ("overlay /x/y", errno.EPERM, "overlay", ""),
        ("proc", errno.EPERM, "fresh /proc", "unmask=ALL"),
        ("seccomp", errno.EINVAL, "seccomp", "CONFIG_SECCOMP_FILTER"),
        ("landlock", errno.EOPNOTSUPP, "Landlock", "lsm="),
        ("landlock", errno.ENOSYS, "Landlock", "CONFIG_SECURITY_LANDLOCK"),
    ],
)
def test_each_failed_step_is_named_with_its_remedy(
    step: str, error: int, name: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = {**NAMESPACES, step: Attempt(error, where="/x")}
    monkeypatch.setattr(probing, "_run_helper", lambda: attempts)
    found = by_name(probe())
    assert found[name].state == "missing"
    assert remedy in str(found[name].fix)


def test_an_unknown_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    monkeypatch.setattr("platform.release", lambda: "4.19.0")
    found = by_name(probe())
    assert (found["machine"].state, found["machine"].detail) == ("missing", "linux riscv64")
    assert found["kernel"].fix == "boot Linux 5.12 or newer"


def test_an_interpreter_that_cannot_start_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python3")
    assert by_name(probe())["user namespaces"].detail == "the helper ended early"


def test_a_group_without_controllers_takes_no_limits_and_is_removed(tmp_path: Path) -> None:
    assert not probing._takes_limits(tmp_path, ("memory.max",))
    assert not probing._takes_limits(tmp_path / "absent", ("memory.max",))
    assert list(tmp_path.iterdir()) == []


def test_only_the_groups_this_process_is_in_and_may_write_can_hold_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "user.slice" / "app.scope"
    own.mkdir(parents=True)
    assert probing._v2_candidates(tmp_path) == []  # not a v2 hierarchy
    (tmp_path / "cgroup.controllers").touch()
    (own / "cgroup.procs").touch()
    (tmp_path / "cgroup.procs").mkdir(mode=0o500)
    monkeypatch.setattr(probing, "_own_cgroups", lambda: {"": "/user.slice/app.scope"})
    assert own in probing._v2_candidates(tmp_path)
    assert own.parent not in probing._v2_candidates(tmp_path)
    monkeypatch.setattr(probing, "_own_cgroups", dict)
    assert probing._v2_candidates(tmp_path) == []


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups_that_take_limits_are_found(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which hierarchy a machine has is decided at boot.
    monkeypatch.setattr(probing, "_v2_candidates", lambda: [tmp_path] if version == 2 else [])
    monkeypatch.setattr(probing, "_v1_folder", lambda _: tmp_path)
    monkeypatch.setattr(probing, "_takes_limits", lambda *_: True)
    finding = probing._cgroups()
    assert (finding.state, finding.detail[:2]) == ("found", f"v{version}")
    monkeypatch.setattr(probing, "_takes_limits", lambda *_: False)
    assert "rlimits" in probing._cgroups().detail


def test_a_file_that_cannot_be_read_has_no_lines(tmp_path: Path) -> None:
    assert probing._lines(str(tmp_path / "absent")) == []


def test_without_an_engine_podman_is_advised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "_engine_sockets", lambda: [str(tmp_path / "absent.sock")])
    monkeypatch.setenv("PATH", str(tmp_path))
    for system, fix in (
        ({"ID": "debian"}, "install Podman: sudo apt-get install podman"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "Podman: sudo dnf install podman"),
        ({"ID": "of-my-own"}, "install Podman"),
    ):
        monkeypatch.setattr(probing.platform, "freedesktop_os_release", lambda found=system: found)
        assert str(probing._engine().fix).endswith(fix)
    shutil.copy("/bin/true", tmp_path / "podman")
    assert probing._engine().state == "found"
    assert "a service of its own" in probing._engine().detail
    os.rename(tmp_path / "podman", tmp_path / "docker")
    assert probing._engine().state == "limited"
    assert "docker" in str(probing._engine().fix)


# Whether the host eats kept changes


def rules(tmp_path: Path, **files: str) -> tuple[str, ...]:
    (tmp_path / "tmp.conf").write_text("q /var/tmp 1777 root root 30d\n")
    for name, text in files.items():
        (tmp_path / f"{name}.conf").write_text(text)
    return ("/nonexistent", str(tmp_path))


def test_a_host_that_ages_the_layer_folder_is_told(tmp_path: Path) -> None:
    place = Path("/var/tmp/podbot-1000")

    assert ageing.age(place, rules(tmp_path)) == "30d"
    assert ageing.age(Path("/var/lib/podbot/layers"), rules(tmp_path)) is None
    assert ageing.age(place, rules(tmp_path, podbot="x /var/tmp/podbot-*\n")) is None


def test_rules_that_do_not_clean_are_none(tmp_path: Path) -> None:
    place = Path("/var/tmp/podbot-1000")
    (tmp_path / "tmp.conf").write_text("# q /var/tmp 1777 root root 30d\n\nq /var/tmp - - - -\n")
    (tmp_path / "notes.txt").write_text("q /var/tmp 1777 root root 1d\n")
    (tmp_path / "gone.conf").symlink_to("nowhere")

    assert ageing.age(place, (str(tmp_path),)) is None


def test_the_doctor_says_which_line_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ageing, "age", lambda folder: "30d")

    finding = by_name(probe())["kept changes"]

    assert finding.state == "missing" and not finding.required
    assert "30d" in finding.detail
    assert finding.fix is not None and "tmpfiles.d/podbot.conf" in finding.fix


def test_a_layer_folder_that_makes_no_sense_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODBOT_LAYERS", "relative")

    assert by_name(probe())["kept changes"].state == "missing"
