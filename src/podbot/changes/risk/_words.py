"""Words in a file that name other files: what it starts, sources or imports, and where from.

Looks at text only, never at the disk. Understands many languages roughly and none of them well: a
word too much costs a flag that was not needed, a word too few hides one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from podbot.changes.late import expression
from podbot.frozen import dataclass

MAX_FOLDERS = 12
"""How many folders that commands are told to start in count for one file."""
MAX_WORDS = 5_000
"""How many words of one file count."""
LIFECYCLE = (
    "preinstall", "install", "postinstall", "prepublish", "preprepare", "prepare", "postprepare",
    "dependencies",
)  # fmt: skip
"""Scripts of a package.json that npm runs by itself as it installs."""

_SETTINGS = expression(
    r"\.(?:jsonc?|json5|toml|ya?ml|xml|iml|ini|cfg|conf|pkl|kdl|plist|code-workspace|hcl)$",
    re.IGNORECASE,
)
_BLOCKS = expression(r"\.(?:ya?ml|toml|hcl|pkl|kdl|conf)$", re.IGNORECASE)
_PAGES = expression(r"\.(?:md|mdc|markdown|txt|rst)$|rules$", re.IGNORECASE)
_CODE = expression(
    r"\.(?:sh|bash|zsh|ksh|fish|csh|py|js|cjs|mjs|ts|rb|pl|php|lua|r|jl|vim|el|tcl|awk|nu|ps1)$",
    re.IGNORECASE,
)
_COMMENT = expression(r"^[ \t]*(?:#(?!!)|//|--|;|\")[^\n]*", re.MULTILINE)
_WORD = expression(r"[^\s\"'`;&|()<>{}\[\]=!,]+")
_STARTERS = (
    r"\.|source|source_env|source_env_if_exists|dotenv|dotenv_if_exists|exec|eval|command|env|"
    r"nohup|sudo|bash|sh|zsh|dash|ksh|fish|python[\d.]*|node|deno|bun|tsx|ruby|perl|php|lua|"
    r"Rscript|uv|npx|run|include|sinclude"
)
_ARGUMENT = r"(\"[^\"\n]+\"|'[^'\n]+'|[^\s;&|)\"'`]+)"
_LOADED = expression(
    rf"(?:^|[\s;&|({{`@-])(?:{_STARTERS})[ \t]+(?:-[^\s]+[ \t]+)*{_ARGUMENT}", re.MULTILINE
)
_STARTED = expression(
    r"(?:^[ \t]*(?:- |[-@+]*)|[;&|({`]|\b(?:then|do|else|if|while|until|time|exec|xargs)\b)[ \t]*"
    r"((?:[.~]{1,2}|\$\{?\w+\}?|[\w.+-]+)?/[^\s;&|)\"'`<>]+)",
    re.MULTILINE,
)
_CALLED = expression(
    r"\b(?:source|load|sys\.source|dofile|loadfile|require|require_relative|include|import|from|"
    r"execfile|run_path|spawn|readfile)\b\s*\(?\s*[\"']([^\"'\n]+)[\"']"
)
_IMPORTED = expression(r"^[ \t]*(?:import|from)[ \t]+([\w.]+)", re.MULTILINE)
_MODULE = expression(
    r"\bpython[\d.]*(?:[\"'\[,\s]|\"args\"\s*:){1,30}(?:-[^m\s]\S*[\"',\s]+){0,9}"
    r"-m[\"',\s]+([\w.]+)"
)
_OF_FOLDER = expression(
    r"(?:^|[\s;&|])"
    r"(?:PATH_add|path_add[ \t]+PATH|load_prefix|use_nix|layout|run-parts(?:[ \t]+-\S+)*)[ \t]+"
    r"([^\s;&|)]+)",
    re.MULTILINE,
)
_SEARCHED = expression(
    r"\b(?:PATH|LD_LIBRARY_PATH|GIT_EXEC_PATH|ZDOTDIR)\+?=(\"[^\"\n]*\"|[^\s;&|]*)"
)
_OF_TOOLS = expression(
    r"\b(?:tsdk|plugins?[-_]?dir|templatedir)[\"']?\s*[:=]\s*[\"']?([^\"'\s,;]+)"
)
# Loops, and calls that give all that is in a folder.
_LOOP = expression(r"\bfor(?:each)?[ \t]+\w+[ \t]*(?:\bin\b|\()[ \t]*([^\n;]{1,1000})")
_SUBSTITUTED = expression(r"(?:\$\(|`)([^)`\n]{1,500})")
_LISTED = expression(
    r"(?:\b\w*glob\w*|list\.files|listdir|scandir|readdir(?:Sync)?|Dir\.\w+|Dir|walk)"
    r"[ \t]*[(\[][ \t]*[\"']([^\"'\n]+)[\"']"
)
_FOUND = expression(
    r"\b(?:find|fd|ls|cat|printf|echo)[ \t]+([^\n;|&]{1,300}?)"
    r"(?:-exec|-ok|\|[^\n]{0,200}?\b(?:sh|bash|zsh|source|xargs|while|eval)\b)"
)
_GLOB = expression(r"[*?\[]")
_VARYING = expression(r"(?<=/)\$\{?\w+\}?$")
_COMMAND = expression(
    # No more is asked of what stands before the word: it would be tried at every character.
    r"(?:command|cmd|program|script|executable|binary|exec|run|entry|entrypoint|"
    r"args|hook|tool|shell|runtime|interpreter|path|server|task|main|plugin|extends|file|"
    r"wrapper|runner|linker|source|load|loader|require|include|import|preset|backend|build|options|"
    r"formatter|linter|handler|provider|engine|module|bin|tsdk)s?"
    r"[\"']?\s*[:=]\s*(\[[^\]]{0,1000}\]?|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[^\n]*)",
    re.IGNORECASE,
)
_IMPORTED_PAGE = expression(r"(?:^|\s)@([\w./~-]*[\w])", re.MULTILINE)

_STARTS_IN = expression(
    r"(?:\b(?:cd|pushd|chdir)[ \t]+(?:-- )?"
    r"|(?:^|[\s\"'\[,])(?:-C|--(?:directory|cwd|prefix|project|project-directory|dir|root|chdir))"
    r"(?:[ \t=]+|[\"'],\s*[\"'])"
    r"|\b(?i:cwd|working[-_]?dir(?:ectory)?|work[-_]?dir|current[-_]?dir(?:ectory)?|root[-_]?dir|"
    r"chdir|base[-_]?dir|directory|dir|root)[\"']?[ \t]*[:=][ \t]*)"
    r"(\"[^\"\n]+\"|'[^'\n]+'|[^\s;&|)\"'`,}\]]+)",
    re.MULTILINE,
)
_SEARCHES = expression(r"\bsys\.path\.\w+\([^\"'\n]*[\"']([^\"'\n]+)")
_SCRIPT = expression(r"\.[cm]?[jt]sx?$", re.IGNORECASE)
_ENDINGS = (".js", ".cjs", ".mjs", ".ts", "/index.js", "/index.ts")
_TASKS = {
    "make": "Makefile makefile GNUmakefile",
    "gmake": "Makefile makefile GNUmakefile",
    "just": "justfile Justfile .justfile",
    "task": "Taskfile.yml Taskfile.yaml",
    "rake": "Rakefile",
    "tox": "tox.ini tox.toml",
    "nox": "noxfile.py",
    "invoke": "tasks.py",
    "doit": "dodo.py",
    "fab": "fabfile.py",
    "gulp": "gulpfile.js",
    "grunt": "Gruntfile.js",
    "pre-commit": ".pre-commit-config.yaml",
    "docker-compose": "docker-compose.yml docker-compose.yaml compose.yaml compose.yml",
    "docker compose": "docker-compose.yml docker-compose.yaml compose.yaml compose.yml",
    "gradle": "build.gradle build.gradle.kts settings.gradle settings.gradle.kts",
    "./gradlew": "build.gradle build.gradle.kts settings.gradle settings.gradle.kts",
    "mvn": "pom.xml",
    "use flake": "flake.nix flake.lock",
    "nix develop": "flake.nix flake.lock",
    "use nix": "shell.nix default.nix",
    "nix-shell": "shell.nix default.nix",
}
_FILES_OF_TASKS = frozenset(name for names in _TASKS.values() for name in names.split())
_TASK = (
    rf"(?:^[\s@-]*|[;&|(`%s]|\b(?:exec|then|do|else|sudo)\b)[ \t]*"
    rf"({'|'.join(map(re.escape, _TASKS))})"
    r"(?=[\s;&|)\"'`,\]]|$)"
)
_IN_CODE = expression(_TASK % "", re.MULTILINE)
_IN_SETTINGS = expression(_TASK % "\"'", re.MULTILINE)
# Tasks of an editor that say whose task they are, and where that looks for it.
_OF_TYPE = expression(rf"[\"']type[\"']\s*:\s*[\"']({'|'.join(map(re.escape, _TASKS))})[\"']")
_OF_NPM = expression(r"[\"']type[\"']\s*:\s*[\"']npm[\"']")
_PACKAGE_IN = expression(r"[\"']path[\"']\s*:\s*[\"']([^\"'\n]+)[\"']")
_DOTENV = expression(r"^[ \t]*dotenv(?:_if_exists)?[ \t]*(?:$|[;#])", re.MULTILINE)
_INCLUDED = expression(r"^[ \t]*[-s]?include[ \t]+([^\n]+)", re.MULTILINE)
_ASSIGNED = expression(
    r"^[ \t]*(?:export[ \t]+|local[ \t]+)?(\w+)[ \t]*[:?]?=[ \t]*"
    r"(?:\"([\w./~-]{1,200})\"|'([\w./~-]{1,200})'|([\w./~-]{1,200}))[ \t]*(?:$|[;#&])",
    re.MULTILINE,
)
_VARIABLE = expression(r"\$(?:\{(\w+)\}|\((\w+)\)|(\w+))")
_RUNNER = expression(r"\b(?:npm|pnpm|yarn|bun|npm-run-all|run-s|run-p)\b")
_RUN_BY = expression(r"(?:npm|pnpm|yarn|bun)(?:[ \t]+(?:run|run-script|-\S+))*[ \t]+([\w:.-]+)")


@dataclass(frozen=True, slots=True)
class Words:
    """What a file names. ``below``: folders of which all counts; ``starts``: where commands begin.

    ``tasks`` are files that a command such as ``make`` looks for there by itself; ``scripts`` are
    words that may be the names of scripts in a package.json there.
    """

    names: tuple[str, ...]
    below: tuple[str, ...]
    starts: tuple[str, ...]
    tasks: tuple[str, ...]
    scripts: frozenset[str] = frozenset()


def words_of(file: str, text: str, *, is_first: bool) -> Words:
    """The words in a file; ``is_first``: it runs by itself, and all paths in it count."""
    if _PAGES.search(file):
        return Words(tuple(_IMPORTED_PAGE.findall(text)), (), (), ())
    names: list[str] = []
    below: list[str] = []
    commands = text
    is_settings = _SETTINGS.search(file) is not None
    if is_settings:
        values = _COMMAND.findall(text)
        commands = "\n".join(values)
        names += (word for value in values for word in _WORD.findall(value) if is_path(word))
        if _BLOCKS.search(file):  # with commands in lines of their own
            commands += "\n" + _COMMENT.sub("", text)
    if not is_settings:
        text = commands = _with_values(_COMMENT.sub("", text))
        names += [".env"] if _DOTENV.search(text) else []
    for found in (*_LOADED.findall(commands), *_STARTED.findall(commands)):
        # In settings a word of which nobody knows that it is a path is none.
        if not is_settings or is_path(found):
            _place(_unquoted(found), names, below)
    for found in (*_CALLED.findall(commands), *_LISTED.findall(commands)):
        _place(found, names, below)
    below += (_unquoted(found) for found in _OF_FOLDER.findall(commands))
    below += _OF_TOOLS.findall(text)
    if not is_settings:
        for found in _SEARCHED.findall(text):
            below += (word for word in _unquoted(found).split(":") if "/" in word)
    for found in _LOOP.findall(commands):
        _gone_over(found, names, below)
    for found in _FOUND.findall(commands):
        below += (word for word in _WORD.findall(found.partition(" -")[0]) if word[0] not in "-$")
    below += (found for found in _LISTED.findall(commands) if not _GLOB.search(found))
    names += modules(_MODULE.findall(commands))
    if _SCRIPT.search(file):
        names += (f"{name}{end}" for name in _CALLED.findall(text) for end in _ENDINGS)
    if not is_settings:
        names += modules(_IMPORTED.findall(text))
        if is_first:
            names += (w for w in _WORD.findall(text) if "/" in w and not _GLOB.search(w))
    if is_of_tasks(file):
        # What a build goes over is most of a project; what it includes are its own rules.
        names, below = [name for name in names if not _GLOB.search(name)], []
        for found in _INCLUDED.findall(text):
            for word in found.split():
                _place(word, names, below)
    tasks = (_IN_SETTINGS if is_settings else _IN_CODE).findall(commands)
    tasks += _OF_TYPE.findall(text) if is_settings else []
    return Words(
        tuple(dict.fromkeys(names))[:MAX_WORDS],
        tuple(dict.fromkeys(below))[:MAX_WORDS],
        _starts(text),
        tuple(name for task in dict.fromkeys(tasks) for name in files_of(task)),
        frozenset(_WORD.findall(commands)) if _RUNNER.search(text) else frozenset(),
    )


def is_path(word: str) -> bool:
    """Whether a word of settings looks like a path."""
    return "/" in word or _CODE.search(word) is not None or _SETTINGS.search(word) is not None


def is_code(path: str) -> bool:
    """Whether a file, by its name, is one that loads others."""
    return _CODE.search(path) is not None


def is_of_tasks(path: str) -> bool:
    """Whether a file, by its name, is one in which a command such as ``make`` looks."""
    return path.rpartition("/")[2] in _FILES_OF_TASKS


def is_settings(path: str) -> bool:
    """Whether a file, by its name, is settings."""
    return _SETTINGS.search(path) is not None


def files_of(task: str) -> list[str]:
    """The files in which a command such as ``make`` looks for what to do."""
    return _TASKS[task].split()


def modules(names: Iterable[str]) -> Iterator[str]:
    """The files that a module of Python may be."""
    for module in names:
        name = module.strip(".").replace(".", "/")
        if name:
            yield from (f"{name}{ending}" for ending in (".py", "/__init__.py", "/__main__.py"))


def scripts_of(package: str) -> dict[str, str]:
    """The scripts of a package.json, by name; none if it is not valid."""
    try:
        found = json.loads(package)
    except (ValueError, RecursionError):
        return {}
    scripts = found.get("scripts") if isinstance(found, dict) else None
    if not isinstance(scripts, dict):
        return {}
    return {str(name): text for name, text in scripts.items() if isinstance(text, str)}


def run_with(scripts: dict[str, str], names: Iterable[str]) -> dict[str, str]:
    """Of some scripts those of these names, with what npm runs before, after and within them."""
    waiting, found = list(names), dict[str, str]()
    while waiting:
        name = waiting.pop()
        if name in found or name not in scripts:
            continue
        text = found[name] = scripts[name]
        waiting += (f"pre{name}", f"post{name}", *_RUN_BY.findall(text))
        if _RUNNER.search(text):
            waiting += _WORD.findall(text)
    return found


def _starts(text: str) -> tuple[str, ...]:
    found = [_unquoted(each) for each in _STARTS_IN.findall(text)]
    found += _SEARCHES.findall(text)
    found += _PACKAGE_IN.findall(text) if _OF_NPM.search(text) else []
    # One after the other may mean one in the other.
    steps = [f"{one}/{two}" for one, two in pairwise(found) if one != two]
    steps = [step for step in steps if "//" not in step and "/~" not in step and "/$" not in step]
    return tuple(dict.fromkeys([*found, *steps]))[:MAX_FOLDERS]


def _with_values(text: str) -> str:
    """A script with the values of variables that are plain words, so that they can be read."""
    values: dict[str, str] = {
        found[0]: found[1] or found[2] or found[3] for found in _ASSIGNED.findall(text)
    }
    if not values:
        return text

    def value_of(found: re.Match[str]) -> str:
        whole: str = found[0]
        return values.get(found[1] or found[2] or found[3], whole)

    return _VARIABLE.sub(value_of, text)


def _place(word: str, names: list[str], below: list[str]) -> None:
    glob = _GLOB.search(word) or _VARYING.search(word)
    if glob is None:
        names.append(word)
    elif "/" in (folder := word[: glob.start()]):
        below.append(folder.rpartition("/")[0] or "/")
    else:
        below.append(".")


def _gone_over(text: str, names: list[str], below: list[str]) -> None:
    """What a loop goes over: files, globs, and all that a command in it lists."""
    for word in _WORD.findall(text.replace('"', "").replace("'", "")):
        if "/" in word or _GLOB.search(word) or is_path(word):
            _place(word, names, below)
    for listed in _SUBSTITUTED.findall(text):
        below += (word for word in _WORD.findall(listed)[1:] if word[0] not in "-$*?")


def _unquoted(word: str) -> str:
    return word.strip("\"'")
