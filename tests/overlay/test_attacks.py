"""Attacks on the sandbox's walls through the kernel: mounts, namespaces, calls, privileges.

Each is really tried from inside. The suite runs as root and as an ordinary user, and so do they.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from inside import MACHINE, inside, shell, unchanged

from podbot.sandbox import Policy
from podbot.sandbox.overlay.launcher import OverlaySandbox

COLUMN = ("x86_64", "aarch64").index(MACHINE) if MACHINE in ("x86_64", "aarch64") else 0

# Numbers from the kernel's own tables (x86_64, aarch64), not from the code under test.
ABSENT = {"statmount": (457, 457), "listmount": (458, 458), "clone3": (435, 435)}
DENIED = {
    "memfd_secret": (447, 447), "fanotify_mark": (301, 263), "set_mempolicy_home_node": (450, 450),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "setns": (308, 268),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262), "syslog": (103, 116), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "quotactl": (179, 60),
}  # fmt: skip
CLONE = (56, 220)[COLUMN]
UNSHARE = (272, 97)[COLUMN]
PTRACE = (101, 117)[COLUMN]

NAMESPACES = {
    "mnt": 0x00020000, "cgroup": 0x02000000, "uts": 0x04000000, "ipc": 0x08000000,
    "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000,
}  # fmt: skip


@pytest.mark.parametrize("name", DENIED)
def test_a_call_no_tool_needs_is_refused_before_its_arguments_are_looked_at(
    shared: OverlaySandbox, name: str
) -> None:
    number = DENIED[name][COLUMN]

    assert inside(shared, f"tell(call({number}, 0, 0, 0, 0, 0, 0))") == "EPERM"


@pytest.mark.skipif(MACHINE != "x86_64", reason="other machines never had them")
@pytest.mark.parametrize(("name", "number"), [("sysfs", 139), ("ustat", 136)])
def test_old_calls_about_file_systems_are_refused(
    shared: OverlaySandbox, name: str, number: int
) -> None:
    assert inside(shared, f"tell(call({number}, 3, 0, 0))") == "EPERM", name


@pytest.mark.parametrize("name", ABSENT)
def test_a_call_that_tools_can_do_without_does_not_exist(shared: OverlaySandbox, name: str) -> None:
    number = ABSENT[name][COLUMN]
    assert inside(shared, f"tell(call({number}, 0, 0, 0, 0, 0, 0))") == "ENOSYS"


def test_only_a_harmless_personality_can_be_taken_on(shared: OverlaySandbox) -> None:
    code = f"""
personality = {(135, 92)[COLUMN]}
ask = lambda value: call(personality, ctypes.c_ulong(value))
tell([[ask(value) for value in (0x400000, 0x100000, 0x200000, 0x440000, 1, 6, 0x4000000)],
      [ask(value) for value in (0xFFFFFFFF, 0, 8, 0x40000, 0x20000, 0)]])
"""
    refused, allowed = inside(shared, code)

    assert set(refused) == {"EPERM"}
    assert set(allowed) == {"worked"}


def test_no_line_discipline_can_be_set(shared: OverlaySandbox) -> None:
    code = """
import pty
near, far = pty.openpty()
tell([call(int(sys.argv[1]), fd, 0x5423, ctypes.byref(ctypes.c_int(number)))
      for fd in (near, far) for number in (0, 2, 21)])
"""
    assert set(inside(shared, code, str((16, 29)[COLUMN]))) == {"EPERM"}


def test_of_netlink_only_addresses_and_routes_can_be_asked_for(shared: OverlaySandbox) -> None:
    code = """
tell([attempt(socket.socket, socket.AF_NETLINK, kind, number)
      for number in range(23) for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM)])
"""
    found = inside(shared, code)

    assert set(found[:2]) == {"worked"}
    assert set(found[2:]) == {"EAFNOSUPPORT"}


MAIN = "int main(void) { return 42; }"
DEBUG = "gdb -q -batch -ex 'break main' -ex run -ex continue ./g 2>&1 | grep -o 'code 052'"
PROGRAMS = {
    "node": ("m.js", "console.log(42)", "node m.js"),
    "go": ("m.go", "package main\nfunc main() { println(42) }", "go run m.go 2>&1"),
    "java": ("M.java", "", "java -version 2>&1 | grep -o -i -m 1 openjdk"),
    "rustc": ("m.rs", 'fn main() { println!("42") }', "rustc m.rs && ./m"),
    "gcc": ("m.c", MAIN, "gcc -g m.c -o c && ./c; echo $?"),
    "gdb": ("g.c", MAIN, f"gcc -g g.c -o g && {DEBUG}"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_compilers_runtimes_and_a_debugger_of_its_own_children_work(
    target: Path, name: str
) -> None:
    # The tests have a home of their own; a toolchain may lie in the real one.
    toolchains = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".rustup"
    policy = Policy(environment={"RUSTUP_HOME": str(toolchains)}, hide_by_rule=False)
    with OverlaySandbox(target, policy=policy, discard=True) as sandbox:
        if not sandbox.exec(["sh", "-c", f"{name} --version || {name} version"]).ok:
            pytest.skip(f"{name} is not installed")
        file, text, script = PROGRAMS[name]
        sandbox.write(file, text.encode())
        found = sandbox.exec(["sh", "-c", script], timeout=300)
    assert found.stdout.lower() in ("42\n", "code 052\n", "openjdk\n"), found


def test_the_overlay_cannot_be_unmounted(shared: OverlaySandbox, shared_target: Path) -> None:
    code = """
