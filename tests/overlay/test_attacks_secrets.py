"""Attacks on what the policy hides: secrets on disk, other sandboxes, variables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from inside import fill, inside, new_folder, removed, shell, until

from podbot.errors import SandboxError
from podbot.sandbox import DEFAULT_ENVIRONMENT, DEFAULT_HIDDEN, Policy, layers
from podbot.sandbox.overlay.launcher import OverlaySandbox

SECRET = "planted-secret"
IN_HOME = [path[2:] for path in DEFAULT_HIDDEN if path.startswith("~/")]
OUTSIDE = [path for path in DEFAULT_HIDDEN if not path.startswith("~/")]

TRY_ALL = """
found = {}
for path in sys.argv[1:]:
    def read():
        with open(path) as file:
            file.read(1)
    found[path] = [attempt(action, path) for action in (os.lstat, os.listdir, os.readlink)]
    found[path].append(attempt(read))
tell(found)
"""


def plant(home: Path, name: str, as_folder: bool) -> Path:
    """A secret at a hidden place; gives the file that holds it."""
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if as_folder:
        path.mkdir()
        path = path / "token"
    path.write_text(SECRET)
    return path


@pytest.fixture(params=["/var/tmp", "~"], ids=["private", "plain"])
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of the test's own, below a folder that is private inside and below another."""
    parent = os.path.expanduser(request.param)
    if not os.access(parent, os.W_OK):
        pytest.skip(f"{parent} is not writable")
    path = new_folder(parent)
    monkeypatch.setenv("HOME", str(path))
    yield path
    layers.remove(path)


@pytest.mark.parametrize("as_folders", [False, True], ids=["files", "folders"])
@pytest.mark.parametrize("is_target", [False, True], ids=["home", "target"])
def test_every_default_secret_of_the_home_is_gone(
    home: Path, target: Path, as_folders: bool, is_target: bool
) -> None:
    paths = [plant(home, name, as_folders) for name in IN_HOME]
    (home / "seen.txt").write_text("may be seen")

    with OverlaySandbox(home if is_target else target, discard=True) as sandbox:
        found = inside(sandbox, TRY_ALL, *map(str, paths), *(str(home / n) for n in IN_HOME))
        text = shell(sandbox, f"cat {home}/seen.txt; grep -r {SECRET} {home} /var/tmp /tmp /run")

    assert {error for errors in found.values() for error in errors} <= {"ENOENT", "ENOTDIR"}, found
    assert text == "may be seen"


def test_every_hidden_path_is_gone_when_only_its_folder_existed(home: Path, target: Path) -> None:
    for name in IN_HOME:
        (home / name).parent.mkdir(parents=True, exist_ok=True)

    with OverlaySandbox(target, discard=True) as sandbox:
        for name in IN_HOME:
            (home / name).write_text(SECRET)
        found = inside(sandbox, TRY_ALL, *(str(home / name) for name in IN_HOME))
        text = shell(sandbox, f"grep -r {SECRET} {home}")

    assert {error for errors in found.values() for error in errors} <= {"ENOENT", "ENOTDIR"}, found
    assert text == ""


def test_a_secret_that_appears_later_is_gone_too(home: Path, target: Path) -> None:
    with OverlaySandbox(target, discard=True) as sandbox:
        paths = [plant(home, name, index % 2 == 0) for index, name in enumerate(IN_HOME)]
        found = inside(sandbox, TRY_ALL, *map(str, paths))
        text = shell(sandbox, f"grep -r {SECRET} {home}")

    assert {error for errors in found.values() for error in errors} <= {"ENOENT", "ENOTDIR"}, found
    assert text == ""


def test_tricks_with_names_do_not_bring_a_secret_back(home: Path, target: Path) -> None:
    plant(home, ".ssh/id_rsa", False)
    plant(home, ".config/gh/hosts.yml", False)
    (home / ".config/other").mkdir()
    script = f"""
cd {home}
ln .ssh/id_rsa stolen1
ln -s .ssh/id_rsa stolen2; cat stolen2
ln -s {home} {target}/home; cat {target}/home/.ssh/id_rsa
cat .config/../.ssh/id_rsa /proc/self/cwd/.ssh/id_rsa /proc/self/root{home}/.ssh/id_rsa
cat .//.ssh/./id_rsa
mv .config moved; cat moved/gh/hosts.yml
cp -a .config copied; cat copied/gh/hosts.yml
rm -rf .config; mkdir .config; cat .config/gh/hosts.yml
mkdir .ssh && cat .ssh/id_rsa; rmdir .ssh; cat .ssh/id_rsa
mv {home}/.ssh {target}/; mv -T {home} {target}/all; cat {target}/all/.ssh/id_rsa
cp -a {home}/. {target}/everything; grep -r {SECRET} {target} {home}
rmdir .ssh; unlink .ssh; cat .ssh/id_rsa
tar -C / -cf - {home} 2>/dev/null | grep -a {SECRET}
find {home} -name id_rsa -exec cat {{}} +
"""
    with OverlaySandbox(target, discard=True) as sandbox:
        assert SECRET not in shell(sandbox, script)
        assert (home / ".ssh/id_rsa").read_text() == SECRET
        assert (home / ".config/gh/hosts.yml").read_text() == SECRET


