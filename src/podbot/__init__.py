"""podbot runs AI agents and their tools in sandboxes one can see into, review and undo.

This module lists the public API and must stay cheap: a name is imported from its
home when it is first used, so `import podbot` and `podbot --version` load nothing
else.
"""

__version__ = "0.1.0"

__all__ = [
    "AsyncSandbox",
    "ExecResult",
    "Limits",
    "Policy",
    "Sandbox",
    "__version__",
]

# Type checkers take this name for true; importing it from typing costs milliseconds.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.sandbox import AsyncSandbox, ExecResult, Limits, Policy, Sandbox

# Where each public name lives. A new one goes here, above, and into __all__.
_EXPORTS = {
    "AsyncSandbox": "podbot.sandbox",
    "ExecResult": "podbot.sandbox",
    "Limits": "podbot.sandbox",
    "Policy": "podbot.sandbox",
    "Sandbox": "podbot.sandbox",
}

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:  # pragma: no branch - always so at run time

    def __getattr__(name: str) -> object:
        if name not in _EXPORTS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value: object = getattr(import_module(_EXPORTS[name]), name)
        globals()[name] = value  # found at once the next time
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