places = [sys.argv[1], "/", "/proc", "/tmp", "/dev", os.environ["HOME"]]
umount = int(sys.argv[2])
tell([call(umount, place.encode(), flags) for place in places for flags in (0, 2, 8)])
"""
    number = str(DENIED["umount2"][COLUMN])

    with unchanged(shared_target):
        assert set(inside(shared, code, str(shared_target), number)) == {"EPERM"}
        shell(shared, f"umount {shared_target}; umount -l {shared_target}; touch {shared_target}/x")


def test_nothing_can_be_mounted_remounted_or_moved(
    shared: OverlaySandbox, shared_target: Path
) -> None:
    code = """
def mount(source, place, kind, flags):
    return call(int(sys.argv[2]), source, place, kind, ctypes.c_ulong(flags), None)
target = sys.argv[1].encode()
tell([
    mount(b"none", b"/", None, 0x20),                     # remount writable
    mount(b"none", b"/", None, 0x20 | 0x1000),            # remount this bind writable
    mount(b"none", target, None, 0x20),
    mount(b"none", b"/proc", None, 0x20 | 0x1000),
    mount(b"/", b"/tmp", None, 0x1000),                   # bind
    mount(b"/", b"/tmp", None, 0x1000 | 0x4000),
    mount(b"/tmp", target, None, 0x2000),                 # move
    mount(b"tmpfs", b"/tmp", b"tmpfs", 0),
    mount(b"proc", b"/tmp", b"proc", 0),
    mount(b"none", b"/", None, 0x100000 | 0x4000),        # share
])
"""
    number = str(DENIED["mount"][COLUMN])

    assert set(inside(shared, code, str(shared_target), number)) == {"EPERM"}


def test_the_newer_mount_calls_are_refused_with_sensible_arguments_too(
    shared: OverlaySandbox, shared_target: Path
) -> None:
    code = """
numbers = json.loads(sys.argv[1])
target = sys.argv[2].encode()
tell([
    call(numbers["fsopen"], b"tmpfs", 0),
    call(numbers["fsopen"], b"overlay", 0),
    call(numbers["fspick"], -100, target, 0),
    call(numbers["open_tree"], -100, b"/", ctypes.c_uint(1)),
    call(numbers["open_tree"], -100, target, ctypes.c_uint(1 | 0x8000)),
    call(numbers["move_mount"], -100, target, -100, b"/tmp", 0),
    call(numbers["mount_setattr"], -100, b"/", ctypes.c_uint(0x8000),
         struct.pack("QQQQ", 0, 1, 0, 0), ctypes.c_size_t(32)),
])
"""
    numbers = json.dumps({name: pair[COLUMN] for name, pair in DENIED.items()})

    assert set(inside(shared, code, numbers, str(shared_target))) == {"EPERM"}


def test_the_root_cannot_be_changed(shared: OverlaySandbox) -> None:
    code = f"""
os.makedirs("/tmp/new/old", exist_ok=True)
tell([attempt(os.chroot, "/tmp"), attempt(os.chroot, "/"),
      call({DENIED["pivot_root"][COLUMN]}, b"/tmp/new", b"/tmp/new/old"),
      call({DENIED["pivot_root"][COLUMN]}, b".", b".")])
"""
    assert set(inside(shared, code)) == {"EPERM"}


@pytest.mark.parametrize("name", NAMESPACES)
def test_no_new_namespace_can_be_made(shared: OverlaySandbox, name: str) -> None:
    flag = NAMESPACES[name]
    code = f"""
def cloned(flags):
    pid = libc.syscall(ctypes.c_long({CLONE}), ctypes.c_ulong(flags), None, None, None, None)
    if pid == 0:
        os._exit(0)
    return errno.errorcode[ctypes.get_errno()] if pid < 0 else "worked"
user = {NAMESPACES["user"]}
tell([call({UNSHARE}, {flag}), call({UNSHARE}, {flag} | user),
      cloned({flag} | signal.SIGCHLD), cloned({flag} | user | signal.SIGCHLD)])
