"""Attacks on the host's files: deleting everything, leaving through links, hijacking the guest."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from inside import PYTHON, fill, inside, new_folder, shell, unchanged

from podbot.errors import SandboxError
from podbot.sandbox import Policy, layers
from podbot.sandbox.overlay.launcher import OverlaySandbox

OPEN = Policy(hide_by_rule=False)
"""For what asks of a folder in root's own home, while the home is elsewhere: it would be closed."""


def test_deleting_everything_leaves_the_host_as_it_was(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, beside = new_folder(), new_folder(os.path.expanduser("~"))
    monkeypatch.setenv("HOME", str(home))
    fill(home)
    fill(beside)
    try:
        with (
            unchanged(target, home, beside),
            OverlaySandbox(target, policy=OPEN, discard=True) as sandbox,
        ):
            shell(sandbox, f"rm -rf {target}/* {target}/.[!.]* ~/* {beside}/*")
            assert shell(sandbox, f"ls -A {target} {home} | grep -v :").split() == []
            assert shell(sandbox, f"cat {beside}/README.md") == "read me\n"
            # Deletes what it may of the whole tree: own user's files included.
            shell(sandbox, f"rm -rf --no-preserve-root {beside} {home} {target} /tmp/* /dev/* /run")
    finally:
        layers.remove(home)
        layers.remove(beside)


def test_rm_rf_of_the_root_deletes_nothing_of_the_host(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With the home elsewhere, this folder is like any other of the host that is the caller's.
    beside = fill(new_folder(os.path.expanduser("~")))
    home = new_folder()
    monkeypatch.setenv("HOME", str(home))
    try:
        with unchanged(target, beside), OverlaySandbox(target, discard=True) as sandbox:
            sandbox.exec(["rm", "-rf", "--no-preserve-root", str(beside), "/"], timeout=1)
    finally:
        layers.remove(home)
        layers.remove(beside)


def test_changes_of_every_kind_stay_inside(target: Path) -> None:
    script = """
echo changed > README.md; echo more >> src/app.py; chmod 600 run.sh; mv src moved
ln README.md hard; ln -sf /etc/passwd link; mkdir new; touch -d 2001-01-01 run.sh
truncate -s 0 moved/app.py; mkfifo fifo; chmod 777 .; setfattr -n user.x -v y README.md
rm -rf moved; mkdir moved; cp -a README.md moved/
"""
    with unchanged(target), OverlaySandbox(target, discard=True) as sandbox:
        shell(sandbox, script)
        assert sandbox.read("moved/README.md") == b"changed\n"


def test_a_writable_mapping_of_a_file_does_not_reach_the_host(target: Path) -> None:
    code = """
import mmap
os.chdir(sys.argv[1])
with open("README.md", "r+b") as file, mmap.mmap(file.fileno(), 0) as page:
    page[:4] = b"EVIL"
    page.flush()
with open("src/app.py", "rb") as early:
    with open("src/app.py", "r+b") as late:
        late.write(b"EVIL")
        os.fsync(late.fileno())
tell(open("README.md").read())
"""
    with unchanged(target), OverlaySandbox(target, discard=True) as sandbox:
        assert inside(sandbox, code, str(target)).startswith("EVIL")


def test_nothing_but_target_home_and_private_folders_can_be_written(
    shared: OverlaySandbox, shared_target: Path
) -> None:
    code = """
allowed = tuple(sys.argv[1:]) + ("/tmp", "/var/tmp", "/run", "/dev", "/proc")
found = []
for folder, folders, _ in os.walk("/"):
    if folder.startswith(allowed) or folder.count("/") > 3:
        folders.clear()
        continue
    try:
        os.close(os.open(folder + "/.podbot-escape", os.O_CREAT | os.O_WRONLY))
        found.append(folder)
    except OSError:
        pass
tell(found)
"""
    assert inside(shared, code, str(shared_target), os.path.realpath(os.path.expanduser("~"))) == []


def test_files_open_outside_cannot_be_changed_by_way_of_proc(shared: OverlaySandbox) -> None:
    code = """
fd = os.open("/etc/passwd", os.O_RDONLY)
link = f"/proc/self/fd/{fd}"
tell([attempt(os.open, link, os.O_RDWR), attempt(os.truncate, link, 0),
      attempt(os.chmod, link, 0o777), attempt(os.utime, link), attempt(os.chown, link, -1, -1),
      attempt(os.setxattr, link, "user.x", b"y")])
"""
    assert set(inside(shared, code)) <= {"EROFS", "EACCES", "EPERM"}


def test_a_link_in_the_target_leads_a_file_verb_nowhere_new(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, outside = new_folder(), new_folder(os.path.expanduser("~"))
    monkeypatch.setenv("HOME", str(home))
    (home / ".ssh").mkdir()
    (home / ".ssh/id_rsa").write_text("planted-secret")
    (outside / "file").write_text("outside")
    (target / "out").symlink_to(outside)
    (target / "key").symlink_to(home / ".ssh/id_rsa")
    (target / "magic").symlink_to("/proc/self/root")
    (target / "mine").symlink_to("/proc/1/fd/3")
    try:
        with (
            unchanged(outside, home, target),
            OverlaySandbox(target, policy=OPEN, discard=True) as sandbox,
        ):
            assert sandbox.read("out/file") == b"outside"  # the sandbox may read it anyway
            for action in (
                lambda: sandbox.write("out/file", b"x"),
                lambda: sandbox.write("out/new", b"x"),
                lambda: sandbox.append("out/file", b"x"),
                lambda: sandbox.edit("out/file", "outside", "x"),
                lambda: sandbox.remove("out/file"),
                lambda: sandbox.move("out/file", "stolen"),
                lambda: sandbox.mkdir("out/new"),
                lambda: sandbox.symlink("out/link", "x"),
                lambda: sandbox.upload(target / "README.md", "out/new"),
                lambda: sandbox.read("key"),
                lambda: sandbox.read("mine"),
                lambda: sandbox.write("mine", b"x"),
            ):
                with pytest.raises(SandboxError):
                    action()
            sandbox.remove("out")
            assert not sandbox.exists("out")
    finally:
        layers.remove(home)
        layers.remove(outside)


MODULES = ("json", "shutil", "os", "re", "struct", "socket", "ctypes", "linecache", "traceback",
           "fcntl", "sitecustomize", "_ast")  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_a_module_in_the_workspace_does_not_hijack_the_guest_or_the_kernel(
    target: Path, name: str
) -> None:
    (target / f"{name}.py").write_text("open('/tmp/hijacked', 'a').write(__name__)\n")
    (target / "sub").mkdir()
    (target / "sub" / "x.txt").write_text("x")

    with OverlaySandbox(target, discard=True, policy=Policy(python=PYTHON)) as sandbox:
        sandbox.exec(["true"])
        sandbox.move("sub", "other")  # a folder of the lower layer: copied by the guest
        sandbox.grep("x")
        sandbox.glob("**/*")
        assert sandbox.python("1 + 1").value == "2"
        assert "ZeroDivisionError" in (sandbox.python("1 / 0").error or "")
        assert not sandbox.exists("/tmp/hijacked")


def test_a_working_folder_that_went_away_is_an_error_not_the_hosts_folder(target: Path) -> None:
    with unchanged(target), OverlaySandbox(target, discard=True) as sandbox:
        process = sandbox.spawn(["sh", "-c", "read line; touch made; pwd"], cwd="src")
        sandbox.remove("src", recursive=True)
        process.write("go\n")
        process.close_stdin()
        process.wait(60)
        with pytest.raises(SandboxError) as caught:
            sandbox.exec(["pwd"], cwd="src")

    assert caught.value.kind == "bad_cwd"


def test_the_callers_own_working_folder_may_be_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    gone, target = new_folder(), new_folder()
    before = os.getcwd()
    os.chdir(gone)
    try:
        gone.rmdir()
        with OverlaySandbox(target, discard=True) as sandbox:
            assert sandbox.exec(["pwd"]).stdout == f"{target}\n"
            sandbox.write("made", b"x")
        assert list(target.iterdir()) == []
    finally:
        os.chdir(before)
        layers.remove(target)


def test_setuid_bits_made_inside_are_worth_nothing_inside(sandbox: OverlaySandbox) -> None:
    shell(sandbox, "cp $(command -v id) own-id; chmod 6755 own-id")

    assert sandbox.exec(["./own-id", "-u"]).stdout.strip() == str(os.getuid())


def test_the_layer_is_nobody_elses_to_read(sandbox: OverlaySandbox, layers_root: Path) -> None:
    assert stat.S_IMODE(layers_root.stat().st_mode) == 0o700
    assert stat.S_IMODE(sandbox.layer.path.stat().st_mode) == 0o700


def test_a_link_in_place_of_a_layer_is_not_followed_when_it_is_removed(target: Path) -> None:
    victim = fill(new_folder())
    try:
        with unchanged(victim):
            with OverlaySandbox(target, discard=True) as sandbox:
                shell(
                    sandbox, f"ln -s {victim} a; ln -s / b; mkdir c; ln -s {victim} c/d; chmod 0 c"
                )
            assert not sandbox.layer.path.exists()
    finally:
        layers.remove(victim)


def test_layers_that_vanish_do_not_end_the_sandboxes_that_live(
    target: Path, own_layers: Path, sandbox: OverlaySandbox
) -> None:
    with OverlaySandbox(target, discard=True) as other:
        other.write("x", b"x")
        layers.remove(own_layers)
    time.sleep(0.1)

    assert sandbox.exec(["echo", "alive"]).stdout == "alive\n"
