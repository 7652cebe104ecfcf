"""Hosts that refuse something a sandbox needs, each made for real in an outer namespace.

A child of the test enters namespaces of its own (the test needs no privilege for that), spoils
something there, and opens a sandbox. Nothing of it shows outside.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from inside import PYTHON, new_folder

import podbot
from podbot.sandbox import layers

OUTER = """
import ctypes, json, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
uid, gid = os.getuid(), os.getgid()
def check(result, what):
    if result < 0:
        print(json.dumps({"cannot": what + ": " + os.strerror(ctypes.get_errno())}))
        sys.exit()
check(libc.unshare(0x10000000 | 0x20000), "unshare")
def write(path, text):
    with open(path, "w") as file:
        file.write(text)
write("/proc/self/setgroups", "deny")
write("/proc/self/uid_map", f"{uid} {uid} 1")
write("/proc/self/gid_map", f"{gid} {gid} 1")
def mount(source, place, kind=None, flags=0, data=None):
    check(libc.mount(source.encode(), place.encode(), kind and kind.encode(),
                     ctypes.c_ulong(flags), data and data.encode()), f"mount at {place}")
mount("none", "/", None, 0x4000 | 0x40000)
sys.path.insert(0, sys.argv[1])
from podbot.errors import LaunchError
from podbot.sandbox import Limits
from podbot.sandbox import layers
from podbot.sandbox.overlay.launcher import OverlaySandbox
target, root = sys.argv[2:4]
def outcome(**options):
    try:
        with OverlaySandbox(target, discard=True, **options) as sandbox:
            found = {
                "files": sorted(info.path for info in sandbox.list(recursive=True)),
                "by": next(g.by for g in sandbox.guarantees if g.name == "files"),
                "notes": list(sandbox.notes),
                "ok": sandbox.exec(["sh", "-c", "echo x > made && cat made"]).stdout,
            }
    except LaunchError as error:
        found = {"kind": error.kind, "remedy": error.remedy, "message": error.message}
    found["left"] = []
    if os.path.isdir(root):
        for _ in range(1200):
            found["left"] = sorted(set(os.listdir(root)) - {"templates"})
            if not found["left"]:
                break
            time.sleep(0.05)
    if os.path.isdir(root + "/templates"):
        found["left"] += [name for name in os.listdir(root + "/templates") if "tmp" in name]
    return found
"""


def host(code: str, target: Path, root: Path) -> dict[str, Any]:
    """Run code on a host made by ``OUTER``; gives what it printed."""
    source = str(Path(podbot.__file__).parent.parent)
    done = subprocess.run(
        [PYTHON, "-c", OUTER + code, source, str(target), str(root)],
        capture_output=True,
        text=True,
        env=os.environ | {layers.ROOT_VARIABLE: str(root)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if isinstance(found, dict) and "cannot" in found:
        pytest.skip(f"this kernel refuses the outer namespace: {found['cannot']}")
    return found


def test_user_namespaces_that_are_off(target: Path, own_layers: Path) -> None:
    code = """
write("/proc/sys/user/max_user_namespaces", "0")
print(json.dumps(outcome()))
"""
    found = host(code, target, own_layers)

    assert found["kind"] == "userns_denied"
    assert found["remedy"]
    assert found["left"] == []


def test_a_masked_proc_as_in_a_container(target: Path, own_layers: Path) -> None:
    code = """
mount("tmpfs", "/proc/scsi" if os.path.isdir("/proc/scsi") else "/proc/irq", "tmpfs")
print(json.dumps(outcome()))
"""
    found = host(code, target, own_layers)

    assert found["kind"] == "proc_refused"
    assert "unmask" in found["remedy"]
    assert found["left"] == []


@pytest.mark.parametrize("inodes", [1, 3, 5, 9, 13])
def test_a_disk_that_is_full(target: Path, own_layers: Path, inodes: int) -> None:
    code = f"""
mount("tmpfs", root, "tmpfs", 0, "nr_inodes={inodes},mode=700")
print(json.dumps(outcome()))
"""
    found = host(code, target, own_layers)

    assert found["kind"] == "disk_full", found
    assert found["remedy"]
    assert found["left"] == []


def test_a_disk_too_small_for_a_copy(target: Path, own_layers: Path) -> None:
    (target / "large").write_bytes(os.urandom(300_000))
    code = """
mount("tmpfs", root, "tmpfs", 0, "size=200k,mode=700")
mount("tmpfs", target + "/src", "tmpfs")
print(json.dumps(outcome()))
"""
    found = host(code, target, own_layers)

    assert found["kind"] == "disk_full", found
    assert found["left"] == []


MOUNT_BELOW = """
mount("tmpfs", target + "/src", "tmpfs")
with open(target + "/src/mounted.py", "w") as file:
    file.write("mounted")
