"""Who one is for a registry: from the files and programs that `docker login` and others fill.

Only what the person's own settings name is read or started. A local Podman reads those files by
itself; everything else is told with the call. What is found is sent to the engine, over a line that
others cannot read, and goes nowhere else: not into messages, not into logs.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from podbot.engine.http import replies, tls
from podbot.engine.http.replies import Fields
from podbot.errors import ContainerError

if TYPE_CHECKING:
    from podbot.engine.engine import Engine

HEADER = "X-Registry-Auth"
DOCKER_HUB = "docker.io"
MAX_FILE = 1024 * 1024
HELPER_SECONDS = 30.0

_HUB_NAMES = ("https://index.docker.io/v1/", DOCKER_HUB, "index.docker.io", "registry-1.docker.io")
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TOKEN_USER = "<token>"  # noqa: S105 - what a helper says in place of a name


def headers(engine: Engine, image: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What to send along with a pull; nothing if nobody has logged in, or it is not for us to."""
    endpoint = engine.endpoint
    if engine.facts.is_podman and endpoint.is_local:
        return {}
    private = endpoint.is_local or endpoint.is_loopback or endpoint.scheme == "ssh"
    if not private and not tls.wanted(endpoint, environment):
        return {}
    for path in files(environment, podman=engine.facts.is_podman):
        found = _found_in(path, image, environment)
        if found is not None:
            return {HEADER: base64.urlsafe_b64encode(json.dumps(found).encode()).decode()}
    return {}


def files(environment: Mapping[str, str], *, podman: bool) -> list[str]:
    """Where logins are kept, in the order that counts."""
    home = environment.get("HOME") or os.path.expanduser("~")
    found = []
    if podman:
        found.append(environment.get("REGISTRY_AUTH_FILE", ""))
        runtime = environment.get("XDG_RUNTIME_DIR")
        found.append(os.path.join(runtime, "containers", "auth.json") if runtime else "")
    folder = environment.get("DOCKER_CONFIG") or os.path.join(home, ".docker")
    return [path for path in (*found, os.path.join(folder, "config.json")) if path]


def registry_of(image: str) -> str:
    """The registry that an image comes from."""
    first, slash, _ = image.partition("/")
    named = slash and ("." in first or ":" in first or first == "localhost")
    return first if named and first not in _HUB_NAMES else DOCKER_HUB


def _names(image: str) -> Iterator[str]:
    """What a login for an image may be filed under: its path and those above, then the registry."""
    registry = registry_of(image)
    if registry == DOCKER_HUB:
        yield from _HUB_NAMES
        return
    path = image.partition("@")[0]
    if ":" in path.rpartition("/")[2]:
        path = path.rpartition(":")[0]
    while path and path != registry:
        yield path
        path = path.rpartition("/")[0]
    yield registry


def _found_in(path: str, image: str, environment: Mapping[str, str]) -> dict[str, str] | None:
    registry = registry_of(image)
    asked = _HUB_NAMES[0] if registry == DOCKER_HUB else registry
    try:
        with open(path, "rb") as file:
            settings = replies.fields(replies.parse(file.read(MAX_FILE)))
        helpers = replies.text_map(settings, "credHelpers")
        helper = helpers.get(asked) or helpers.get(registry) or replies.text(settings, "credsStore")
        found = _from_helper(helper, asked, environment) if helper else None
        auths = replies.below(settings, "auths")
        entries = (_entry(auths, name) for name in _names(image))
        found = found or next((entry for entry in entries if entry is not None), None)
    except (OSError, ContainerError):
        return None  # what is not valid logs nobody in, and what it holds is not for a message
    return None if found is None else {**found, "serveraddress": registry}


def _entry(auths: Fields, name: str) -> dict[str, str] | None:
    """A login that is written in the file itself."""
    for key in auths:
        plain = key.split("://", 1)[-1].rstrip("/")
        if key == name or plain in (name, f"{name}/v1", f"{name}/v2"):
            entry = replies.below(auths, key)
            token = replies.text(entry, "identitytoken")
            try:
                words = base64.b64decode(replies.text(entry, "auth"), validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                continue
            user, colon, password = words.partition(":")
            if token or colon:
                return _login(_TOKEN_USER, token) if token else _login(user, password.rstrip("\0"))
    return None


def _from_helper(helper: str, name: str, environment: Mapping[str, str]) -> dict[str, str] | None:
    """What a program that keeps logins says; it is asked as `docker pull` does."""
    program = f"docker-credential-{helper}"
    found = shutil.which(program, path=environment.get("PATH")) if _HELPER.fullmatch(helper) else ""
    if not found:
        return None
    try:
        done = subprocess.run(
            [found, "get"],
            input=name.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            timeout=HELPER_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None  # nobody has logged in there
    said = replies.fields(replies.parse(done.stdout[:MAX_FILE]))
    user, secret = replies.text(said, "Username"), replies.text(said, "Secret")
    return _login(user, secret) if secret else None


def _login(user: str, secret: str) -> dict[str, str]:
    if user == _TOKEN_USER:
        return {"identitytoken": secret}
    return {"username": user, "password": secret}
