"""podbot runs AI agents and their tools in sandboxes one can see into, review and undo.

This module lists the public API and must stay cheap: a name is imported from its
home when it is first used, so `import podbot` and `podbot --version` load nothing
else.
"""

from podbot.on_use import on_use

__version__ = "0.1.0"

__all__ = [
    "AsyncSandbox",
    "ExecResult",
    "Limits",
    "Network",
    "Policy",
    "Sandbox",
    "__version__",
]

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.sandbox import AsyncSandbox, ExecResult, Limits, Network, Policy, Sandbox

# Where public names live. A new one goes here, above, and into __all__.
_HOMES = {
    "podbot.sandbox": "AsyncSandbox ExecResult Limits Network Policy Sandbox",
}

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:
    __getattr__ = on_use(globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
