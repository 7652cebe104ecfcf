"""Attacks of root on what only root may read: folders of the system, others' homes.

The host is made for real, in a mount namespace of the test's own, with secrets where systems keep
them. Only root can do that, and only root needs it: file modes keep other users out.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from inside import PYTHON

import podbot
from podbot.sandbox import layers
from podbot.sandbox.overlay import _veils

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can read these"),
    pytest.mark.skipif(_veils._release() < (6, 3), reason="the test's own host lies on tmpfs"),
]

HOST = """
import ctypes, json, os, shutil, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result, what):
    if result < 0:
        print(json.dumps({"cannot": what + ": " + os.strerror(ctypes.get_errno())}))
        sys.exit()
def mount(source, place, kind=None, flags=0):
    check(libc.mount(source.encode(), place.encode(), kind and kind.encode(),
                     ctypes.c_ulong(flags), None), f"mount at {place}")
check(libc.unshare(0x20000), "unshare")
mount("none", "/", None, 0x4000 | 0x40000)
stage = sys.argv[4]
mount("tmpfs", stage, "tmpfs")
for folder in ("/etc", "/home", "/var/lib", "/var/cache"):
    copy = stage + folder
    os.makedirs(os.path.dirname(copy), exist_ok=True)
    if folder == "/etc":
        shutil.copytree(folder, copy, symlinks=True)
    else:
        os.makedirs(copy)
    mount(copy, folder, None, 0x1000)
os.umask(0)
def plant(path, mode, folder_mode=0o755, uid=0):
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    with open(path, "w") as file:
        file.write("SECRET")
    os.chmod(path, mode)
    os.chmod(os.path.dirname(path), folder_mode)
    os.chown(path, uid, uid)
    os.chown(os.path.dirname(path), uid, uid)
SECRETS = [
    ("/etc/ssh/ssh_host_ed25519_key", 0o600), ("/etc/wireguard/wg0.conf", 0o600, 0o700),
    ("/etc/NetworkManager/system-connections/home", 0o600),
    ("/etc/letsencrypt/archive/site/privkey1.pem", 0o644, 0o700),
    ("/etc/kubernetes/admin.conf", 0o600), ("/etc/kubernetes/pki/ca.key", 0o640),
    ("/etc/security/opasswd", 0o600), ("/etc/unheard-of", 0o400),
    ("/var/cache/debconf/passwords.dat", 0o600),
    ("/var/lib/containers/storage/overlay/layer", 0o644, 0o700),
    ("/home/other/token", 0o644, 0o700, 4321), ("/home/open/token", 0o600, 0o755, 4321),
]
for secret in SECRETS:
    plant(*secret)
plant("/etc/everybodys", 0o644)
sys.path.insert(0, sys.argv[1])
from podbot.sandbox import Policy
from podbot.sandbox.overlay.launcher import OverlaySandbox
target = sys.argv[2]
READ = '''
import errno, json, sys
found = {}
for path in sys.argv[1:]:
    try:
        found[path] = open(path).read()
    except OSError as error:
        found[path] = errno.errorcode[error.errno]
print(json.dumps(found))
'''
def read(sandbox, paths):
    result = sandbox.exec([sys.argv[3], "-I", "-S", "-c", READ, *paths])
    assert result.ok, result
    return json.loads(result.stdout)
PATHS = [secret[0] for secret in SECRETS]
def promise(sandbox):
    return [g.enforced for g in sandbox.guarantees if g.name == "secrets_of_root"]
"""


def on_host(code: str, target: Path, root: Path) -> Any:
    """Run code on a host made by ``HOST``; gives what it printed."""
    source = str(Path(podbot.__file__).parent.parent)
    with tempfile.TemporaryDirectory(prefix="podbot-test-", dir="/var/tmp") as stage:
        done = subprocess.run(
            [PYTHON, "-c", HOST + code, source, str(target), PYTHON, stage],
            capture_output=True,
            text=True,
            env=os.environ | {layers.ROOT_VARIABLE: str(root)},
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    if isinstance(found, dict) and "cannot" in found:
        pytest.skip(f"this kernel refuses the test's own host: {found['cannot']}")
    return found


def test_what_only_root_may_read_is_not_there_whatever_it_is_called(
    target: Path, own_layers: Path
) -> None:
    code = """
