"""Makes the manual pages from what `--help` says: one for podbot, one for each of its commands.

    python docs/make_manual.py FOLDER

The same parsers make `podbot COMMAND --help`; only the form is another. The build of a wheel calls
this (see hatch_build.py), so `man podbot-run` is there after an installation and never out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from podbot.cli import ABOUT, COMMANDS, EXAMPLES

HOME = "podbot"
SEE_ALSO = "The pages below docs/ of the project say more; podbot doctor tries out this host."


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    found = {"podbot.1": _overview()}
    for name, (module, line) in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"podbot {name}", description=line)
        import_module(module).add_arguments(parser)
        found[f"podbot-{name}.1"] = "\n".join(_page(name, line, parser)) + "\n"
    return found


def _overview() -> str:
    lines = [*_head("podbot", "run AI agents in sandboxes you can see into, review and undo")]
    lines += [".SH SYNOPSIS", ".B podbot", r"\fICOMMAND\fR [\fIoptions\fR]"]
    lines += [".SH DESCRIPTION", _text(ABOUT), ".SH COMMANDS"]
    for name, (_, line) in COMMANDS.items():
        lines += [".TP", rf"\fBpodbot\-{name}\fR(1)", _text(line)]
    lines += _parts(EXAMPLES)
    lines += [".SH SEE ALSO", ", ".join(rf"\fBpodbot\-{name}\fR(1)" for name in COMMANDS)]
    lines += [".PP", _text(SEE_ALSO)]
    return "\n".join(lines) + "\n"


def _page(name: str, line: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from _head(f"podbot-{name}", line)
    yield ".SH SYNOPSIS"
    yield from _synopsis(parser)
    yield ".SH DESCRIPTION"
    yield from _described(parser.description or line)
    yield from _options(parser, ".SH OPTIONS")
    for verb, inner in _verbs(parser):
        yield f'.SH "{verb.upper()}"'
        yield from _synopsis(inner)
        yield ".PP"
        yield from _described(inner.description or "")
        yield from _options(inner, None)
        yield from _parts(inner.epilog or "", heading=".SS")
    yield from _parts(parser.epilog or "")
    yield ".SH SEE ALSO"
    yield r"\fBpodbot\fR(1)"


def _head(name: str, line: str) -> Iterator[str]:
    yield r".\" Written by docs/make_manual.py from what --help says."
    yield f'.TH "{name.upper()}" "1" "" "podbot" "{HOME}"'
    yield ".SH NAME"
    yield rf"{_text(name)} \- {_text(line)}"


def _synopsis(parser: argparse.ArgumentParser) -> Iterator[str]:
    if parser.usage is not None:
        words = parser.usage
    else:
        given = [action for action in parser._actions if not action.option_strings]
        words = " ".join([parser.prog, "[options]", *map(_place, given)])
    yield rf"\fB{_text(words)}\fR"


def _place(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    if action.choices is not None and action.metavar is None:
        name = "|".join(map(str, action.choices))
    return {"*": f"[{name}...]", "?": f"[{name}]", "+": f"{name}...", "...": f"{name}..."}.get(
        str(action.nargs), name
    )


def _options(parser: argparse.ArgumentParser, heading: str | None) -> Iterator[str]:
    told = [
        action
        for action in parser._actions
        if action.help not in (None, argparse.SUPPRESS)
        and not isinstance(action, argparse._SubParsersAction)
    ]
    if told and heading is not None:
        yield heading
    for action in told:
        yield ".TP"
        yield _term(action)
        yield _text(str(action.help).replace("%%", "%"))


def _term(action: argparse.Action) -> str:
    if not action.option_strings:
        return rf"\fI{_text(_place(action))}\fR"
    value = "" if action.nargs == 0 else _value(action)
    names = ", ".join(rf"\fB{_text(name)}\fR" for name in action.option_strings)
    return names + (rf" \fI{_text(value)}\fR" if value else "")


def _value(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper())


def _verbs(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _described(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.strip().split("\n\n")):
        if number:
            yield ".PP"
        yield _text(paragraph)


def _parts(text: str, heading: str = ".SH") -> Iterator[str]:
    """What follows the options in the help: examples as they are, the rest as text."""
    for paragraph in text.strip().split("\n\n") if text.strip() else ():
        title, colon, rest = paragraph.partition(":\n")
        if colon and title.isalpha():
            yield f'{heading} "{title.upper() if heading == ".SH" else title.capitalize()}"'
            yield from (".nf", _text(rest), ".fi")
        elif paragraph.startswith("exit codes:"):
            yield f'{heading} "{"EXIT STATUS" if heading == ".SH" else "Exit status"}"'
            yield _text(paragraph.removeprefix("exit codes:").strip())
        else:
            yield ".PP"
            if re.search(r"^ ", paragraph, re.MULTILINE):
                yield from (".nf", _text(paragraph), ".fi")
            else:
                yield _text(paragraph)


def _text(text: str) -> str:
    """Text in which nothing means anything to the formatter."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("…", "...").replace("`", "\\(ga")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def write(folder: Path) -> list[Path]:
    """Write every page into a folder; gives them."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for name, text in pages().items():
        found.append(folder / name)
        found[-1].write_text(text, encoding="utf-8")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    write(Path(sys.argv[1]))
