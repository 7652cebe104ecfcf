"""Makes a machine ready for the end-to-end tests, and runs them: `make test-e2e`.

As root on a bare Debian machine it installs Podman and the rest, and makes an ordinary user, as
whom the tests run a second time, against rootless Podman. As an ordinary user it needs Podman to
be there. Images are bootstrapped from Debian packages, with no registry, and kept: their name is a
hash of what they are made of. Everything lies in one folder, nothing is written to /etc.

    python tests/e2e/set_up.py run [pytest's options]    everything
    python tests/e2e/set_up.py run-engines …          only tests that need an engine
    python tests/e2e/set_up.py prepare                only make ready

It uses podbot's own recipe for images, and nothing but the standard library besides.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from podbot.engine.image._debian import DebianRoot, bootstrap
from podbot.engine.image.building import BASE_NAME
from podbot.engine.image.images import DEFAULT_IMAGE
from podbot.engine.image.recipes import Recipe
from podbot.errors import PodbotError

ROOT = Path(__file__).resolve().parents[2]

PLACE_VARIABLE = "PODBOT_E2E"
"""Where everything lies; default `/var/cache/podbot-e2e` for root, `~/.cache/podbot-e2e` else."""

UNCONFINED = "PODBOT_UNCONFINED"
WHY_UNCONFINED = "engines keep images and networks where the machine has them"
"""All other tests can write to little of the machine: tests/confined.py."""

SCRIPT = "tests/e2e/set_up.py"
USER = "podbot-e2e"
PASSED_ON = ("PODBOT_CI", "PODBOT_SEED", "PODBOT_E2E_KINDS")
# How this machine reaches what is downloaded: beginnings and ends of variables' names.
WAYS_OUT = ("PIP_", "SSL_CERT_", "NPM_CONFIG_", "NODE_EXTRA_CA_CERTS")
PROXIES = ("_PROXY", "_CA_BUNDLE")
IMAGE = "localhost/podbot-e2e:latest"
"""The image of the tests: Debian with Python and git."""

# A program that tells whether the package is there, and the package.
PACKAGES = {
    "podman": "podman",
    "runc": "runc",
    "conmon": "conmon",
    "/usr/lib/podman/netavark": "netavark",
    "/usr/lib/podman/aardvark-dns": "aardvark-dns",
    "iptables": "iptables",  # netavark starts it
    "newuidmap": "uidmap",
    "slirp4netns": "slirp4netns",
    "fuse-overlayfs": "fuse-overlayfs",
    "catatonit": "catatonit",
    "mmdebstrap": "mmdebstrap",
    "runsc": "runsc",
    "busybox": "busybox-static",
    "git": "git",
    "make": "make",
    "/etc/containers/policy.json": "golang-github-containers-common",
}
OPTIONAL = ("runsc",)
"""What not every release of Debian has; the tests that need it skip, and say so."""

DOCKER_PACKAGES = ("docker.io", "containerd", "tini")
"""Unpacked beside the tests' other things: installing it would start a daemon on the machine."""

DOWNLOAD_PAUSES = (5, 20)
"""Seconds to wait before what needs the network is tried again."""

RUNTIMES = ("runc", "runsc")
ROOTLESS_NEEDS = ("podman", "runc", "newuidmap", "catatonit")

CONTAINERS_CONF = """\
# Written by tests/e2e/set_up.py. It asks for little, so that a container within a machine
# without systemd, with the first version of control groups, can still run containers.
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]

[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
# The monitor of each exec stays this many seconds after its end; the default is five minutes.
exit_command_delay = 10
runtime = "{runtime}"

[engine.runtimes]
runsc = ["{place}/runsc"]

[network]
network_config_dir = "{place}/podman/networks"
"""

STORAGE_CONF = """\
# Written by tests/e2e/set_up.py.
[storage]
driver = "overlay"
graphroot = "{place}/podman/storage"
rootless_storage_path = "{place}/podman/storage"
runroot = "{place}/podman/run"
"""

# gVisor has its own network stack, which has no use for what Podman sets up.
RUNSC = """\
#!/bin/sh
exec runsc --network=none --platform=ptrace --ignore-cgroups "$@"
"""


class CannotSetUp(Exception):
    """The tests cannot run here; the text says what is missing and how to get it."""