with OverlaySandbox(target, discard=True) as sandbox:
    script = "grep -rl SECRET /etc /var/lib /home"
    again = "cp /etc/unheard-of /etc/ssh/ssh_host_ed25519_key .; chmod -R a+rX /etc /home; "
    tried = sandbox.exec(["sh", "-c", script + ";" + again + script])
    print(json.dumps([promise(sandbox), read(sandbox, PATHS + ["/etc/everybodys"]), tried.stdout]))
"""
    promised, found, tried = on_host(code, target, own_layers)

    assert promised == [True]
    assert found.pop("/etc/everybodys") == "SECRET"
    assert set(found.values()) <= {"EACCES", "ENOENT"}, found
    assert tried.split() == ["/etc/everybodys"] * 2


def test_a_secret_of_roots_that_appears_later_is_not_there_either(
    target: Path, own_layers: Path
) -> None:
    code = """
with OverlaySandbox(target, discard=True) as sandbox:
    plant("/etc/later/key", 0o600)
    plant("/home/later/token", 0o644, 0o700)
    print(json.dumps(read(sandbox, ["/etc/later/key", "/home/later/token"])))
"""
    found = on_host(code, target, own_layers)
    assert set(found.values()) <= {"EACCES", "ENOENT"}, found


def test_a_target_in_a_closed_folder_works_and_shows_nothing_beside_it(
    target: Path, own_layers: Path
) -> None:
    code = """
os.makedirs("/home/mine/project")
os.chmod("/home/mine", 0o700)
plant("/home/mine/token", 0o644, 0o700)
os.makedirs("/etc/app/closed/data")
os.chmod("/etc/app/closed", 0o700)
with open("/etc/app/closed/secret", "w") as file:
    file.write("SECRET")
with OverlaySandbox(["/home/mine/project", "/etc/app/closed/data"], discard=True) as sandbox:
    sandbox.write("made", b"x")
    sandbox.write("/etc/app/closed/data/made", b"x")
    seen = sandbox.exec(["ls", "-A", "/home/mine", "/etc/app/closed"]).stdout.split()
    closed = sandbox.exec(["sh", "-c", "touch /home/mine/x /etc/app/closed/x"]).exit_code
    found = read(sandbox, ["/etc/app/closed/secret", "/home/mine/token", *PATHS])
print(json.dumps([seen, closed, found]))
"""
    seen, closed, found = on_host(code, target, own_layers)

    assert seen == ["/etc/app/closed:", "data", "/home/mine:", "project"]
    assert closed != 0
    assert set(found.values()) <= {"EACCES", "ENOENT"}, found


def test_what_a_policy_names_or_makes_writable_is_there(target: Path, own_layers: Path) -> None:
    code = """
os.makedirs("/var/lib/closed/shared")
os.chmod("/var/lib/closed", 0o700)
readable = ("/etc/wireguard", "/etc/ssh/ssh_host_ed25519_key", "/etc/shadow")
policy = Policy(readable=readable, writable=("/var/lib/closed/shared",))
with OverlaySandbox(target, policy=policy, discard=True) as sandbox:
    sandbox.write("/var/lib/closed/shared/made", b"x")
    found = read(sandbox, [*PATHS, "/etc/shadow"])
with OverlaySandbox(target, policy=Policy(hide_by_rule=False), discard=True) as sandbox:
    print(json.dumps([found, read(sandbox, ["/etc/unheard-of"]), promise(sandbox),
                      os.listdir("/var/lib/closed/shared")]))
"""
    found, without, promised, made = on_host(code, target, own_layers)

    shown = {path for path, text in found.items() if text not in ("EACCES", "ENOENT")}
    assert shown == {"/etc/wireguard/wg0.conf", "/etc/ssh/ssh_host_ed25519_key", "/etc/shadow"}
    assert without == {"/etc/unheard-of": "SECRET"}
    assert promised == []
    assert made == ["made"]


def test_programs_and_the_interpreter_are_found_in_a_closed_folder(
    target: Path, own_layers: Path
) -> None:
    code = """
