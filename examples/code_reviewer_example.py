"""Have a small repository reviewed by a (scripted) model, in a sandbox, offline.

A prompt is composed of instructions, a checklist, a section with a tool of its own for findings,
and a workspace. The model looks around, runs the tests, mends a bug and reports what it found; the
repository itself is not changed. The workspace is any of podbot's, and all else stays the same:

    python examples/code_reviewer_example.py [--backend overlay|container|memory|local]
        [--show-prompt]

Everything is real but the model's mind. For a real one, put an adapter in the place of `REVIEWER`.
Exit codes: 0 reviewed, 1 the repository was changed or something was not found, 2 no sandbox.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from podbot.changes.diffs.text import shown
from podbot.errors import PodbotError
from podbot.prompt import (
    MarkdownSection,
    Prompt,
    ScriptedCall,
    ScriptedModel,
    Section,
    Tool,
    ToolContext,
    ToolResult,
    Transcript,
    execute,
)
from podbot.runtime.events import InProcessEventBus, ToolInvoked
from podbot.runtime.session import Session
from podbot.tools import (
    GrepResult,
    HostMount,
    OverlaySandboxConfig,
    OverlaySandboxSection,
    ShellResult,
    UnsafeLocalSandboxConfig,
    UnsafeLocalSandboxSection,
    VfsPath,
    VfsToolsConfig,
    VfsToolsSection,
    VirtualFileSystem,
    WorkspaceSection,
)

REPOSITORY = {
    "README.md": "# ledger\n\nAdds up what people spent. Run `python3 -m unittest`.\n",
    "ledger.py": (
        '"""What people spent."""\n\n\n'
        "def total(amounts):\n"
        "    return sum(amounts[1:])\n\n\n"
        "def parse(text):\n"
        "    try:\n"
        "        return [eval(word) for word in text.split()]\n"
        "    except:\n"
        "        return []\n"
    ),
    "test_ledger.py": (
        "import unittest\n\n"
        "import ledger\n\n\n"
        "class Totals(unittest.TestCase):\n"
        "    def test_all_amounts_count(self):\n"
        '        self.assertEqual(ledger.total(ledger.parse("1 2 3")), 6)\n'
    ),
}


# A section with a tool of its own


@dataclass(frozen=True, slots=True)
class Finding:
    """Something the reviewer found. The session keeps each one once."""

    path: str = field(metadata={"description": "The file, below the workspace."})
    line: int = field(metadata={"description": "The line, from 1.", "minimum": 1})
    severity: Literal["high", "low"]
    text: str = field(metadata={"description": "What is wrong.", "max_length": 500})


@dataclass(frozen=True, slots=True)
class ReportFindings:
    """What the tool takes."""

    findings: tuple[Finding, ...] = field(metadata={"description": "All of them.", "min_length": 1})


def report_findings(
    params: ReportFindings, *, context: ToolContext
) -> ToolResult[tuple[Finding, ...]]:
    """Keep the findings in the session, where the person who asked for the review looks."""
    for finding in params.findings:
        context.session.mutate(Finding).append(finding)
    return ToolResult(f"{len(params.findings)} findings are noted.", params.findings)


def findings_section() -> Section:
    return MarkdownSection(
        key="findings",
        title="Findings",
        template="Report everything you found with one call of `report_findings`.",
        tools=[
            Tool[ReportFindings, tuple[Finding, ...]](
                name="report_findings",
                description="Report what you found in the review.",
                handler=report_findings,
            )
        ],
    )


# The workspace: the one thing that differs between backends


def overlay(session: Session, repository: Path) -> WorkspaceSection:
    config = OverlaySandboxConfig(target=repository, discard=True)
    return OverlaySandboxSection(session=session, config=config)


def local(session: Session, repository: Path) -> WorkspaceSection:
    config = UnsafeLocalSandboxConfig(mounts=all_of(repository), allowed_host_roots=[repository])
    return UnsafeLocalSandboxSection(session=session, config=config)


def memory(session: Session, repository: Path) -> WorkspaceSection:
    config = VfsToolsConfig(mounts=all_of(repository), allowed_host_roots=[repository])
    return VfsToolsSection(session=session, config=config)


def container(session: Session, repository: Path) -> WorkspaceSection:
    from podbot.engine import DEFAULT_IMAGE  # the one that `podbot image build` makes
    from podbot.tools import PodmanSandboxConfig, PodmanSandboxSection

    config = PodmanSandboxConfig(
        image=DEFAULT_IMAGE,
        mounts=all_of(repository),
        allowed_host_roots=[repository],
        keep_workspace=False,  # the copy goes with the section: a run leaves nothing behind
    )
    return PodmanSandboxSection(session=session, config=config)


def all_of(repository: Path) -> tuple[HostMount, ...]:
    """A copy of the repository as the workspace itself."""
    return (HostMount(host_path=repository, mount_path="/"),)


BACKENDS: dict[str, Callable[[Session, Path], WorkspaceSection]] = {
    "overlay": overlay,
    "container": container,
    "memory": memory,
    "local": local,
}


def review_prompt(workspace: Section) -> Prompt:
    """Everything the model is told, and every tool it has."""
    checklist = MarkdownSection(
        key="checklist",
        title="Checklist",
        template="- Do the tests pass? Mend what fails, as little as possible.\n"
        "- Is text that comes from outside ever run as code?\n"
        "- Are errors swallowed?",
    )
    return Prompt(
        ns="examples/reviewing",
        key="code-reviewer",
        sections=[
            MarkdownSection(
                key="instructions",
                title="Instructions",
                template="Review the repository ${name} in your workspace. Read before you judge.",
                params={"name": "ledger"},
                children=[checklist],
            ),
            workspace,
            findings_section(),
        ],
    )


# The model: what it calls is fixed, what it reports is what it was shown

TESTS = ScriptedCall("shell_execute", {"command": ["python3", "-B", "-m", "unittest", "-q"]})


def run_tests(seen: Transcript) -> ScriptedCall | None:
    """Not every workspace can run something."""
    can = any(tool.name == "shell_execute" for tool in seen.prompt.tools)
    return TESTS if can else None


def report(seen: Transcript) -> ScriptedCall:
    """Findings made of what the tools answered."""
    found: list[dict[str, object]] = []
    for turn in seen.turns:
        if isinstance(turn.result.value, GrepResult):
            for match in turn.result.value.matches:
                runs = "eval(" in match.line
                said = "runs text from outside as code" if runs else "swallows every error"
                severity = "high" if runs else "low"
                found.append(finding(match.path, match.line_number, severity, said))
        if turn.call.name == "edit_file" and turn.result.success:
            failed = any(run.exit_code != 0 for run in test_runs(seen))
            said = "leaves the first amount out" + (", as the test shows" if failed else "")
            found.append(finding("ledger.py", 5, "high", said))
    return ScriptedCall("report_findings", {"findings": found})


def finding(path: object, line: int, severity: str, text: str) -> dict[str, object]:
    return {"path": str(path), "line": line, "severity": severity, "text": text}


def test_runs(seen: Transcript) -> list[ShellResult]:
    values = [turn.result.value for turn in seen.turns]
    return [value for value in values if isinstance(value, ShellResult)]


def verdict(seen: Transcript) -> str:
    codes = [run.exit_code for run in test_runs(seen)]
    tested = "The tests failed before and pass now." if codes == [1, 0] else "Nothing was run."
    return f"One bug mended in the workspace, see the findings for the rest. {tested}"


REVIEWER = ScriptedModel(
    steps=[
        ScriptedCall("ls"),
        ScriptedCall("read_file", {"file_path": "ledger.py"}),
        ScriptedCall("read_file", {"file_path": "test_ledger.py"}),
        ScriptedCall("grep", {"pattern": r"\beval\(|except:", "glob": "**/*.py"}),
        run_tests,
        ScriptedCall(
            "edit_file",
            {"file_path": "ledger.py", "old_string": "amounts[1:]", "new_string": "amounts"},
        ),
        run_tests,
        report,
    ],
    answer=verdict,
    name="scripted reviewer",
)


# Doing it, and showing it to a person


def main() -> int:
    """Review the sample repository; an error of podbot's own is told with its remedy."""
    parser = argparse.ArgumentParser(description="Review a small repository in a sandbox.")
    parser.add_argument("--backend", choices=BACKENDS, default="overlay")
    parser.add_argument("--show-prompt", action="store_true", help="print what the model is told")
    chosen = parser.parse_args()
    try:
        with sample_repository() as repository:
            return review(repository, chosen.backend, chosen.show_prompt)
    except PodbotError as error:
        print(f"podbot: ({error.kind}) {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


@contextmanager
def sample_repository() -> Iterator[Path]:
    """A repository of its own in the home, where projects lie; removed afterwards."""
    parent = Path.home() if os.access(Path.home(), os.W_OK) else Path.cwd()
    folder = Path(tempfile.mkdtemp(prefix=".podbot-review-", dir=parent)).resolve()
    try:
        for name, text in REPOSITORY.items():
            (folder / name).write_text(text)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def review(repository: Path, backend: str, show_prompt: bool) -> int:
    """Run the reviewer on a repository; the exit code."""
    bus = InProcessEventBus()
    bus.subscribe(ToolInvoked, show_call)
    session = Session(bus=bus)
    workspace = BACKENDS[backend](session, repository)
    with review_prompt(workspace) as prompt:
        workspace.open()  # a model would be told that it cannot be opened; here a person is
        if show_prompt:
            print(shown_lines(prompt.render().text))
        answer = execute(REVIEWER, prompt, session)
        mended = session.query(VirtualFileSystem).latest()
    findings = session.query(Finding).all()
    print("\nFindings")
    for each in findings:
        print(f"  {each.severity:<4}  {shown(each.path)}:{each.line}  {shown(each.text)}")
    print("\nProposed change")
    for line in proposed(mended):
        print(f"  {line}")
    print(f"\n{answer.text}")
    untouched = all((repository / name).read_text() == text for name, text in REPOSITORY.items())
    print("The repository itself is as it was." if untouched else "THE REPOSITORY WAS CHANGED.")
    return 0 if untouched and len(findings) == 3 else 1


def show_call(event: ToolInvoked) -> None:
    """One line for each call of the model, as it happens."""
    said = event.result.message.split("\n")[0]
    print(f"{'ok    ' if event.success else 'FAILED'}  {event.name:<16} {shown(said)}")


def proposed(files: VirtualFileSystem | None) -> list[str]:
    """What the reviewer changed in the workspace, as the session knows it."""
    after = None if files is None else files.find(VfsPath(("ledger.py",)))
    text = "" if after is None or after.content is None else after.content
    lines = difflib.unified_diff(
        REPOSITORY["ledger.py"].splitlines(),
        text.splitlines(),
        "ledger.py",
        "ledger.py",
        lineterm="",
    )
    return [shown(line) for line in lines]


def shown_lines(text: str) -> str:
    return "\n".join(map(shown, text.split("\n")))


if __name__ == "__main__":
    sys.exit(main())
