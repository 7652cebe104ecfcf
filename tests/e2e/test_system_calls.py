"""Attacked from inside: what system calls a container has, on each engine and on the overlay."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from services import Service

import podbot.sandbox
from podbot.engine import TOOLS, ContainerSpec, ExecSpec, SandboxSettings, agent_profile, connect
from podbot.errors import ContainerError, Kind
from podbot.frozen import replace

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.podman,
    pytest.mark.engines("rootful", "rootless", "docker"),
]

ATTACKS = """
import ctypes, errno, json, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
at = ("x86_64", "aarch64").index(platform.machine())
said = {}
def tried(name, work):
    try:
        work()
    except OSError as error:
        said[name] = errno.errorcode.get(error.errno, str(error.errno))
    else:
        said[name] = "DONE"
def call(name, numbers, *args):
    def work():
        result = libc.syscall(ctypes.c_long(numbers[at]), *map(ctypes.c_long, args))
        if result < 0:
            raise OSError(ctypes.get_errno(), name)
    tried(name, work)
def forked():
    words = ((56, 220)[at], USER | 17, 0, 0, 0, 0)
    result = libc.syscall(*map(ctypes.c_long, words))
    if result == 0:
        os._exit(0)
    if result < 0:
        raise OSError(ctypes.get_errno(), "clone")
    os.waitpid(result, 0)
USER, NET, NS = 0x10000000, 0x40000000, 0x20000
text = lambda word: ctypes.cast(ctypes.c_char_p(word), ctypes.c_void_p).value
tried("clone(user)", forked)
call("clone3", (435, 435), 0, 0)
call("unshare(user, net)", (272, 97), USER | NET)
call("unshare(mount)", (272, 97), NS)
call("mount", (165, 40), text(b"none"), text(b"/tmp"), text(b"tmpfs"), 0, 0)
call("mount in an own namespace", (165, 40), text(b"none"), text(b"/tmp"), text(b"tmpfs"), 0, 0)
call("fsopen", (430, 430), text(b"tmpfs"), 0)
call("open_tree", (428, 428), -100, text(b"/"), 0)
call("setns", (308, 268), 0, 0)
call("chroot", (161, 51), text(b"/"))
call("keyctl", (250, 219), 0, -3, 0)
call("add_key", (248, 217), text(b"user"), text(b"x"), text(b"y"), 1, -3)
call("bpf", (321, 280), 0, 0, 0)
call("userfaultfd", (323, 282), 1)
call("io_uring_setup", (425, 425), 1, 0)
call("perf_event_open", (298, 241), 0, 0, -1, -1, 0)
call("name_to_handle_at", (303, 264), -100, text(b"/"), 0, 0, 0)
call("process_vm_readv", (310, 270), os.getppid(), 0, 0, 0, 0, 0)
call("kexec_load", (246, 104), 0, 0, 0, 0)
call("init_module", (175, 105), 0, 0, text(b""))
call("ptrace(seize)", (101, 117), 0x4206, 1, 0, 0)
call("ioctl(TIOCSTI)", (16, 29), 0, 0x5412, text(b"x"))
call("ioctl(TIOCSTI, with a high bit)", (16, 29), 0, 0x5412 | 1 << 32, text(b"x"))
for name, family, kind, protocol in (
    ("vsock", 40, 1, 0), ("packet", 17, 3, 0), ("alg", 38, 5, 0), ("bluetooth", 31, 3, 1),
    ("xdp", 44, 3, 0), ("raw", 2, 3, 1), ("raw6", 10, 3, 58),
):
    tried(name, lambda: socket.socket(family, kind, protocol).close())
print(json.dumps(said))
"""

ORDINARY = r"""
set -e
cd "$(mktemp -d)"
git init -q . && git config user.email a@b && git config user.name a
echo one >file && git add file && git commit -qm one && git log --oneline | grep -q one
python3 - <<'END'
import asyncio, multiprocessing, os, socket, subprocess, sqlite3, tempfile, threading, time
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
async def main():
    done = await asyncio.create_subprocess_exec("true")
    assert await done.wait() == 0
asyncio.run(main())
thread = threading.Thread(target=time.sleep, args=(0.01,)); thread.start(); thread.join()
near, far = socket.socketpair(); near.send(b"x"); assert far.recv(1) == b"x"
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname())
socket.if_nameindex()
sqlite3.connect("db").execute("create table t (x)")
with tempfile.NamedTemporaryFile() as file: os.utime(file.name, (1, 1)); os.truncate(file.name, 5)
assert os.openpty() and os.memfd_create("x") and os.pidfd_open(os.getpid())
END
for program in node gcc go java rustc perl; do
    if command -v $program >/dev/null; then case $program in
        node) node -e 'require("fs").writeFileSync("x", "y"); new Worker' 2>/dev/null || node -e 1;;
        gcc) echo 'int main(void) { return 0; }' >a.c && gcc a.c -o a && ./a;;
        go) go version;; java) java -version;; rustc) rustc --version;; perl) perl -e 1;;
    esac; fi