def test_file_verbs_do_not_find_a_secret_either(home: Path, target: Path) -> None:
    path = plant(home, ".ssh/id_rsa", False)
    (target / "way").symlink_to(path)

    with OverlaySandbox(target, discard=True) as sandbox:
        for name in (str(path), "way", f"../{home.name}/.ssh/id_rsa"):
            with pytest.raises(SandboxError):
                sandbox.read(name)
        assert sandbox.grep(SECRET, str(home)).matches == ()
        assert sandbox.glob("**/id_rsa", str(home)) == []
        with pytest.raises(SandboxError):
            sandbox.upload(str(target / "README.md"), str(path) + "/../id_rsa/x")


def test_a_secret_behind_a_link_is_gone_at_its_real_place_too(home: Path, target: Path) -> None:
    real = home / "dotfiles" / "netrc"
    real.parent.mkdir()
    real.write_text(SECRET)
    (home / ".netrc").symlink_to("dotfiles/netrc")
    folder = home / "dotfiles" / "ssh"
    folder.mkdir()
    (folder / "id_rsa").write_text(SECRET)
    (home / ".ssh").symlink_to(folder)
    config = home / "dotfiles" / "config"
    (config / "gh").mkdir(parents=True)
    (config / "gh" / "hosts.yml").write_text(SECRET)
    (home / ".config").symlink_to("dotfiles/config")

    with OverlaySandbox(target, discard=True) as sandbox:
        assert shell(sandbox, f"grep -r {SECRET} {home}") == ""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="file modes hide these from other users")
def test_what_only_root_may_read_is_gone(shared: OverlaySandbox) -> None:
    found = inside(shared, TRY_ALL, *OUTSIDE)

    assert {error for errors in found.values() for error in errors} <= {"ENOENT", "ENOTDIR"}, found
    assert "root:" in shell(shared, "cat /etc/passwd")


def test_what_only_root_may_read_cannot_be_read_by_others_anyway(shared: OverlaySandbox) -> None:
    code = "tell([attempt(open, path, 'rb') for path in sys.argv[1:]])"

    assert set(inside(shared, code, *OUTSIDE)) <= {"ENOENT", "EACCES", "EISDIR"}


def test_a_policy_can_hide_more_and_show_again(home: Path, target: Path) -> None:
    plant(home, ".ssh/id_rsa", False)
    plant(home, ".netrc", False)
    plant(home, "work/plan.txt", False)
    (target / "private").mkdir()
    (target / "private/key").write_text(SECRET)
    policy = Policy(hidden=(*DEFAULT_HIDDEN, "~/work", f"{target}/private"), readable=("~/.ssh",))

    with OverlaySandbox(target, policy=policy, discard=True) as sandbox:
        found = shell(sandbox, f"grep -rl {SECRET} {home} {target}").split()

    assert found == [str(home / ".ssh/id_rsa")]


def test_other_sandboxes_layers_cannot_be_seen(
    shared: OverlaySandbox, target: Path, layers_root: Path
) -> None:
    with OverlaySandbox(target, discard=True) as other:
        other.write("mine.txt", SECRET)
        assert (other.layer.upper(0) / "mine.txt").read_text() == SECRET
        for sandbox in (shared, other):
            text = shell(
                sandbox,
                f"ls -A {layers_root}; cat {other.layer.upper(0)}/mine.txt; "
                f"grep -rs {SECRET} {layers_root}",
            )
            assert text == ""


def test_other_sandboxes_layers_cannot_be_seen_outside_of_private_folders(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = new_folder(os.path.expanduser("~"))
    home = new_folder()
    monkeypatch.setenv("HOME", str(home))  # else the layers would lie below the home's own
    monkeypatch.setenv(layers.ROOT_VARIABLE, str(root))
    try:
        with OverlaySandbox(target, discard=True) as one, OverlaySandbox(target) as two:
            one.write("mine.txt", SECRET)
            script = f"ls -A {root}; grep -rs {SECRET} {root}; touch {root}/x"
            assert shell(one, script) == ""
            assert shell(two, script) == ""
    finally:
        assert until(lambda: removed(root))
        layers.remove(home)


def test_only_the_allowed_variables_arrive(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "ANTHROPIC_API_KEY", "SSH_AUTH_SOCK",
                 "LD_PRELOAD_NOT", "PYTHONSTARTUP", "HISTFILE"):  # fmt: skip
        monkeypatch.setenv(name, SECRET)

    with OverlaySandbox(target, discard=True, policy=Policy(environment={"GIVEN": "1"})) as sandbox:
        found = dict(
            line.split("=", 1) for line in sandbox.exec(["env", "-0"]).stdout.split("\0") if line
        )

    assert set(found) <= {*DEFAULT_ENVIRONMENT, "TMPDIR", "GIVEN", "PODBOT_JOB"}
    assert found["GIVEN"] == "1"
    assert SECRET not in found.values()


def test_no_process_inside_carries_the_hosts_variables(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", SECRET)

    with OverlaySandbox(target, discard=True) as sandbox:
        sandbox.spawn(["sleep", "600"])
        assert SECRET not in shell(sandbox, "cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'")


def test_a_project_below_the_home_works_with_its_secrets_hidden(home: Path) -> None:
    plant(home, ".aws/credentials", False)
    project = home / "project"
    project.mkdir()
    fill(project)

    with OverlaySandbox(project, discard=True) as sandbox:
        assert sandbox.read("README.md") == b"read me\n"
        assert shell(sandbox, f"cat ../.aws/credentials; grep -r {SECRET} {home}") == ""
        assert shell(sandbox, "echo x > ~/.cache-file && cat ~/.cache-file") == "x\n"
    assert not (home / ".cache-file").exists()
