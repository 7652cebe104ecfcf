"""An engine's service for tests of the command line, where there is no engine: it keeps a list of
containers and images, and runs commands "in containers" as plain processes of the machine.

Nothing is confined here; what real engines do is tried in tests/e2e.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl, urlsplit

sys.path.append(str(Path(__file__).parent / "engine"))

import standin
from standin import Asked, StandIn, chunked, frame, reply

from podbot.engine import labels

__all__ = ["ServiceOfContainers", "container", "running"]

WORKDIR = "/workspace"
"""The workspace of a sandbox; here it is where the tests run."""

JSON = {"Content-Type": "application/json"}


def container(name: str, owner: str | None, **more: object) -> dict[str, object]:
    """A container as the list has it; without an owner it is somebody else's."""
    marks = {} if owner is None else {labels.OWNER: owner, labels.KIND: "sandbox"}
    return {
        "Id": f"{abs(hash(name)):064x}"[:64],
        "Names": [f"/{name}"],
        "Image": "localhost/some:latest",
        "State": "running",
        "Created": 1_700_000_000,
        "Labels": marks,
        **more,
    }


class ServiceOfContainers:
    """What the service has, and what it was asked for."""

    def __init__(self, stand_in: StandIn, url: str):
        self.url = url
        self.asked = stand_in.asked
        self.on = stand_in.on
        self.containers: list[dict[str, object]] = []
        self.images: dict[str, dict[str, object]] = {}
        self.said_by_build: list[dict[str, object]] = [{"stream": "STEP 1/1: FROM x\n"}]
        self._execs: dict[str, dict[str, object]] = {}
        self._codes: dict[str, int] = {}
        self.on(r"GET .*/containers/json", lambda _, asked: reply(self._listed(asked)))
        self.on(r"POST .*/containers/[^/]+/(stop|kill)", reply(b"", 204))
        self.on(r"DELETE .*/containers/[^/]+", self._remove)
        self.on(r"POST .*/containers/[^/]+/exec", self._prepare)
        self.on(r"POST .*/exec/[^/]+/start", self._start)
        self.on(r"GET .*/exec/[^/]+/json", self._inspect_exec)
        self.on(r"GET .*/images/json", lambda *_: reply(list(self.images.values())))
        self.on(r"GET .*/images/.+/json", self._image)
        self.on(r"POST .*/images/import", self._import)
        self.on(r"POST .*/build", self._build)

    def paths(self) -> list[str]:
        """Method and last part of each request."""
        return [f"{each.method} {each.path.rpartition('/')[2]}" for each in self.asked]

    def query(self, path_end: str) -> dict[str, str]:
        """What was asked for with a path that ends so, the last time."""
        asked = next(each for each in reversed(self.asked) if each.path.endswith(path_end))
        return dict(parse_qsl(urlsplit(asked.target).query))

    def _listed(self, asked: Asked) -> list[dict[str, object]]:
        filters = json.loads(dict(parse_qsl(urlsplit(asked.target).query)).get("filters", "{}"))
        wanted = filters.get("label", [])
        return [
            each
            for each in self.containers
            if all(name in each["Labels"] for name in wanted)  # type: ignore[operator]
        ]

    def _remove(self, _: socket.socket, asked: Asked) -> bytes:
        id = asked.path.rpartition("/")[2]
        if not any(each["Id"] == id for each in self.containers):
            return reply({"message": "no such container"}, 404)
        self.containers = [each for each in self.containers if each["Id"] != id]
        return reply(b"[]")

    def _prepare(self, _: socket.socket, asked: Asked) -> bytes:
        name = f"e{len(self._execs)}"
        self._execs[name] = asked.json()
        return reply({"Id": name}, 201)

    def _start(self, connection: socket.socket, asked: Asked) -> bytes | None:
        name = asked.path.split("/")[-2]
        spec: dict[str, Any] = self._execs[name]  # as JSON gave it
        given = dict(text.split("=", 1) for text in spec["Env"])
        workdir = spec.get("WorkingDir")
        surroundings: dict[str, Any] = {
            "cwd": None if workdir == WORKDIR else workdir,
            "env": {"PATH": "/usr/bin:/bin", **given},
        }
        if "User" in spec and os.geteuid() == 0:
            user, _, group = spec["User"].partition(":")
            surroundings |= {"user": int(user), "group": int(group or user), "extra_groups": []}
        if asked.json()["Detach"]:
            done = subprocess.run(spec["Cmd"], capture_output=True, check=False, **surroundings)
            self._codes[name] = done.returncode
            return reply(b"")
        connection.sendall(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        begin = _on_terminal if spec["Tty"] else _on_pipes
        code = begin(connection, spec["Cmd"], surroundings, spec["AttachStdin"])
        self._codes[name] = code if code >= 0 else 128 - code
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        return None

    def _inspect_exec(self, _: socket.socket, asked: Asked) -> bytes:
        code = self._codes.get(asked.path.split("/")[-2])
        return reply({"Running": code is None, "ExitCode": code, "Pid": 1})

    def _image(self, _: socket.socket, asked: Asked) -> bytes:
        name = asked.path.split("/images/")[1].removesuffix("/json").replace("%3A", ":")
        found = self.images.get(name.replace("%2F", "/"))
        return reply({"message": "no such image"}, 404) if found is None else reply(found)

    def _import(self, _: socket.socket, asked: Asked) -> bytes:
        query = parse_qsl(urlsplit(asked.target).query)
        lines = [text for key, text in query if key == "changes" and text.startswith("LABEL ")]
        pairs = (line.removeprefix("LABEL ").split("=", 1) for line in lines)
        self.add_image(dict(query)["reference"], {name: text.strip('"') for name, text in pairs})
        return reply({"Id": "sha256:" + "a" * 64})

    def _build(self, _: socket.socket, asked: Asked) -> bytes:
        query = dict(parse_qsl(urlsplit(asked.target).query))
        if not any("error" in each for each in self.said_by_build):
            self.add_image(query["t"], json.loads(query["labels"]))
        return chunked(json.dumps(each).encode() + b"\n" for each in self.said_by_build)

    def add_image(self, name: str, marks: dict[str, str], created: int = 1_700_000_000) -> None:
        """Have an image of this name."""
        self.images[name] = {
            "Id": "sha256:" + "b" * 64, "RepoTags": [name], "Labels": marks,
            "Size": 200 << 20, "Created": created,
        }  # fmt: skip


def _on_pipes(
    connection: socket.socket, argv: list[str], surroundings: dict[str, Any], has_input: bool
) -> int:
    """Run a command with its streams on a connection, in frames."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **surroundings,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    sending = threading.Lock()

    def say(number: int, source: IO[bytes]) -> None:
        with suppress(OSError):
            while data := os.read(source.fileno(), 65536):
                with sending:
                    connection.sendall(frame(number, data))

    if process.stdin is not None:
        _started(_hear, connection, process.stdin)
    for thread in (_started(say, 1, process.stdout), _started(say, 2, process.stderr)):
        thread.join()
    code = process.wait()
    process.stdout.close()
    process.stderr.close()
    return code


def _on_terminal(
    connection: socket.socket, argv: list[str], surroundings: dict[str, Any], _: bool
) -> int:
    """Run a command on a terminal of its own, whose near end is the connection."""
    near, far = os.openpty()
    process = subprocess.Popen(
        ["setsid", "-c", *argv], stdin=far, stdout=far, stderr=far, **surroundings
    )
    os.close(far)
    _started(_hear, connection, open(os.dup(near), "wb", buffering=0))  # noqa: SIM115 - `_hear` closes it
    with suppress(OSError):  # what reads a terminal that is closed at its far end gets EIO
        while data := os.read(near, 65536):
            connection.sendall(data)
    code = process.wait()
    os.close(near)
    return code


def _hear(connection: socket.socket, target: IO[bytes]) -> None:
    with suppress(OSError, ValueError):
        while data := connection.recv(65536):
            target.write(data)
            target.flush()
    with suppress(OSError, ValueError):
        target.close()


def _started(work: Callable[..., object], *args: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread


@contextmanager
def running() -> Iterator[ServiceOfContainers]:
    """A service that says it is Podman, on a socket with a short name."""
    with tempfile.TemporaryDirectory(prefix="pbs-", dir="/tmp") as folder:
        path = Path(folder) / "engine.sock"
        stand_in = standin.on_socket(path)
        try:
            yield ServiceOfContainers(stand_in, f"unix://{path}")
        finally:
            stand_in.close()
