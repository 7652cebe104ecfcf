"""How a guest comes to run where podbot is not: as a folder of modules, or down its own line.

In both cases the modules keep their names, and the packages around them are stand-ins that look
nowhere else: not on the image's path, and not in the workspace. All of them are loaded before the
first request is read.
"""

from __future__ import annotations

import os

from podbot.sandbox import guest, interpreter

_MAIN = f"{guest.__name__}.main"

_CHECKED = """
import sys
if sys.version_info < (3, 8): sys.exit("podbot: Python " + sys.version.split()[0])
sys.dont_write_bytecode = True
"""

BOOT = """
import os, sys
def take(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part: sys.exit("podbot: nobody is there")
        data += part
    return data
if sys.version_info < (3, 8): sys.exit("podbot: Python " + sys.version.split()[0])
exec(compile(take(int.from_bytes(take(4), "big")), "<podbot>", "exec"))
"""
"""What a Python runs whose guest comes by the line: it takes `sent` from its standard input."""

_SENT = """
class Sent:
    '''Finds the modules that came along, each once.'''
    parts = {parts!r}
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in Sent.parts: return type(sys.__spec__)(name, Sent)
    @staticmethod
    def create_module(spec): return None
    @staticmethod
    def exec_module(module):
        text = Sent.parts.pop(module.__name__)
        exec(compile(text, module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Sent)
"""


def sources() -> dict[str, bytes]:
    """The guest's modules, name and text."""
    folder = os.path.dirname(guest.__file__)
    found = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py") and name != "__init__.py":
            with open(os.path.join(folder, name), "rb") as file:
                found[name[: -len(".py")]] = file.read()
    return found


def command(line: str, code: str, python: str = "python3") -> list[str]:
    """What is run where the guest shall be; ``line`` names its descriptors or its socket."""
    # Isolated and without site: nothing of the image's environment or the workspace gets in.
    return [python, "-I", "-S", "-c", code, *line.split()]


def started_from(folder: str) -> str:
    """The code that loads the guest from a folder with its modules, and runs it."""
    return _CHECKED + interpreter.start(_MAIN, (None, None, folder))


def sent() -> bytes:
    """What `BOOT` wants first: its size, and a program with the whole guest in it."""
    parts = {f"{guest.__name__}.{name}": text.decode() for name, text in sources().items()}
    program = (
        _CHECKED + _SENT.format(parts=parts) + interpreter.start(_MAIN, (None, None, None))
    ).encode()
    return len(program).to_bytes(4, "big") + program