"""


def test_a_mount_below_the_target_is_copied_whole_and_said(target: Path, own_layers: Path) -> None:
    found = host(MOUNT_BELOW + "print(json.dumps(outcome()))", target, own_layers)

    assert found["files"] == ["README.md", "link", "run.sh", "src", "src/mounted.py"]
    assert found["by"].startswith("a copy of the target")
    assert any(note.startswith("works on a copy") for note in found["notes"])
    assert found["ok"] == "x\n"
    assert found["left"] == []
    assert not (target / "made").exists()


def test_a_target_too_large_to_be_copied_is_refused(target: Path, own_layers: Path) -> None:
    (target / "large").write_bytes(bytes(2_000_000))
    code = MOUNT_BELOW + "print(json.dumps(outcome(limits=Limits(disk=1_000_000))))"

    found = host(code, target, own_layers)

    assert found["kind"] == "target_too_large"
    assert found["remedy"]
    assert found["left"] == []


def test_a_copy_does_not_bring_hidden_files_along(target: Path, own_layers: Path) -> None:
    (target / ".ssh").mkdir()
    (target / ".ssh/id_rsa").write_text("planted-secret")
    code = MOUNT_BELOW + "os.environ['HOME'] = target\nprint(json.dumps(outcome()))"

    found = host(code, target, own_layers)

    assert not [path for path in found.get("files", []) if "ssh" in path], found


OVERLAID = """
for name in ("low", "up", "work", "merged"):
    os.mkdir(f"{place}/{name}")
mount("overlay", place + "/merged", "overlay", 0,
      f"lowerdir={place}/low,upperdir={place}/up,workdir={place}/work,userxattr")
"""


def test_layers_on_an_overlay_as_in_a_container_fall_back_or_say_why(
    target: Path, own_layers: Path
) -> None:
    place = new_folder()
    code = (
        f"place = {str(place)!r}\n"
        + OVERLAID
        + """
root = place + "/merged/layers"
os.environ[layers.ROOT_VARIABLE] = root
print(json.dumps(outcome()))
"""
    )
    try:
        found = host(code, target, own_layers)
    finally:
        layers.remove(place)

    if "kind" in found:
        assert found["kind"] in ("layer_failed", "overlay_refused")
        assert layers.ROOT_VARIABLE in found["remedy"]
    else:
        assert found["files"] == ["README.md", "link", "run.sh", "src", "src/app.py"]
        assert found["ok"] == "x\n"
    assert found["left"] == []


def test_a_target_on_an_overlay_is_seen_whole(target: Path, own_layers: Path) -> None:
    place = new_folder()
    code = (
        f"place = {str(place)!r}\n"
        + OVERLAID
        + """
target = place + "/merged"
with open(target + "/file", "w") as file:
    file.write("x")
print(json.dumps(outcome()))
"""
    )
    try:
        found = host(code, target, own_layers)
    finally:
        layers.remove(place)

    assert found.get("files") == ["file"], found
    assert found["ok"] == "x\n"


def test_a_mount_below_the_home_is_no_obstacle(target: Path, own_layers: Path) -> None:
    home = new_folder()
    (home / "mounted").mkdir()
    (home / ".ssh").mkdir()
    (home / ".ssh/id_rsa").write_text("planted-secret")
    code = f"""
home = {str(home)!r}
os.environ["HOME"] = home
mount("tmpfs", home + "/mounted", "tmpfs")
with OverlaySandbox(target, discard=True) as sandbox:
    print(json.dumps(sandbox.exec(["sh", "-c", "cat README.md; echo x > ~/f && cat ~/f; "
                                   f"grep -r planted {{home}}"]).stdout))
"""
    try:
        found = host(f"{code}", target, own_layers)
    finally:
        layers.remove(home)

    assert found == "read me\nx\n"


def test_a_mount_below_etc_is_no_obstacle(target: Path, own_layers: Path) -> None:
    code = """
mount("/etc/hostname", "/etc/hostname", None, 0x1000)
with OverlaySandbox(target, discard=True) as sandbox:
    print(json.dumps(sandbox.exec(["sh", "-c", "cat README.md; cat /etc/shadow; "
                                   "cmp /etc/hostname /etc/hostname && echo same"]).stdout))
"""
    if not os.path.isfile("/etc/hostname"):
        pytest.skip("/etc/hostname is not installed")

    assert host(code, target, own_layers) == "read me\nsame\n"
