"""What `shell_execute` and `evaluate_python` do and refuse, on every backend that has them."""

from __future__ import annotations

import dataclasses
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from workplace import DEADLINE, Place, SectionTests, running, unique_sleep, wait_for

from podbot.prompt import Cancellation, Deadline
from podbot.prompt.result import ToolResult
from podbot.runtime.events import ToolInvoked
from podbot.runtime.session import Session
from podbot.sandbox import Sandbox
from podbot.tools import EvalResult, VirtualFileSystem, evaluation

# Seconds that something is given to begin before its time is up: more on a busier machine.
COMMAND_TIMES = (1, 4, 20, 120)
CODE_TIMES = (0.7, evaluation.SECONDS, 20.0, 120.0)


class CommandTests(SectionTests):
    """Commands and Python, their limits, and what becomes of files they change."""

    commands = True
    eval_characters: int | None = None
    sees_workspace_path = False
    """Whether ``/workspace`` exists inside commands."""
    takes_strings = True
    """Whether a command may be one string."""

    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A busy machine may need longer to start an interpreter than code has in all."""
        monkeypatch.setattr(evaluation, "SECONDS", DEADLINE)

    # shell_execute

    def test_a_command_tells_all_it_did(self, place: Place) -> None:
        done = place.shell("echo out; echo err >&2; exit 3")
        assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")
        assert done.command == ("sh", "-c", "echo out; echo err >&2; exit 3")
        assert (done.cwd, done.timed_out) == ("/workspace", False)
        assert done.duration_ms >= 0
        fields = [field.name for field in dataclasses.fields(done)]
        assert fields == [
            "command", "cwd", "exit_code", "stdout", "stderr", "duration_ms", "timed_out",
        ]  # fmt: skip

    def test_no_shell_reads_the_words(self, place: Place) -> None:
        done = place.ok("shell_execute", command=["echo", "$HOME", "*", ";", "false"])
        assert done.stdout == "$HOME * ; false\n"

    def test_one_string_is_for_a_shell_where_there_may_be_one(self, place: Place) -> None:
        if self.takes_strings:
            done = place.ok("shell_execute", command="echo a b | wc -w; exit 3")
            assert (done.stdout.strip(), done.exit_code) == ("2", 3)
            assert done.command == ("sh", "-c", "echo a b | wc -w; exit 3")
        else:
            message = place.fails("shell_execute", command="echo a b | wc -w")
            assert "gives none to a shell" in message
        text = place.prompt.render(session=place.session).text
        assert ("`sh -c`" in text) == self.takes_strings

    def test_a_command_that_is_not_there_is_data_too(self, place: Place) -> None:
        done = place.ok("shell_execute", command=["no-such-command"])
        assert done.exit_code == 127 and "no-such-command" in done.stderr
        place.ok("write_file", file_path="plain.txt", content="x")
        assert place.ok("shell_execute", command=["./plain.txt"]).exit_code == 126

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"command": []}, "command is empty"),
            ({"command": [""]}, "command is empty"),
            ({"command": [" "]}, "command is empty"),
            ({"command": " "}, "command"),
            ({"command": "x" * 4097}, "command"),
            ({"command": "echo é"}, "command"),
            ({"command": ["echo", "é"]}, "ASCII"),
            ({"command": ["echo", "a\0b"]}, "NUL"),
            ({"command": ["echo", "x" * 4093]}, "4097 characters"),
            ({"command": ["true", *[""] * 4096]}, "4097 words"),
            ({"command": ["true"], "env": {f"V{n}": "" for n in range(65)}}, "65 entries"),
            ({"command": ["true"], "env": {"K" * 81: "x"}}, "names are ASCII"),
            ({"command": ["true"], "env": {"": "x"}}, "names are ASCII"),
            ({"command": ["true"], "env": {"A=B": "x"}}, "names are ASCII"),
            ({"command": ["true"], "env": {"É": "x"}}, "names are ASCII"),
            ({"command": ["true"], "env": {"K": "x" * 513}}, "values are ASCII"),
            ({"command": ["true"], "env": {"K": "é"}}, "values are ASCII"),
            ({"command": ["true"], "env": {"K": 1}}, "env"),
            ({"command": ["true"], "stdin": "x" * 48_001}, "48001 characters"),
            ({"command": ["true"], "timeout_seconds": float("nan")}, "timeout_seconds"),
            ({"command": ["true"], "timeout_seconds": "5"}, "timeout_seconds"),
            ({"command": ["true"], "cwd": "missing"}, "missing"),
            ({"command": ["true"], "cwd": "/etc"}, "outside of the workspace"),
            ({"command": ["true"], "cwd": "."}, "cwd holds the segment '.'"),
            ({"command": ["true"], "cwd": "/workspace/."}, "cwd holds the segment '.'"),
            ({"command": ["true"], "shell": True}, "shell"),
        ],
    )
    def test_a_command_keeps_the_limits(
        self, place: Place, arguments: dict[str, object], said: str
    ) -> None:
        message = place.fails("shell_execute", **arguments)
        assert said in message
        assert len(message) < 500

    def test_what_is_just_within_the_limits_is_done(self, place: Place) -> None:
        done = place.ok(
            "shell_execute",
            command=["sh", "-c", "cat | wc -c; echo $K64 | wc -c; true " + "x" * 4051],
            env={"K" * 80: "x", **{f"K{n}": "y" * 512 for n in range(2, 65)}},
            stdin="z" * 48_000,
        )
        assert done.stdout.split() == ["48000", "513"]

    def test_a_command_runs_where_it_was_told_to(self, place: Place) -> None:
        place.ok("write_file", file_path="src/deep/a.txt", content="x")
        for cwd in ("src/deep", "/workspace/src/deep"):
            done = place.ok("shell_execute", command=["ls"], cwd=cwd)
            assert (done.stdout, done.cwd) == ("a.txt\n", "/workspace/src/deep")
        for cwd in (None, "/", "/workspace"):
            done = place.ok("shell_execute", command=["ls"], cwd=cwd)
            assert (done.stdout, done.cwd) == ("src\n", "/workspace")
        assert place.ok("shell_execute", command=["ls"]).stdout == "src\n"

    def test_the_folder_of_a_result_can_be_given_back(self, place: Place) -> None:
        place.ok("write_file", file_path="src/deep/a.txt", content="x")
        for cwd in ("src/deep", "/"):
            done = place.ok("shell_execute", command=["pwd"], cwd=cwd)
            again = place.ok("shell_execute", command=["pwd"], cwd=done.cwd)
            assert (again.stdout, again.cwd) == (done.stdout, done.cwd)
            if self.sees_workspace_path:
                assert done.stdout == f"{done.cwd}\n"

    def test_messages_call_the_workspace_as_tools_do(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="x")
        for cwd in ("missing", "a.txt"):
            message = place.fails("shell_execute", command=["pwd"], cwd=cwd)
            assert f"/workspace/{cwd}" in message
            assert place.sandbox.workdir == "/workspace" or place.sandbox.workdir not in message

    def test_stdin_and_environment_arrive(self, session: Session) -> None:
        place = Place(session, self.make_section(session, base_environment={"BASE": "b", "X": "1"}))
        done = place.ok(
            "shell_execute",
            command=["sh", "-c", "cat; echo $BASE $X $MORE"],
            stdin="from stdin\n",
            env={"X": "2", "MORE": "m"},
        )
        assert done.stdout == "from stdin\nb 2 m\n"
        assert place.shell("echo $BASE $X $MORE").stdout == "b 1\n"
        assert dict(place.workspace.env) == {"BASE": "b", "X": "1"}
        place.section.close()

    def test_the_environment_is_short(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PODBOT_TEST_SECRET", "hunter2")
        assert "hunter2" not in place.ok("shell_execute", command=["env"]).stdout

    def test_environment_values_show_in_no_process_list(self, place: Place) -> None:
        secret = f"value{secrets.randbelow(10**9)}"
        assert place.shell(running(secret), env={"KEY": secret}).stdout == "0\n"
        assert place.shell(running(secret) + f"; : {secret}").stdout != "0\n"  # it would be seen

    @pytest.mark.parametrize(
        ("asked", "given"), [(None, 30.0), (0.2, 1.0), (-5, 1.0), (500, 120.0), (7, 7.0)]
    )
    def test_a_timeout_is_clamped(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, asked: float | None, given: float
    ) -> None:
        place.ok("ls")
        seen: list[float] = []
        real = Sandbox.exec

        def spy(sandbox: Sandbox, argv: Any, **options: Any) -> Any:
            seen.append(options["timeout"])
            return real(sandbox, argv, **options)

        monkeypatch.setattr(Sandbox, "exec", spy)
        place.ok("shell_execute", command=["true"], timeout_seconds=asked)
        assert seen == [given]

    def test_a_timeout_kills_the_whole_group_and_keeps_the_output(self, place: Place) -> None:
        sleep = unique_sleep()
        script = (
            f"({sleep}; echo late > late.txt) & (setsid {sleep} &) ; "
            f"echo $$ > pid; echo begun; wait; {sleep}"
        )
        for seconds in COMMAND_TIMES:
            done = place.shell(script, timeout_seconds=seconds)
            assert (done.exit_code, done.timed_out) == (124, True)
            if done.stdout:
                break
        assert (done.stdout, done.stderr) == ("begun\n", "")
        wait_for(lambda: place.shell(running(sleep)).stdout == "0\n")
        assert "pid" in place.files and "late.txt" not in place.files

    def test_output_is_cut_at_32_kib(self, place: Place) -> None:
        done = place.shell(
            "head -c 40000 /dev/zero | tr '\\0' x; head -c 32768 /dev/zero | tr '\\0' y >&2"
        )
        assert len(done.stdout) == 32 * 1024
        assert done.stdout.endswith("x[truncated]")
        assert done.stderr == "y" * 32 * 1024

    def test_output_that_is_no_text_is_text_all_the_same(self, place: Place) -> None:
        done = place.shell("printf 'a\\377b'; head -c 32768 /dev/zero | tr '\\0' '\\377' >&2")
        assert done.stdout == "a\ufffdb"
        assert len(done.stderr.encode()) <= 32 * 1024
        assert done.stderr.endswith("[truncated]")

    def test_output_nobody_wants_goes_nowhere(
        self, place: Place, capfd: pytest.CaptureFixture[str]
    ) -> None:
        done = place.shell("echo out; echo err >&2", capture_output=False)
        assert (done.stdout, done.stderr) == ("capture disabled", "capture disabled")
        captured = capfd.readouterr()
        assert (captured.out, captured.err) == ("", "")

    def test_files_a_command_changed_reach_the_session(self, place: Place) -> None:
        place.ok("write_file", file_path="a.txt", content="a")
        place.ok("write_file", file_path="b.txt", content="b")
        place.ok("write_file", file_path="same.txt", content="s")
        place.shell(
            "echo longer > a.txt; rm b.txt; mkdir d; echo new > d/c.txt; printf '\\0' > bin; "
            "touch same.txt; ln -s a.txt link; head -c 60000 /dev/zero | tr '\\0' x > large"
        )
        known = {path: (file.content, file.version) for path, file in place.files.items()}
        assert known == {
            "a.txt": ("longer\n", 2),
            "bin": (None, 1),
            "d/c.txt": ("new\n", 1),
            "large": (None, 1),
            "same.txt": ("s", 1),
        }
        assert place.files["bin"].encoding == "binary"
        assert place.files["large"].size_bytes == 60_000

    def test_a_file_rewritten_at_once_with_the_same_size_is_noticed(self, place: Place) -> None:
        for number in range(6):
            place.shell(f"printf {number} > same-size.txt")
            assert place.files["same-size.txt"].content == str(number)

    def test_files_a_failing_call_changed_reach_the_session_too(self, place: Place) -> None:
        place.ok("write_file", file_path="old.txt", content="x")
        result = place.call(
            "evaluate_python",
            code="import os; os.remove('old.txt'); open('new.txt', 'w').write('n'); 1/0",
        )
        assert not result.success
        assert {path: file.content for path, file in place.files.items()} == {"new.txt": "n"}

    @pytest.mark.parametrize("mode", ["000", "644"])
    def test_a_workspace_that_a_command_closed_can_be_used_on(
        self, place: Place, mode: str
    ) -> None:
        place.ok("write_file", file_path="a.txt", content="x")
        assert place.shell(f"chmod {mode} .; echo told").stdout == "told\n"
        assert place.shell("cat a.txt").stdout == "x"
        assert place.ok("read_file", file_path="a.txt").total_lines == 1
        place.sandbox.exec(["chmod", mode, place.sandbox.workdir])  # as something that lives on may
        place.call("shell_execute", command=["true"])
        assert place.shell("cat a.txt").stdout == "x"

    def test_a_fifo_a_socket_and_a_device_hang_nobody(self, place: Place) -> None:
        place.shell("mkfifo fifo; ln -s /dev/zero zero; ln -s fifo to-fifo")
        for path in ("fifo", "to-fifo"):
            assert "regular file" in place.fails("read_file", file_path=path)
            place.fails("edit_file", file_path=path, old_string="a", new_string="b")
            place.fails("write_file", file_path=path, content="x")
        place.fails("read_file", file_path="zero")
        assert place.ok("grep", pattern="x").matches == ()
        kinds = {str(entry.path): entry.kind for entry in place.ok("ls").entries}
        assert kinds["fifo"] == "other"
        place.ok("rm", path="fifo")

    def test_names_that_are_no_text_are_shown_as_such(self, place: Place) -> None:
        place.shell("printf x > \"$(printf 'a\\377\\033b')\"")
        names = [str(entry.path) for entry in place.ok("ls").entries]
        assert len(names) == 1 and names[0].isprintable()
        assert "\ufffd" in names[0]
        names[0].encode()
        assert [str(match.path) for match in place.ok("grep", pattern="x").matches] == names
        assert [str(path) for path in place.ok("glob", pattern="*").matches] == names

    # evaluate_python

    def test_equal_evaluations_are_each_kept(self, place: Place) -> None:
        for _ in range(3):
            place.ok("evaluate_python", code="1 + 1")
        results = place.session.query(EvalResult).all()
        assert [result.value_repr for result in results] == ["2", "2", "2"]

    def test_code_gives_its_last_value_and_what_it_printed(self, place: Place) -> None:
        code = "import sys\nprint('out', end='')\nprint('err', file=sys.stderr, end='')\n'x' * 3"
        done = place.ok("evaluate_python", code=code)
        assert (done.value_repr, done.stdout, done.stderr) == ("'xxx'", "out", "err")
        assert (done.globals, done.reads, done.writes) == ({}, (), ())
        assert place.session.query(EvalResult).latest() == done

    @pytest.mark.parametrize("code", ["x = 1", "None", "for i in range(3): i"])
    def test_code_without_a_value_gives_none(self, place: Place, code: str) -> None:
        assert place.ok("evaluate_python", code=code).value_repr is None

    def test_an_exception_is_a_failing_result_with_its_traceback(self, place: Place) -> None:
        result = place.call("evaluate_python", code="def f():\n    return 1 / 0\nprint(1)\nf()")
        assert not result.success
        assert result.value.stdout == "1\n"
        assert "line 2, in f" in result.value.stderr
        assert "ZeroDivisionError" in result.value.stderr
        assert "in run" not in result.value.stderr
        result = place.call("evaluate_python", code="def (")
        assert not result.success and "SyntaxError" in result.value.stderr
        assert not place.call("evaluate_python", code="raise SystemExit(2)").success
        assert place.ok("evaluate_python", code="raise SystemExit(0)").value_repr is None

    def test_code_that_ends_without_a_word_is_told_as_that(self, place: Place) -> None:
        result = place.call("evaluate_python", code="import os; os._exit(7)")
        assert not result.success
        assert result.message == "The code failed (exit code 7)."
        assert (
            place.ok("evaluate_python", code="import sys; sys.stdout = None\n5").value_repr == "5"
        )

    def test_nothing_of_one_call_is_left_for_the_next_but_files(self, place: Place) -> None:
        place.ok("evaluate_python", code="x = 1; open('kept.txt', 'w').write('k')")
        assert "NameError" in place.call("evaluate_python", code="x").value.stderr
        assert place.ok("evaluate_python", code="open('kept.txt').read()").value_repr == "'k'"
        assert place.files["kept.txt"].content == "k"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"reads": ["a"]}, "reads"),
            ({"writes": ["a"]}, "writes"),
            ({"globals": {"a": "1"}}, "globals"),
            ({"code": "  "}, "code is empty"),
            ({"code": "'\ud800'"}, "surrogate"),
        ],
    )
    def test_code_comes_alone(self, place: Place, arguments: dict[str, object], said: str) -> None:
        assert said in place.fails("evaluate_python", **{"code": "1", **arguments})

    def test_code_that_takes_too_long_is_ended_with_all_it_started(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sleep = unique_sleep()
        code = (
            "import subprocess, sys, time\n"
            f"subprocess.Popen({sleep.split()}, start_new_session=True)\n"
            "print('begun', flush=True)\ntime.sleep(600)"
        )
        assert CODE_TIMES[1] == 5.0
        for seconds in CODE_TIMES:
            monkeypatch.setattr(evaluation, "SECONDS", seconds)
            result = place.prompt.call("evaluate_python", {"code": code}, session=place.session)
            assert not result.success and f"longer than {seconds:g} s " in result.message
            value = result.value
            assert isinstance(value, EvalResult)
            assert f"longer than {seconds:g} seconds" in value.stderr
            if value.stdout:
                break
        assert value.stdout == "begun\n"
        wait_for(lambda: place.shell(running(sleep)).stdout == "0\n")

    def test_streams_of_code_are_cut_at_4096_characters(self, place: Place) -> None:
        code = "import sys\nprint('é' * 5000)\nprint('y' * 4095, file=sys.stderr)\n'z' * 5000"
        done = place.ok("evaluate_python", code=code)
        for text in (done.stdout, done.value_repr):
            assert len(text) == 4096 and text.endswith("[truncated]")
        assert done.stderr == "y" * 4095 + "\n"

    def test_a_value_lost_in_too_much_output_is_none(self, place: Place) -> None:
        done = place.ok("evaluate_python", code="print('x' * 2_000_000)\n1")
        assert done.value_repr is None and done.stdout.endswith("[truncated]")

    def test_long_code_is_taken_or_refused_as_the_section_says(self, place: Place) -> None:
        code = "x = 0\n" + "x += 1\n" * 30_000 + "x"
        if self.eval_characters is None:
            assert place.ok("evaluate_python", code=code).value_repr == "30000"
        else:
            most = "1" + " " * (self.eval_characters - 1)
            assert place.ok("evaluate_python", code=most).value_repr == "1"
            message = place.fails("evaluate_python", code=most + " ")
            assert str(self.eval_characters) in message and "write_file" in message

    def test_a_file_of_the_workspace_takes_no_modules_place(self, place: Place) -> None:
        for name in ("shutil", "linecache", "site", "sitecustomize", "usercustomize", "encodings"):
            place.ok("write_file", file_path=f"{name}.py", content="raise SystemExit('hijacked')")
        place.ok("write_file", file_path="own.py", content="value = 42")
        done = place.ok("evaluate_python", code="import shutil, own\nown.value")
        assert done.value_repr == "42"
        failing = place.call("evaluate_python", code="1/0")
        assert "ZeroDivisionError" in failing.value.stderr

    def test_code_sees_itself_as_a_program(self, place: Place) -> None:
        code = "import sys, os\n(__name__, sys.argv, sys.stdin.read(), os.path.exists('here'))"
        place.ok("write_file", file_path="here", content="")
        assert place.ok("evaluate_python", code=code).value_repr == "('__main__', [''], '', True)"

    def test_workspace_is_a_path_where_the_backend_makes_it_one(self, place: Place) -> None:
        exists = place.ok("shell_execute", command=["test", "-e", "/workspace"]).exit_code == 0
        assert exists == self.sees_workspace_path
        text = place.prompt.render(session=place.session).text
        assert ("`/workspace` does not exist" in text) != self.sees_workspace_path

    # Cancelling, and sandboxes that die

    def test_cancelling_a_call_kills_its_command(self, place: Place) -> None:
        place.ok("ls")
        cancellation = Cancellation()
        results: list[ToolResult[object]] = []
        sleep = unique_sleep()

        def run() -> None:
            script = f"echo $$ > pid; {sleep} & {sleep}"
            results.append(
                place.prompt.call(
                    "shell_execute",
                    {"command": ["sh", "-c", script], "timeout_seconds": 100},
                    session=place.session,
                    cancellation=cancellation,
                )
            )

        thread = threading.Thread(target=run)
        thread.start()
        wait_for(lambda: place.sandbox.exists("pid"))
        cancellation.cancel()
        thread.join(DEADLINE)
        assert not thread.is_alive()
        assert not results[0].success and "cancelled" in results[0].message
        wait_for(lambda: place.shell(running(sleep)).stdout == "0\n")
        assert "pid" in place.files

    def test_a_deadline_is_kept(self, place: Place) -> None:
        place.ok("ls")
        sleep = unique_sleep()
        result = place.prompt.call(
            "shell_execute",
            {"command": sleep.split()},
            session=place.session,
            deadline=Deadline.after(1),
        )
        assert not result.success and "deadline" in result.message
        wait_for(lambda: place.shell(running(sleep)).stdout == "0\n")

    def test_commands_of_32_threads_do_not_mix(self, place: Place) -> None:
        place.ok("ls")

        def work(number: int) -> None:
            done = place.shell(f"for i in 1 2 3; do echo {number}; done; echo {number} > f{number}")
            assert done.stdout == f"{number}\n" * 3

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(work, range(32)))
        assert {path: file.content for path, file in place.files.items()} == {
            f"f{number}": f"{number}\n" for number in range(32)
        }
        events = place.session.query(ToolInvoked).where(lambda e: e.name == "shell_execute")
        assert len(events) == 32

    def test_reads_and_commands_of_many_threads_agree_in_the_end(self, place: Place) -> None:
        place.ok("ls")

        def work(number: int) -> None:
            if number % 2:
                place.shell(f"echo {number} > s{number}; echo more > x{number}")
            else:
                place.ok("write_file", file_path=f"w{number}", content=f"{number}\n")
                place.ok("edit_file", file_path=f"w{number}", old_string="\n", new_string="!\n")

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(32)))
        place.shell("true")
        truth = {
            entry.path: place.read(entry.path).decode()
            for entry in place.sandbox.list(".", recursive=True)
        }
        assert {path: file.content for path, file in place.files.items()} == truth
        assert len(truth) == 16 + 16 * 2

    def test_a_workspace_of_very_many_files_is_known_in_part(self, place: Place) -> None:
        place.ok("write_file", file_path="mine.txt", content="x")
        place.shell("mkdir many; cd many; seq 2500 | xargs touch")
        known = place.session.query(VirtualFileSystem).latest()
        assert known is not None and not known.complete
        assert known.left_out == 2501 - len(known.files) > 0
        assert "many/2500" in place.files
        assert place.files["mine.txt"].content == "x"
        place.shell("echo longer > mine.txt")
        assert place.files["mine.txt"].content == "longer\n"
        place.shell("rm mine.txt")
        assert "mine.txt" not in place.files
        place.shell("echo late > many/late")
        assert place.files["many/late"].content == "late\n"
        place.shell("rm -r many")
        known = place.session.query(VirtualFileSystem).latest()
        assert known is not None and known.complete and known.files == ()