done
echo fine
"""


def attacked(said: str) -> dict[str, str]:
    found = json.loads(said)
    assert isinstance(found, dict) and found
    return found


def test_what_fails_on_the_overlay_fails_in_a_container(service: Service, tmp_path: Path) -> None:
    with podbot.sandbox.open("overlay", target=tmp_path, discard=True) as overlay:
        there = attacked(overlay.exec(["python3", "-c", ATTACKS]).check().stdout)
    with podbot.sandbox.open("container", engine=service.url, image=service.image) as sandbox:
        here = attacked(sandbox.exec(["python3", "-c", ATTACKS]).check().stdout)
        (promise,) = (each for each in sandbox.guarantees if each.name == "system_calls")
        ordinary = sandbox.exec(["sh", "-c", ORDINARY], timeout=60)

    assert "DONE" not in here.values()
    assert here == there
    assert here["vsock"] == "EAFNOSUPPORT" and here["unshare(user, net)"] == "EPERM"
    assert promise.enforced and "as on the overlay" in promise.by
    assert ordinary.stdout.endswith("fine\n"), ordinary.stderr


def test_an_agents_root_fails_at_it_too_and_does_its_work(service: Service) -> None:
    profile = replace(agent_profile(), network="none")
    with connect(service.url) as engine:
        spec = ContainerSpec(service.image, ("sleep", "600"), profile=profile)
        container = engine.containers.create(spec).id
        try:
            engine.containers.start(container)
            engine.containers.verify(container, spec)
            said = engine.execs.run(container, ExecSpec(("python3", "-c", ATTACKS)))
            ordinary = engine.execs.run(container, ExecSpec(("sh", "-c", ORDINARY)))
            packages = engine.execs.run(
                container, ExecSpec(("sh", "-c", "dpkg --configure -a && apt-get check"))
            )
        finally:
            engine.containers.remove(container)
    found = attacked(said.stdout.decode())
    # Root of a container may ping; its other attacks fail by the filter, not by a capability.
    assert {name for name, what in found.items() if what == "DONE"} <= {"raw", "raw6"}
    assert found["mount"] == found["chroot"] == found["unshare(user, net)"] == "EPERM"
    assert found["packet"] == found["vsock"] == "EAFNOSUPPORT"
    assert ordinary.stdout.endswith(b"fine\n"), ordinary.stderr
    assert packages.exit_code == 0, packages.stderr


def test_nested_containers_get_namespaces_and_nothing_else_of_it(service: Service) -> None:
    profile = replace(agent_profile(SandboxSettings(nested="rootless")), network="none", devices=())
    inner = (
        "unshare --user --map-root-user --mount --net sh -c "
        '\'mount -t tmpfs none /mnt && echo mounted; exec python3 -c "$1"\' sh "$1"'
    )
    with connect(service.url) as engine:
        spec = ContainerSpec(service.image, ("sleep", "600"), profile=profile)
        container = engine.containers.create(spec).id
        try:
            engine.containers.start(container)
            engine.containers.verify(container, spec)
            done = engine.execs.run(container, ExecSpec(("sh", "-c", inner, "sh", ATTACKS)))
        finally:
            engine.containers.remove(container)
    mounted, _, said = done.stdout.decode().partition("\n")
    found = attacked(said)
    assert mounted == "mounted", done.stderr
    assert found["keyctl"] == errno.errorcode[errno.ENOSYS]
    for name in ("add_key", "bpf", "userfaultfd", "io_uring_setup", "kexec_load"):
        assert found[name] == errno.errorcode[errno.EPERM], name
    assert found["vsock"] == found["packet"] == "EAFNOSUPPORT"


def test_a_container_under_a_wider_filter_is_found_out(service: Service) -> None:
    wider = ContainerSpec(
        service.image, ("sleep", "600"), profile=replace(TOOLS, seccomp="default")
    )
    asked = ContainerSpec(service.image, ("sleep", "600"))
    with connect(service.url) as engine:
        container = engine.containers.create(wider).id
        try:
            engine.containers.start(container)
            engine.containers.verify(container, wider)
            with pytest.raises(ContainerError) as caught:
                engine.containers.verify(container, asked)
        finally:
            engine.containers.remove(container)
    assert caught.value.kind is Kind.PROFILE_MISMATCH
    assert "seccomp: wanted podbot's filter" in caught.value.message


def test_the_engines_own_filter_is_had_by_choice_and_said(service: Service) -> None:
    with podbot.sandbox.open(
        "container", engine=service.url, image=service.image, seccomp="engine"
    ) as sandbox:
        (promise,) = (each for each in sandbox.guarantees if each.name == "system_calls")
        assert not promise.enforced and "asked for" in promise.by
        status = sandbox.exec(["cat", "/proc/self/status"]).stdout
    assert "Seccomp:\t2" in status
