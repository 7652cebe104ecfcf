"""The folders of podbot keep their order: each imports only those above it.

The order is the one of `docs/architecture.md`. Imports inside functions count too: they make
start-up cheap, but they tie modules together all the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import podbot

ROOT = Path(podbot.__file__).parent
GUEST_NAME = "podbot.sandbox.guest"

LAYERS = (
    "frozen",
    "on_use",
    "errors",
    "nearest",
    "visible",
    "json_fields",
    "tar_reading",
    "kernel",
    "system_calls",
    "config",
    "egress",
    "engine",
    "sandbox",
    "changes",
    "runs",
    "review",
    "runtime",
    "prompt",
    "tools",
    "mcp",
    "agents",
    "github",
    "hosting",
    "launch",
    "api",
    "cli",
)
FREE = {
    "__init__",  # lists the public names of every layer, and loads none until it is used
    "__main__",
    "testing",  # for tests only: may look at everything, and nothing may look at it
}
LISTED = {("changes", "runs")}
"""Names of the second that the `__init__` of the first lists as its own, and loads on use: whoever
imports the folder loads nothing from below it."""


OPEN = {
    "podbot.prompt.builtins.podman": "a section to choose",
    "podbot.sandbox.async_channel": "backends of other packages stand on it",
    "podbot.sandbox.boot": "backends of other packages stand on it",
    "podbot.sandbox.channel": "backends of other packages stand on it",
    "podbot.sandbox.gateway": "what `Sandbox.gateway` is, and backends of other packages give",
    "podbot.sandbox.interpreter": "backends of other packages stand on it",
    "podbot.sandbox.over_stream": "backends of other packages stand on it",
    "podbot.sandbox.tryout": "run as a program, by its name",
    "podbot.sandbox.wire": "backends of other packages stand on it",
}
"""Modules with a plain name that podbot itself does not use from elsewhere, and what for."""
PROGRAMS = ("podbot.cli.", "podbot.testing.", f"{GUEST_NAME}.")
"""No libraries: of these, nobody is to choose a module to import."""


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def modules() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if "data" not in path.parts)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Each podbot module that a file imports, with the line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "podbot":
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports here are absolute"
            if node.module and node.module.split(".")[0] == "podbot":
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}"


def test_there_is_something_to_walk() -> None:
    assert {layer_of(module_name(path)) for path in modules()} >= {"errors", "sandbox", "cli"}


@pytest.mark.parametrize("path", modules(), ids=module_name)
def test_a_module_imports_only_layers_above_its_own(path: Path) -> None:
    own = layer_of(module_name(path))
    if own in FREE:
        return
    assert own in LAYERS, f"{own} is in no layer: add it to LAYERS and to docs/architecture.md"
    listed = type_lines(ast.parse(path.read_text())) if path.name == "__init__.py" else set()
    for line, name in imported(path):
        other = layer_of(name)
        if other == "__version__" or ((own, other) in LISTED and line in listed):
            continue
        assert other in LAYERS, f"{path}:{line}: {name} may not be imported from {own}"
        assert LAYERS.index(other) <= LAYERS.index(own), (
            f"{path}:{line}: {own} is above {other} and may not import {name}"
        )


def folder_of(module: str) -> str:
    return module.rpartition(".")[0]


def users() -> dict[str, set[str]]:
    """Who imports each module, or lists names of it that are imported when they are used."""
    found: dict[str, set[str]] = {module_name(path): set() for path in modules()}
    for path in modules():
        own = module_name(path)
        for _, name in imported(path):
            module = name if name in found else folder_of(name)
            if module in found:
                found[module].add(own)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = node.value.partition(":")[0]
                if named in found:
                    found[named].add(own)
    return found


USERS = users()


def test_a_module_that_only_its_own_folder_uses_begins_with_an_underscore() -> None:
    """So a reader sees which are for others; one whose names the folder lists is for others."""
    silent = []
    for module, by in USERS.items():
        folder = folder_of(module)
        name = module.removeprefix(f"{folder}.")
        if any(each.startswith(f"{module}.") for each in USERS):
            continue  # a folder
        if folder in ("", "podbot") or name.startswith("_") or f"{module}.".startswith(PROGRAMS):
            continue
        inside = {user for user in by if user.startswith(f"{folder}.")}
        if by == inside and module not in OPEN:
            silent.append(module)
    assert silent == [], "begin its name with an underscore, or say in OPEN what for it is there"


def test_a_module_that_begins_with_an_underscore_is_its_own_folders() -> None:
    strangers = [
        (module, user)
        for module, by in USERS.items()
        for user in by
        if any(part.startswith("_") and not part.startswith("__") for part in module.split("."))
        and not f"{user}.".startswith(f"{folder_of(module)}.")
    ]
    assert strangers == [], "what is used from elsewhere has a plain name"


GUEST = sorted((ROOT / "sandbox" / "guest").glob("*.py"))


@pytest.mark.parametrize("path", GUEST, ids=module_name)
def test_the_guest_imports_nothing_else_of_podbot(path: Path) -> None:
    assert [name for _, name in imported(path) if not name.startswith(f"{GUEST_NAME}.")] == []


@pytest.mark.parametrize("path", GUEST, ids=module_name)
def test_the_guest_loads_its_own_parts_before_it_serves(path: Path) -> None:
    """What runs in a sandbox may be able to write where they came from."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    own = {(line, name) for line, name in imported(path)}
    at_once = {node.lineno for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert {line for line, _ in own} <= at_once | type_lines(tree)


def type_lines(tree: ast.Module) -> set[int]:
    """The lines that only type checkers read."""
    return {
        line
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
