"""Where podbot keeps what must outlive a run: records, journals, what undo needs.

The state folder is private to the user (0700) and hidden from every sandbox, whatever its policy.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from podbot.errors import ChangesError, Kind

STATE_VARIABLE = "PODBOT_STATE"
UNFINISHED = "unfinished"


def state_place() -> Path:
    """Where the state folder is, whether or not it exists.

    ``$PODBOT_STATE``, else ``$XDG_STATE_HOME/podbot``, else ``~/.local/state/podbot``.
    """
    own = os.environ.get(STATE_VARIABLE)
    if own:
        if not os.path.isabs(own):
            raise ChangesError(
                f"{STATE_VARIABLE}={own} is not an absolute path",
                kind=Kind.STATE_FAILED,
                remedy="start it with /",
            )
        return Path(own)
    base = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(base):  # the XDG rules: a relative one does not count
        return Path(base) / "podbot"
    return Path(_home()) / ".local" / "state" / "podbot"


def _home() -> str:
    """The home folder. A relative ``$HOME`` does not count: it would be a folder of the target."""
    home = os.environ.get("HOME", "")
    if os.path.isabs(home):
        return home
    import pwd  # seldom needed

    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = ""
    if not os.path.isabs(home):
        raise ChangesError(
            "nothing tells where the state folder is: there is no home folder",
            kind=Kind.STATE_FAILED,
            remedy=f"set HOME, or {STATE_VARIABLE}, to an absolute path",
        )
    return home


def new_folder(*parts: str) -> Path:
    """A folder below the state folder that was not there before; `FileExistsError` if it was."""
    place = state_folder(*parts[:-1]) / parts[-1]
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:
        raise
    except OSError as error:
        raise _not_made(place, error) from None
    return place


def state_folder(*parts: str) -> Path:
    """The state folder or one below it; made, and checked to be ours alone."""
    place = state_place()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(place)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise ChangesError(
                f"the state folder {place} is not a folder of yours",
                kind=Kind.STATE_FAILED,
                remedy=f"remove it, or set {STATE_VARIABLE} to a folder you own",
            )
        if found.st_mode & 0o077:
            os.chmod(place, 0o700)
        for part in parts:
            place = place / part
            place.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _not_made(place, error) from None
    return place


def unfinished() -> list[str]:
    """The journals of what is being applied or undone now, or was when its podbot died, by id.

    Almost always none: a look into one folder, so that whoever is about to look at a target can
    afford to ask.
    """
    try:
        return sorted(os.listdir(state_place() / "journals" / UNFINISHED))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _not_read(error) from None


def _not_read(error: OSError) -> ChangesError:
    return ChangesError(
        f"the state folder {state_place()} cannot be read: {error.strerror}",
        kind=Kind.STATE_FAILED,
        remedy=f"look whether HOME is yours, or set {STATE_VARIABLE} to a folder you own",
    )


def has_books(id: str) -> bool:
    """Whether anything is noted of a run: its record, or a journal of what was applied from it."""
    state = state_place()
    if os.path.lexists(state / "runs" / f"{id}.json"):
        return True
    try:
        names = os.listdir(state / "journals")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _not_read(error) from None
    return any(name.startswith(f"{id}.") for name in names)


def _not_made(place: Path, error: OSError) -> ChangesError:
    remedy = f"set {STATE_VARIABLE} to a folder you own"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "make room and try again"
    return ChangesError(
        f"the state folder {place} cannot be made: {error.strerror}",
        kind=Kind.STATE_FAILED,
        remedy=remedy,
    )
