"""Text from inside a sandbox that is safe to print: what would command a terminal is spelled out.

By itself, as whoever tells people anything needs it, and few of them a channel.
"""

from __future__ import annotations


def visible(text: str) -> str:
    """Text from inside, with control and bidirectional characters spelled out."""
    if text.isprintable():
        return text
    shown = []
    for char in text:
        if char in "\n\t" or char.isprintable():
            shown.append(char)
        else:
            shown.append(char.encode("unicode_escape").decode("ascii"))
    return "".join(shown)