plant("/home/mine/bin/tool", 0o755)
with open("/home/mine/bin/tool", "w") as file:
    file.write("#!/bin/sh\\necho ran\\n")
os.chmod("/home/mine", 0o700)
os.environ["PATH"] += ":/home/mine/bin"
os.environ["HOME"] = target + "/src"
os.mkdir(target + "/src/deep")
with OverlaySandbox(target + "/src/deep", discard=True) as sandbox:
    print(json.dumps([sandbox.exec(["tool"]).stdout, sandbox.python("6 * 7").value,
                      read(sandbox, PATHS)]))
"""
    ran, value, found = on_host(code, target, own_layers)

    assert (ran, value) == ("ran\n", "42")
    assert set(found.values()) <= {"EACCES", "ENOENT"}, found


def test_file_systems_of_the_kernels_that_only_root_may_look_into_are_not_there(
    target: Path, own_layers: Path
) -> None:
    code = """
for place, mode in (("/sys/kernel/mm", 0o700), ("/sys/module", 0o755)):
    mount("tmpfs", place, "tmpfs")
    plant(place + "/trace", 0o644)
    os.chmod(place, mode)
    os.mkdir(place + "/inner")
    mount("tmpfs", place + "/inner", "tmpfs")
    plant(place + "/inner/key", 0o644, 0o700)
with OverlaySandbox(target, discard=True) as sandbox:
    paths = ["/sys/kernel/mm/trace", "/sys/kernel/mm/inner/key", "/sys/module/inner/key"]
    print(json.dumps([read(sandbox, paths), read(sandbox, ["/sys/module/trace"])]))
"""
    closed, rest = on_host(code, target, own_layers)

    assert set(closed.values()) == {"ENOENT"}, closed
    assert rest == {"/sys/module/trace": "SECRET"}


def test_what_is_hidden_in_a_closed_folder_hinders_no_sandbox(
    target: Path, own_layers: Path
) -> None:
    code = """
plant("/var/lib/closed/in/key", 0o644, 0o755)
os.chmod("/var/lib/closed", 0o700)
for path in ("/var/lib/closed/in/key", "/var/lib/closed/in", "/etc/wireguard/wg0.conf"):
    with OverlaySandbox(target, policy=Policy(hidden=(path,)), discard=True) as sandbox:
        found = read(sandbox, ["/var/lib/closed/in/key", "/etc/wireguard/wg0.conf"])
        assert set(found.values()) <= {"EACCES", "ENOENT"}, (path, found)
print(json.dumps("fine"))
"""
    assert on_host(code, target, own_layers) == "fine"


def test_a_file_system_that_cannot_be_veiled_is_left_out_or_said(
    target: Path, own_layers: Path
) -> None:
    code = """
plant("/etc/other/layer/key", 0o600)
for name in ("upper", "work"):
    os.makedirs("/var/cache/" + name)
options = b"lowerdir=/etc/other/layer,upperdir=/var/cache/upper,workdir=/var/cache/work"
check(libc.mount(b"overlay", b"/etc/other/layer", b"overlay", 0, options), "overlay")
with OverlaySandbox(target, discard=True) as sandbox:
    found = [promise(sandbox), read(sandbox, ["/etc/other/layer/key", "/etc/unheard-of"])]
check(libc.umount2(b"/etc/other/layer", 2), "umount")
os.makedirs("/var/cache/etc")
options = b"lowerdir=/etc,upperdir=/var/cache/etc,workdir=/var/cache/work"
check(libc.mount(b"overlay", b"/etc", b"overlay", 0, options), "overlay")
with OverlaySandbox(target, discard=True) as sandbox:
    print(json.dumps([*found, promise(sandbox), read(sandbox, ["/etc/everybodys"])]))
"""
    promised, found, not_promised, rest = on_host(code, target, own_layers)

    assert promised == [True]
    assert set(found.values()) <= {"EACCES", "ENOENT"}, found
    assert not_promised == [False]
    assert rest == {"/etc/everybodys": "SECRET"}
