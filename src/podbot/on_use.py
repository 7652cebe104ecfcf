"""Public names of a package that are imported when they are first used.

Whoever needs one part of a package does not pay for the others. Loads nothing itself.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def on_use(namespace: "dict[str, object]", homes: "Mapping[str, str]") -> "Callable[[str], object]":
    """The ``__getattr__`` of a module, whose ``globals()`` are the namespace.

    ``homes`` has for each module the names that come from it, between spaces; ``new=old`` where a
    name is another one there.
    """
    places: dict[str, tuple[str, str]] = {}
    for home, names in homes.items():
        for name in names.split():
            here, _, there = name.partition("=")
            places[here] = (home, there or here)

    def find(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        from importlib import import_module

        home, there = places[name]
        value: object = getattr(import_module(home), there)
        namespace[name] = value  # found at once the next time
        return value

    return find