def main(words: Sequence[str]) -> int:
    """Make ready, and run the tests if asked to."""
    if not words or words[0] not in ("run", "run-engines", "prepare"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        if words[0] == "prepare":
            make_ready()
            import_the_image()
            return 0
        prepare()
        return run("e2e" if words[0] == "run" else "e2e and podman", words[1:])
    except (CannotSetUp, PodbotError) as problem:
        print(f"tests/e2e/set_up.py: {problem}", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(f"tests/e2e/set_up.py: {error}", file=sys.stderr)
    return 1


def place() -> Path:
    """The folder that holds everything of this user's."""
    given = os.environ.get(PLACE_VARIABLE)
    if given:
        return Path(given)
    return Path("/var/cache/podbot-e2e" if is_root() else "~/.cache/podbot-e2e").expanduser()


def is_root() -> bool:
    """Whether packages can be installed and rootful engines be started."""
    return os.geteuid() == 0


def say(text: str) -> None:
    """A line for whoever watches."""
    print(f"set-up: {text}", file=sys.stderr, flush=True)


# Making ready


def prepare() -> None:
    """Everything that the tests need before they start.

    An engine that does not take the image runs no container either: its tests skip, and say why.
    """
    make_ready()
    with without("the image"):
        import_the_image()


def make_ready() -> None:
    """Everything but the image."""
    folder = place()
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    with locked(folder):
        if is_root():
            install_packages()
            with without("Docker"):
                unpack_docker(folder)
            # The ordinary user bootstraps the image for both: it should work without privileges.
            prepare_user()
        else:
            demand_programs()
        write_settings(folder)


def import_the_image() -> None:
    """Have this user's Podman know the image that the tests run in."""
    folder = place()
    with locked(folder):
        import_image(podman_environment(folder), rootfs(folder))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One set-up at a time."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def there(program: str) -> bool:
    """Whether a program, or a file, is there."""
    return os.path.exists(program) or shutil.which(program, path=search_path()) is not None


def search_path() -> str:
    """Where programs are looked for: an ordinary user's PATH often lacks /usr/sbin."""
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def install_packages() -> None:
    """Install what is missing; on machines without apt, say what that is."""
    missing = [package for program, package in PACKAGES.items() if not there(program)]
    if not python_has_venv():
        missing.append("python3-venv")
    optional = [package for package in missing if package in OPTIONAL]
    missing = [package for package in missing if package not in OPTIONAL]
    if not missing and not optional:
        return
    if shutil.which("apt-get") is None:
        raise CannotSetUp(
            f"missing: {', '.join(missing)} (as Debian calls them), and there is no apt-get here\n"
            "  remedy: install them with this system's own package manager"
        )
    say(f"installing {' '.join(missing + optional)}")
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends"]
    apt(["apt-get", "update", "-q"])
    if missing:
        apt([*install, *missing])
    for package in optional:
        with without(package):
            apt([*install, package])


def apt(command: Sequence[str], folder: Path | None = None) -> None:
    """Have apt do something; once more, with fresh lists, if it could not."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}

    def do() -> None:
        subprocess.run(command, env=environment, cwd=folder, stdout=sys.stderr, check=True)

    def refresh() -> None:
        update = ["apt-get", "update", "-q"]
        subprocess.run(update, env=environment, stdout=sys.stderr, check=False)

    persistently(do, refresh)


def persistently(do: Callable[[], object], between: Callable[[], object] = lambda: None) -> None:
    """Do what needs the network; again if that fails, because networks do."""
    for pause in DOWNLOAD_PAUSES:
        try:
            do()
        except (subprocess.CalledProcessError, PodbotError) as error:
            say(f"{error}; trying again in {pause} s")
            time.sleep(pause)
            between()
        else:
            return
    do()


@contextmanager
def without(what: str) -> Iterator[None]:
    """Go on if it cannot be had. The tests that need it find out, and skip with the reason."""
    try:
        yield
    except (subprocess.CalledProcessError, PodbotError) as error:
        say(f"going on without {what}: {error}")


def python_has_venv() -> bool:
    """Whether the system's Python can make environments: the ordinary user's is made from it."""
    command = ["/usr/bin/python3", "-c", "import venv, ensurepip"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def demand_programs() -> None:
    """An ordinary user cannot install anything."""
    missing = [program for program in ROOTLESS_NEEDS if not there(program)]
    if not missing:
        return
    packages = " ".join(sorted({PACKAGES[program] for program in missing}))
    raise CannotSetUp(
        f"these programs are missing, and only root can install them: {', '.join(missing)}\n"
        f"  remedy: sudo apt-get install {packages}\n"
        "          or run the end-to-end tests as root, which installs all they need"
    )


def unpack_docker(folder: Path) -> None:
    """Docker's programs, from Debian's packages, without starting or registering anything."""
    root = folder / "docker" / "root"
    if (root / "usr/sbin/dockerd").exists() or shutil.which("apt-get") is None:
        return
    say(f"unpacking {' '.join(DOCKER_PACKAGES)}")
    downloads = folder / "docker" / "packages"
    shutil.rmtree(downloads, ignore_errors=True)
    downloads.mkdir(parents=True)
    # apt's own helper has no right to write here, and says so; it does it as root then.
    apt(["apt-get", "download", "-q", *DOCKER_PACKAGES], downloads)
    staged = folder / "docker" / "root.new"
    shutil.rmtree(staged, ignore_errors=True)
    for package in sorted(downloads.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, staged], check=True)
    shutil.rmtree(root, ignore_errors=True)
    staged.rename(root)
    shutil.rmtree(downloads)


def write_settings(folder: Path) -> None:
    """Podman's two files, and the way to start gVisor."""
    (folder / "podman").mkdir(exist_ok=True)
    for runtime in RUNTIMES:
        text = CONTAINERS_CONF.format(place=folder, runtime=runtime)
        (folder / "podman" / f"{runtime}.conf").write_text(text)
    (folder / "podman" / "storage.conf").write_text(STORAGE_CONF.format(place=folder))
    runtime_folder(folder).mkdir(mode=0o700, exist_ok=True)
    wrapper = folder / "runsc"
    wrapper.write_text(RUNSC)
    wrapper.chmod(0o755)


def runtime_folder(folder: Path) -> Path:
    """What `XDG_RUNTIME_DIR` names for the rootless engine."""
    return folder / "runtime"


def podman_environment(folder: Path, runtime: str = "runc") -> dict[str, str]:
    """The environment in which `podman` uses this folder and nothing of the machine's."""
    environment = {
        **os.environ,
        "PATH": search_path(),
        "CONTAINERS_CONF": str(folder / "podman" / f"{runtime}.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "podman" / "storage.conf"),
    }
    if not is_root():
        environment["XDG_RUNTIME_DIR"] = str(runtime_folder(folder))
    for name in ("CONTAINER_HOST", "DOCKER_HOST", "PODMAN_HOST"):
        environment.pop(name, None)
    return environment


# The image


def wanted_root() -> DebianRoot:
    """What the small image of podbot's is made of."""
    return DebianRoot(Recipe("tools").packages)


def base_name() -> str:
    """The name under which `podbot image build --small` looks for its base."""
    return f"{BASE_NAME}:{wanted_root().key}"


def rootfs(folder: Path) -> Path:
    """A Debian root with Python and git as a tarball; made once, by podbot's own recipe."""
    root = wanted_root()
    made = folder / "images" / f"{root.key}.tar"
    for place in (user_folder(folder) / "images" / made.name, made):
        if place.exists():
            return place
    if not there("mmdebstrap"):
        raise CannotSetUp("mmdebstrap is missing\n  remedy: sudo apt-get install mmdebstrap")
    say("bootstrapping an image from Debian packages, about a minute")
    made.parent.mkdir(exist_ok=True)
    for old in made.parent.iterdir():
        old.unlink()
    staged = made.with_suffix(".new")
    began = time.monotonic()

    def make() -> None:
        with staged.open("wb") as out:
            for piece in bootstrap(root, lambda _: None):
                out.write(piece)

    persistently(make)
    staged.rename(made)
    say(f"bootstrapped in {time.monotonic() - began:.0f} s")
    return made


def import_image(environment: Mapping[str, str], tarball: Path) -> None:
    """Have the Podman of an environment know the image, under each name it goes by."""
    exists = ["podman", "image", "exists", base_name()]
    if subprocess.run(exists, env=environment, check=False).returncode:
        say(f"importing it into {'rootful' if is_root() else 'rootless'} Podman")
        command = ["podman", "import", "--quiet", tarball, base_name()]
        subprocess.run(command, env=environment, stdout=sys.stderr, check=True)
    for name in (IMAGE, DEFAULT_IMAGE):
        subprocess.run(["podman", "tag", base_name(), name], env=environment, check=True)
    # What builds of earlier runs left without a name would pile up.
    prune = ["podman", "image", "prune", "--force"]
    subprocess.run(prune, env=environment, stdout=subprocess.DEVNULL, check=False)


# Running


def run(marks: str, options: Sequence[str]) -> int:
    """Run the tests as this user, and at the same time as an ordinary one if this is root."""
    if not is_root():
        return run_pytest(marks, options)
    log = place() / "user.log"
    with log.open("wb") as out:
        other = start_as_user(["run-engines", *options], out)
        try:
            ours = run_pytest(marks, options)
            theirs = other.wait()
        finally:
            other.kill()
            other.wait()
    print(f"\n{f' as the user {USER} ':=^80}\n", flush=True)
    sys.stdout.write(log.read_text(errors="replace"))
    failed = [code for code in (ours, theirs) if code not in (0, 5)]
    if failed:
        return failed[0]
    return 0 if 0 in (ours, theirs) else 5  # pytest's word for "nothing was collected"


def run_pytest(marks: str, options: Sequence[str]) -> int:
    """The tests, in this environment."""
    # A folder of its own for temporary files: runs beside this one tidy up what they share.
    base = tempfile.mkdtemp(prefix="e2e-")
    command = [sys.executable, "-m", "pytest", "-m", marks, f"--basetemp={base}/t", "tests/e2e"]
    environment = {**os.environ, PLACE_VARIABLE: str(place()), UNCONFINED: WHY_UNCONFINED}
    try:
        done = subprocess.run([*command, *options], cwd=ROOT, env=environment, check=False)
    finally:
        shutil.rmtree(base, ignore_errors=True)
        if os.path.exists(base):
            # Some of it belongs to ids that only a container of this user's has.
            remove = ["podman", "unshare", "rm", "-rf", base]
            subprocess.run(remove, env=podman_environment(place()), check=False)
    return done.returncode


def user_folder(folder: Path) -> Path:
    """Where the ordinary user has everything."""
    return folder / "user"


def prepare_user() -> None:
    """Make ready what the ordinary user needs, by that user: a copy of all, and the image."""
    ordinary_user()
    folder = user_folder(place())
    folder.mkdir(mode=0o700, exist_ok=True)
    os.chown(folder, *ids())
    tree = folder / "tree"
    copy_tree(tree)

    def do(*command: str | Path) -> None:
        become = ["runuser", "-u", USER, "--", *command]
        subprocess.run(become, env=user_environment(), cwd=tree, stdout=sys.stderr, check=True)

    make = ["make", "-s", "-C", tree, ".venv/.test", "PYTHON=/usr/bin/python3"]
    persistently(lambda: do(*make))
    with without("rootless Podman"):
        do(tree / ".venv/bin/python", SCRIPT, "prepare")


def start_as_user(words: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start this program as the ordinary user, on the copy that is theirs."""
    tree = user_folder(place()) / "tree"
    become = ["runuser", "-u", USER, "--", tree / ".venv/bin/python", SCRIPT, *words]
    return subprocess.Popen(
        become, env=user_environment(), cwd=tree,
        stdin=subprocess.DEVNULL, stdout=output, stderr=output,
    )  # fmt: skip


def user_environment() -> dict[str, str]:
    """What the ordinary user's processes see: little of root's."""
    environment = {
        "HOME": str(ordinary_user()), "USER": USER, "LOGNAME": USER, "LANG": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        PLACE_VARIABLE: str(user_folder(place())),
    }  # fmt: skip
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return environment | ways_out() | passed


def ways_out() -> dict[str, str]:
    """The variables that say how this machine reaches what is downloaded."""
    return {
        name: text
        for name, text in os.environ.items()
        if name.upper().startswith(WAYS_OUT) or name.upper().endswith(PROXIES)
    }


def ordinary_user() -> Path:
    """Make the user if need be; gives the home folder."""
    try:
        return Path(pwd.getpwnam(USER).pw_dir)
    except KeyError:
        say(f"making the user {USER}")
        command = ["useradd", "--create-home", "--shell", "/bin/bash", USER]
        subprocess.run(command, check=True)
        give_ids()
        return Path(pwd.getpwnam(USER).pw_dir)


def give_ids() -> None:
    """Ids for the user's containers, where making a user does not bring them."""
    for kind in ("uid", "gid"):
        table = Path(f"/etc/sub{kind}")
        if not table.exists() or f"{USER}:" not in table.read_text():
            table.touch()
            command = ["usermod", f"--add-sub{kind}s", "2000000-2065535", USER]
            subprocess.run(command, check=False)


def ids() -> tuple[int, int]:
    """Who the ordinary user is, in numbers."""
    entry = pwd.getpwnam(USER)
    return entry.pw_uid, entry.pw_gid


def copy_tree(tree: Path) -> None:
    """What is in the checkout, without what was made from it; an environment there is kept."""
    tree.mkdir(parents=True, exist_ok=True)
    for old in tree.iterdir():
        if old.name == ".venv":
            continue
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    leave = shutil.ignore_patterns(
        ".git", ".venv", ".coverage*", "__pycache__", ".*_cache", ".hypothesis"
    )
    shutil.copytree(ROOT, tree, symlinks=True, ignore=leave, dirs_exist_ok=True)
    subprocess.run(["chown", "-R", f"{USER}:", tree], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
