"""Review: deciding on what a run changed, as typed calls that print nothing and ask nothing.

    from podbot import review

    found = review.open("last")
    print(len(found.changes), found.summary.size)
    for folder in found.flags_by_folder():
        print(folder.path, [flag.reason for flag in folder.flags])
    found.apply(["src"], allow=["src/.envrc"])
    found.undo()
    found.save("work.tar")
    found.discard()

`podbot changes` and the menu after `podbot run` are made of these calls, so a program, a server or
a page can do all they do, by the same rules.

Names here are the public API, imported when first used.
"""

from podbot.on_use import on_use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podbot.changes.diffs.diff import for_people
    from podbot.changes.diffs.text import shown
    from podbot.review.consent import Consent
    from podbot.review.files import Saved
    from podbot.review.finding import Discarded, Listed, discard, entries, listed
    from podbot.review.picking import Picked
    from podbot.review.reading import heal
    from podbot.review.reviewing import Review, load, open
    from podbot.review.summary import FolderFlags, Summary, called

_HOMES = {
    "podbot.changes.diffs.diff": "for_people",
    "podbot.changes.diffs.text": "shown",
    "podbot.review.consent": "Consent",
    "podbot.review.files": "Saved",
    "podbot.review.finding": "Discarded Listed discard entries listed",
    "podbot.review.picking": "Picked",
    "podbot.review.reading": "heal",
    "podbot.review.reviewing": "Review load open",
    "podbot.review.summary": "FolderFlags Summary called",
}

__all__ = [
    "Consent",
    "Discarded",
    "FolderFlags",
    "Listed",
    "Picked",
    "Review",
    "Saved",
    "Summary",
    "called",
    "discard",
    "entries",
    "for_people",
    "heal",
    "listed",
    "load",
    "open",
    "shown",
]

# Hidden from type checkers, or every misspelt name would be an object to them.
if not TYPE_CHECKING:
    __getattr__ = on_use(globals(), _HOMES)