"""
    assert set(inside(shared, code)) == {"EPERM"}


def test_a_time_namespace_cannot_be_made_either(shared: OverlaySandbox) -> None:
    assert inside(shared, f"tell(call({UNSHARE}, 0x80))") == "EPERM"


def test_clone3_does_not_exist_so_that_its_flags_need_not_be_read(shared: OverlaySandbox) -> None:
    code = """
flags = struct.pack("QQQQQQQQ", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
tell(call(435, flags, ctypes.c_size_t(len(flags))))
"""
    assert inside(shared, code) == "ENOSYS"


def test_no_namespace_can_be_joined(shared: OverlaySandbox) -> None:
    code = f"""
found = []
for pid in ("self", "1"):
    for name in ("user", "mnt", "net", "pid", "ipc", "uts"):
        try:
            fd = os.open(f"/proc/{{pid}}/ns/{{name}}", os.O_RDONLY)
        except OSError as error:
            found.append(errno.errorcode[error.errno])
        else:
            found.append(call({DENIED["setns"][COLUMN]}, fd, 0))
fd = os.pidfd_open(os.getppid() or 1)
found.append(call({DENIED["setns"][COLUMN]}, fd, 0x20000))
tell(found)
"""
    assert set(inside(shared, code)) <= {"EPERM", "EACCES"}


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has the x32 and 32-bit calls")
def test_the_calls_of_x32_do_not_exist(shared: OverlaySandbox) -> None:
    x32 = 0x40000000
    code = f"tell([call({x32} + n, 0, 0, 0, 0, 0) for n in (39, 165, 166, 272, 321, 425)])"

    assert set(inside(shared, code)) == {"ENOSYS"}


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has the x32 and 32-bit calls")
def test_a_32_bit_call_kills_who_makes_it(shared: OverlaySandbox) -> None:
    # mov eax, 20 (getpid of i386); int 0x80; ret
    code = """
import mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
pid = os.fork()
if pid == 0:
    ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    os._exit(0)
tell(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    # SIGSYS from the filter; SIGSEGV where the kernel is built without 32-bit calls.
    assert inside(shared, code) in (-31, -11)


def test_no_capability_is_left_in_any_set(shared: OverlaySandbox) -> None:
    status = shared.exec(["cat", "/proc/self/status"]).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)

    assert {fields[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"


def test_the_sandbox_runs_as_the_caller_and_can_become_nobody_else(shared: OverlaySandbox) -> None:
    code = """
found = [attempt(os.setuid, 12345), attempt(os.setgid, 12345), attempt(os.setgroups, [12345]),
         attempt(os.setresuid, 12345, 12345, 12345)]
tell([os.getuid(), os.geteuid(), os.getgid(), found])
"""
    uid, euid, gid, found = inside(shared, code)

    assert (uid, euid, gid) == (os.getuid(), os.geteuid(), os.getgid())
    assert set(found) <= {"EPERM", "EINVAL"}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a setuid root program")
def test_a_setuid_program_gains_nothing(folder: Path) -> None:
    helper = folder / "helper"
    shutil.copy2(shutil.which("id") or "/usr/bin/id", helper)
    os.chown(helper, 12345, 12345)
    helper.chmod(0o6755)

    with OverlaySandbox(folder, discard=True) as sandbox:
        assert sandbox.exec([str(helper), "-u"]).stdout.strip() == str(os.getuid())
        sandbox.exec(["chmod", "6755", str(helper)])
        assert sandbox.exec([str(helper), "-u"]).stdout.strip() == str(os.getuid())


@pytest.mark.parametrize("program", ["su", "sudo", "passwd", "mount"])
def test_the_hosts_setuid_programs_gain_nothing(shared: OverlaySandbox, program: str) -> None:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    mounts = shell(
        shared,
        f"grep -c . /proc/self/mountinfo; stat -f -c %T {path}; findmnt -no "
        f"OPTIONS -T {path} 2>/dev/null || grep ' / ' /proc/self/mountinfo",
    )

    assert "nosuid" in mounts


def test_device_nodes_cannot_be_made(shared: OverlaySandbox, shared_target: Path) -> None:
    code = """
import stat
found = []
for folder in (sys.argv[1], "/tmp", "/dev", "/dev/shm", os.environ["HOME"]):
    for kind, number in ((stat.S_IFCHR, (1, 1)), (stat.S_IFBLK, (254, 0)), (stat.S_IFCHR, (1, 3))):
        found.append(attempt(os.mknod, folder + "/node", kind | 0o666, os.makedev(*number)))
tell(found)
"""
    assert set(inside(shared, code, str(shared_target))) <= {"EPERM", "EACCES"}


def test_dev_holds_only_harmless_devices(shared: OverlaySandbox) -> None:
    names = set(os.path.basename(entry.path) for entry in shared.list("/dev"))

    assert names == {
        "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
        "urandom", "zero",
    }  # fmt: skip


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device node")
def test_a_device_node_somewhere_in_the_hosts_tree_cannot_be_opened() -> None:
    # A chroot or an unpacked image may hold the disk itself; /dev/zero stands in for it.
    with tempfile.TemporaryDirectory(dir=Path.home()) as place, \
            tempfile.TemporaryDirectory(dir="/var/tmp") as target:  # fmt: skip
        node = Path(place, "node")
        below = Path(target, "node")
        for path in (node, below):
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))

        with OverlaySandbox(target, discard=True) as sandbox:
            code = "tell([attempt(open, path, 'rb') for path in sys.argv[1:]])"
            assert inside(sandbox, code, str(node), str(below)) == ["EACCES", "EACCES"]


def test_kernel_settings_cannot_be_written(shared: OverlaySandbox) -> None:
    code = """
import glob
paths = [
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory",
    "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/pid_max",
    "/proc/sys/user/max_user_namespaces", "/proc/sysrq-trigger", "/proc/self/uid_map",
    "/proc/self/setgroups", "/proc/1/oom_score_adj", "/proc/irq/default_smp_affinity",
    "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled",
    "/proc/self/attr/current", "/proc/mtrr", "/proc/bus/pci/00/00.0", "/proc/acpi/wakeup",
]
paths += glob.glob("/sys/fs/cgroup/**/cgroup.procs", recursive=True)[:20]
paths += glob.glob("/sys/fs/cgroup/**/release_agent", recursive=True)[:20]
paths += glob.glob("/sys/fs/cgroup/**/notify_on_release", recursive=True)[:20]
paths += glob.glob("/sys/class/*/*/uevent")[:20]
tell({path: attempt(os.open, path, os.O_WRONLY) for path in paths})
"""
    found = inside(shared, code)

    assert set(found.values()) <= {"EROFS", "EACCES", "EPERM", "ENOENT"}, found
    assert found["/proc/sys/kernel/core_pattern"] != "ENOENT"


def test_control_groups_cannot_be_made(shared: OverlaySandbox) -> None:
    code = """
import glob
tell([attempt(os.mkdir, folder + "/escape") for folder in glob.glob("/sys/fs/cgroup/*/")]
     + [attempt(os.mkdir, "/sys/fs/cgroup/escape")])
"""
    assert set(inside(shared, code)) <= {"EROFS", "EACCES", "EPERM", "ENOENT"}


def test_kernel_memory_cannot_be_read(shared: OverlaySandbox) -> None:
    paths = ["/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/kmsg", "/proc/kmsg", "/dev/kvm",
             "/dev/fuse", "/dev/net/tun", "/dev/vda", "/dev/sda", "/dev/loop-control"]  # fmt: skip
    code = "tell({path: attempt(os.open, path, os.O_RDONLY) for path in sys.argv[1:]})"

    found = inside(shared, code, *paths)

    assert set(found.values()) <= {"EACCES", "EPERM", "ENOENT"}, found


def test_nobody_can_type_into_a_terminal(shared: OverlaySandbox) -> None:
    code = """
import fcntl
ends, requests = os.openpty(), (0x5412, 0x541C)
tell([attempt(fcntl.ioctl, fd, request, b"x") for fd in ends for request in requests]
     + [call(int(sys.argv[1]), ends[1], ctypes.c_ulong(0x100005412), b"x")])
"""
    ioctl = str((16, 29)[COLUMN])

    assert set(inside(shared, code, ioctl)) == {"EPERM"}


FAMILIES = {"packet": 17, "bluetooth": 31, "alg": 38, "vsock": 40, "xdp": 44}


@pytest.mark.parametrize("name", FAMILIES)
def test_odd_socket_families_do_not_exist(shared: OverlaySandbox, name: str) -> None:
    family = FAMILIES[name]
    code = f"""
tell([attempt(socket.socket, {family}, kind) for kind in (1, 2, 3, 5)]
     + [call({(53, 199)[COLUMN]}, {family}, 1, 0, (ctypes.c_int * 2)())])
"""
    assert set(inside(shared, code)) == {"EAFNOSUPPORT"}


def test_raw_sockets_are_refused(shared: OverlaySandbox) -> None:
    code = """
tell([attempt(socket.socket, family, socket.SOCK_RAW, 1)
      for family in (socket.AF_INET, socket.AF_INET6)])
"""
    found = inside(shared, code)

    assert found[0] == "EPERM"
    assert found[1] in ("EPERM", "EAFNOSUPPORT")  # a host may be without version 6
