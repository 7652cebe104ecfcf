"""`shell`: a shell that remembers from one script to the next; and other users for commands."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import pytest

from podbot.errors import Kind, SandboxError
from podbot.sandbox import Limits, Sandbox
from podbot.testing.base import SOON, Base, needs_processes, out_of_time, refused


class ShellTests(Base):
    """Shells that go on, streams in one, and who runs a command."""

    @needs_processes
    @pytest.mark.parametrize("program", [None, "sh"])
    def test_a_shell_keeps_its_folder_variables_and_functions(
        self, sandbox: Sandbox, program: str | None
    ) -> None:
        sandbox.mkdir("src")
        with sandbox.shell(program, env={"GIVEN": "yes"}) as shell:
            done = shell.run("cd src; x=5; export Y=7; f() { echo f$1; }", timeout=SOON)
            assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
            assert done.cwd == sandbox.realpath("src")
            done = shell.run("echo $x $(sh -c 'echo $Y') $GIVEN; pwd; f 3", timeout=SOON)
            assert done.stdout == f"5 7 yes\n{done.cwd}\nf3\n"

    @needs_processes
    def test_a_shell_tells_streams_and_exit_codes_apart(self, sandbox: Sandbox) -> None:
        with sandbox.shell() as shell:
            done = shell.run("printf 'no newline'; printf oops >&2; (exit 3)", timeout=SOON)
            assert (done.stdout, done.stderr, done.exit_code) == ("no newline", "oops", 3)
            assert not done.ok and not done.ended
            done = shell.run("cat; echo 'it'\"'\"'s'; false", timeout=SOON)  # its input is empty
            assert (done.stdout, done.exit_code) == ("it's\n", 1)

    @needs_processes
    @pytest.mark.parametrize("program", ["sh", None])
    def test_a_mistake_in_a_script_does_not_end_the_shell(
        self, sandbox: Sandbox, program: str | None
    ) -> None:
        with sandbox.shell(program) as shell:
            shell.run("x=5", timeout=SOON)
            for script in ("if", "echo 'open", "no-such-command", ")"):
                done = shell.run(script, timeout=SOON)
                assert done.exit_code != 0 and done.stderr and not done.ended
            assert shell.run("echo $x", timeout=SOON).stdout == "5\n"

    @needs_processes
    def test_a_shell_that_ends_says_so_and_the_next_begins_where_it_was(
        self, sandbox: Sandbox
    ) -> None:
        sandbox.mkdir("src")
        with sandbox.shell() as shell:
            shell.run("cd src; x=5", timeout=SOON)
            done = shell.run("echo last; echo words >&2; exit 4", timeout=SOON)
            assert (done.stdout, done.stderr, done.exit_code) == ("last\n", "words\n", 4)
            assert done.ended and not done.timed_out
            done = shell.run('echo "[$x]"', timeout=SOON)
            assert (done.stdout, done.cwd) == ("[]\n", sandbox.realpath("src"))

    @needs_processes
    def test_a_script_that_takes_too_long_is_killed_with_all_it_started(
        self, sandbox: Sandbox
    ) -> None:
        with sandbox.shell() as shell:
            done = out_of_time(
                lambda seconds: shell.run("echo begun; : > begun; sleep 600", timeout=seconds),
                lambda: sandbox.exists("begun"),
            )
            assert (done.exit_code, done.timed_out, done.ended) == (124, True, True)
            assert done.stdout == "begun\n"
            flood = shell.run("yes", timeout=2)  # which is never silent
            assert flood.timed_out and set(flood.stdout) <= set("y\n")
            assert shell.run("echo again", timeout=SOON).stdout == "again\n"

    @needs_processes
    def test_output_of_a_shell_is_bounded_and_redirected_as_it_says(self) -> None:
        with self.open_sandbox(limits=Limits(output=1000)) as sandbox, sandbox.shell() as shell:
            script = "head -c 9000000 /dev/zero >&2; head -c 9000000 /dev/zero | tr '\\0' a"
            done = shell.run(script, timeout=SOON)
            assert done.stdout_truncated and done.stderr_truncated and not done.ended
            assert len(done.stdout_bytes) == len(done.stderr_bytes) == 1000
            shell.run("exec > out; echo hidden", timeout=SOON)
            assert shell.run("echo more", timeout=SOON).stdout == ""
            assert sandbox.read("out") == b"hidden\nmore\n"

    @needs_processes
    def test_a_shell_that_is_not_there_is_told_as_a_command_is(self, sandbox: Sandbox) -> None:
        with refused(Kind.COMMAND_NOT_FOUND):
            sandbox.shell("no-such-shell").run("true")
        with refused(Kind.INVALID):
            sandbox.shell().run("a\0b")

    def test_a_shell_is_refused_where_nothing_runs(self, sandbox: Sandbox) -> None:
        if self.has_processes:
            assert sandbox.shell().run("true", timeout=SOON).ok
        else:
            with refused(Kind.UNSUPPORTED):
                sandbox.shell().run("true")

    @needs_processes
    def test_merged_streams_are_in_the_order_in_which_they_were_written(
        self, sandbox: Sandbox
    ) -> None:
        script = "for n in 1 2 3 4 5 6 7 8; do echo o$n; echo e$n >&2; done; exit 3"
        done = sandbox.exec(["sh", "-c", script], merge_stderr=True)
        assert done.stdout.split() == [f"{way}{n}" for n in range(1, 9) for way in "oe"]
        assert (done.stderr, done.exit_code) == ("", 3)

    @needs_processes
    def test_a_command_runs_as_who_was_asked_for_or_says_why_not(self, sandbox: Sandbox) -> None:
        uid = int(sandbox.exec(["id", "-u"]).stdout)
        assert int(sandbox.exec(["id", "-u"], user=uid).stdout) == uid
        other = 12345
        try:
            done = sandbox.exec(
                ["sh", "-c", "id -u; id -g; exit 3"], user=f"{other}:{other}", cwd="/"
            )
        except SandboxError as error:
            assert error.kind is Kind.UNSUPPORTED and "one user's" in error.message
            assert error.remedy is not None and "privileged=True" in error.remedy
            assert uid != 0 or sandbox.backend != "local"
        else:
            assert (done.stdout.split(), done.exit_code) == ([str(other)] * 2, 3)
        with refused(Kind.INVALID):
            sandbox.exec(["id"], user="no-such-user")

    @needs_processes
    @pytest.mark.parametrize("user", [
        "", "a b", -1, True, "root:", "-1", 1.5, 2**32 - 1, "4294967295",
        "root:4294967295", "9" * 30,
    ])  # fmt: skip
    def test_what_is_no_user_is_refused(self, sandbox: Sandbox, user: str | int) -> None:
        with refused(Kind.INVALID):
            sandbox.exec(["id"], user=user)
