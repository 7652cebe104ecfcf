"""Printing data: what `--json` does. Which facts under which keys is said by `review.data`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping

Data = Mapping[str, object]


def show(data: Data) -> None:
    """Print one object."""
    print(json.dumps(data, indent=2))


def show_long(data: Data, key: str, items: Iterable[Data]) -> None:
    """Print one object whose last key holds a list that is made as it is printed."""
    head = json.dumps(data, indent=2).removesuffix("\n}").removesuffix("{}")
    write = sys.stdout.write
    write((head + "," if data else "{") + f"\n  {json.dumps(key)}: [")
    separator = "\n"
    for item in items:
        write(f"{separator}    {json.dumps(item)}")
        separator = ",\n"
    write("]\n}\n" if separator == "\n" else "\n  ]\n}\n")
