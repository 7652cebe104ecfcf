"""Real programs in a sandbox that names hosts find the proxy by themselves: git, pip, npm, …

Each asks a server of this machine by the name it may be reached by, and one that was not named.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hosts_servers import serving
from inside import PYTHON, until

from podbot.egress import HOST_NAME
from podbot.sandbox import Network, Policy
from podbot.sandbox.overlay.launcher import OverlaySandbox

WORDS = "read from the host"
FETCH_JAVA = """
class Fetch {
    public static void main(String[] urls) throws Exception {
        System.out.write(new java.net.URL(urls[0]).openStream().readAllBytes());
        System.out.flush();
    }
}
"""
NODE = "fetch(process.argv[1]).then(a => a.text()).then(t => console.log(t), e => { throw e; })"
FETCH_PYTHON = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode())"
CARGO = """
[package]
name = "user"
version = "0.1.0"
edition = "2021"
[dependencies]
small = {{ version = "1.0.0", registry-index = "sparse+http://{place}/crates/" }}
"""


@dataclass(frozen=True, slots=True)
class Client:
    """A program, and what it says when it has read something of a server's."""

    program: str
    script: str
    says: str = WORDS


# PLACE is a host and a port.
CLIENTS = [
    Client("curl", "curl -fsS http://PLACE/plain"),
    Client("wget", "wget -qO- http://PLACE/plain"),
    Client("git", "git clone -q http://PLACE/repository.git cloned && cat cloned/file"),
    Client(
        "pip",
        f"{PYTHON} -m pip download -q --no-cache-dir --disable-pip-version-check --retries 0"
        f" --trusted-host {HOST_NAME} --trusted-host pip.example"
        " --no-deps -i http://PLACE/simple -d got small && ls got",
        "small-1.0-py3-none-any.whl",
    ),
    Client("python", f"{PYTHON} -c '{FETCH_PYTHON}' http://PLACE/plain"),
    Client("npm", "npm view small version --registry http://PLACE/npm --fetch-retries 0", "1.0.0"),
    Client("java", "java Fetch.java http://PLACE/plain"),
    Client(
        "cargo", "mkdir -p src; : > src/lib.rs; cargo fetch && cat Cargo.lock", 'name = "small"'
    ),
    Client("node", f"node -e '{NODE}' http://PLACE/plain"),
]


def _packed(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return out.getvalue()


def _repository(folder: Path) -> dict[str, bytes]:
    """A repository as files, which git reads from any server."""

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)

    (folder / "file").write_text(WORDS)
    git("init", "-q")
    git("add", "file")
    git("commit", "-qm", "first")
    git("update-server-info")
    found = [path for path in (folder / ".git").rglob("*") if path.is_file()]
    return {f"/repository.git/{p.relative_to(folder / '.git')}": p.read_bytes() for p in found}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, list[str]]]:
    crate = _packed({
        "small-1.0.0/Cargo.toml": '[package]\nname = "small"\nversion = "1.0.0"\n',
        "small-1.0.0/src/lib.rs": "",
    })  # fmt: skip
    index = {
        "name": "small", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False,
        "cksum": hashlib.sha256(crate).hexdigest(),
    }  # fmt: skip
    here = f"http://{HOST_NAME}:PORT"
    package = {
        "name": "small", "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": {"name": "small", "version": "1.0.0", "dist": {"tarball": here}}},
    }  # fmt: skip
    wheel = "small-1.0-py3-none-any.whl"
    files = {
        "/plain": WORDS.encode(),
        "/simple/small/": f'<a href="/{wheel}">{wheel}</a>'.encode(),
        f"/{wheel}": _wheel(),
        "/npm/small": json.dumps(package).encode(),
        "/crates/config.json": json.dumps({"dl": f"{here}/dl/{{crate}}"}).encode(),
        "/crates/sm/al/small": json.dumps(index).encode(),
        "/dl/small": crate,
        **_repository(tmp_path_factory.mktemp("repository")),
    }
    with serving(files) as found:
        yield found


def _wheel() -> bytes:
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as wheel:
        about = "small-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return out.getvalue()


@pytest.fixture(scope="module")
def opened(
    shared_target: Path, server: tuple[int, list[str]]
) -> Iterator[tuple[OverlaySandbox, int]]:
    port, _ = server
    # What a test machine has set for itself, proxies above all, is not what is tried here.
    environment = {"GIT_CONFIG_NOSYSTEM": "1", "NPM_CONFIG_USERCONFIG": "/dev/null"}
    # Past rustup, which wants to write to a home, and the tests' is another.
    toolchains = Path(pwd.getpwuid(os.getuid()).pw_dir, ".rustup", "toolchains").glob("*/bin")
    environment["PATH"] = ":".join([*map(str, sorted(toolchains)), os.environ["PATH"]])
    found = importlib.util.find_spec("pip")
    if found is not None and found.origin is not None:
        environment["PYTHONPATH"] = os.path.dirname(os.path.dirname(found.origin))
    network = Network.allow(f"{HOST_NAME}:{port}")
    policy = Policy(network=network, environment=environment)
    with OverlaySandbox(shared_target, policy=policy, discard=True) as sandbox:
        yield sandbox, port


def _ask(sandbox: OverlaySandbox, client: Client, place: str) -> tuple[bool, str]:
    """Whether it worked, and what it said."""
    name = hashlib.sha256(f"{client.program} {place}".encode()).hexdigest()[:8]
    sandbox.write(f"{name}/Fetch.java", FETCH_JAVA)
    sandbox.write(f"{name}/Cargo.toml", CARGO.format(place=place))
    done = sandbox.exec(
        ["sh", "-c", client.script.replace("PLACE", place)],
        cwd=os.path.join(sandbox.workdir, name), timeout=300,
    )  # fmt: skip
    return done.ok, done.stdout + done.stderr


def _skip_if_lacking(client: Client) -> None:
    if client.program == "pip":
        pytest.importorskip("pip")
        if sys.executable.startswith(("/tmp/", "/var/tmp/")):
            pytest.skip("the interpreter lies where a sandbox cannot see it")
        return
    # Java reads a source only where there is a compiler.
    needed = {"python": [], "java": ["java", "javac"]}.get(client.program, [client.program])
    for program in needed:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def _finds_the_proxy(client: Client) -> bool:
    """All do, but for an older Node, which asks nobody: it reaches nothing."""
    if client.program != "node":
        return True
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    major, minor = (int(part) for part in said.stdout.lstrip("v").split(".")[:2])
    return (major, minor) >= (22, 21) and major != 23


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.program)
def test_a_program_reaches_what_is_named_and_nothing_else(
    client: Client, opened: tuple[OverlaySandbox, int]
) -> None:
    _skip_if_lacking(client)
    sandbox, port = opened
    gateway = sandbox.gateway
    assert gateway is not None
    finds = _finds_the_proxy(client)

    worked, said = _ask(sandbox, client, f"{HOST_NAME}:{port}")
    assert (worked and client.says in said) is finds, said

    denied = f"{client.program}.example"  # one for each, to be told apart
    worked, said = _ask(sandbox, client, f"{denied}:8000")
    assert not worked and client.says not in said

    def verdicts() -> list[str]:
        return [each.verdict.value for each in gateway.records if each.host == denied]

    assert until(lambda: bool(verdicts())) if finds else not verdicts()
    assert set(verdicts()) <= {"refused"}
