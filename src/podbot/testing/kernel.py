"""`python`: a kernel that remembers, tells everything, and can always be stopped."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from podbot.errors import Kind
from podbot.sandbox import Limits, Policy, PythonResult, Sandbox
from podbot.testing.base import (
    SOON,
    Base,
    beating,
    beats,
    eventually,
    has_begun,
    interrupted_when,
    needs_processes,
    out_of_time,
    refused,
)

STUBBORN = """
import time
while True:
    try:
        open('begun', 'w').close()
        while True: time.sleep(0.01)
    except KeyboardInterrupt:
        pass
"""


class KernelTests(Base):
    """The Python kernel."""

    @needs_processes
    def test_variables_functions_and_imports_survive(self, sandbox: Sandbox) -> None:
        assert sandbox.python("import math\nx = 6").value is None
        sandbox.python("def double(n):\n    return n * 2\n")
        assert sandbox.python("double(x) + math.floor(0.5)").value == "12"

    @needs_processes
    @pytest.mark.parametrize(
        ("code", "json"),
        [
            ("{'a': [1, 2.5, None, True, 'é']}", '{"a": [1, 2.5, null, true, "\\u00e9"]}'),
            ("6 * 7", "42"),
            ("1 < 2", "true"),
            ("'text'", '"text"'),
            ("(1, 2)", None),
            ("[(1, 2)]", None),
            ("{1: 2}", None),
            ("float('nan')", None),
            ("object", None),
            ("{1, 2}", None),
            ("None", None),
            ("1 / 0", None),
        ],
    )
    def test_a_value_is_json_where_json_says_the_same(
        self, sandbox: Sandbox, code: str, json: str | None
    ) -> None:
        assert sandbox.python(code, json=True).json == json

    @needs_processes
    def test_nothing_is_made_json_that_nobody_asked_for(self, sandbox: Sandbox) -> None:
        done = sandbox.python("[1]")
        assert (done.value, done.json, done.error) == ("[1]", None, None)
        done = sandbox.python("[1]", json=True)
        assert (done.value, done.json, done.error) == ("[1]", "[1]", None)

    @needs_processes
    @pytest.mark.parametrize(
        ("code", "value"),
        [
            ("1 + 1", "2"),
            ("'text'", "'text'"),
            ("None", None),
            ("x = 5", None),
            ("x = 5\nx", "5"),
            ("if True:\n    7", None),
            ("", None),
            ("# only words", None),
            ("'grün 🎉'", "'grün 🎉'"),
            ("[1,\n 2]", "[1, 2]"),
            ("1;2", "2"),
            ("class R:\n    def __repr__(self): return 'mine'\nR()", "mine"),
        ],
    )
    def test_the_last_expression_is_the_value(
        self, sandbox: Sandbox, code: str, value: str | None
    ) -> None:
        result = sandbox.python(code)
        assert (result.value, result.error, result.ok) == (value, None, True)

    @needs_processes
    def test_what_it_prints_is_told(self, sandbox: Sandbox) -> None:
        result = sandbox.python(
            "import os, sys\n"
            "print('out grün')\nprint('err', file=sys.stderr)\n"
            "sys.stdout.flush()\nos.system('echo child; echo child err >&2')\n"
            "print('\\ud800', end='')"
        )
        assert result.stdout.startswith("out grün\nchild\n")
        assert result.stderr == "err\nchild err\n"
        assert sandbox.python("1").stdout == ""

    @needs_processes
    def test_an_exception_is_data_with_its_traceback(self, sandbox: Sandbox) -> None:
        sandbox.python("kept = 1\ndef inner():\n    raise ValueError('why')\n")
        result = sandbox.python("print('before')\ninner()\n")
        assert not result.ok
        assert result.stdout == "before\n"
        assert result.error is not None
        assert "ValueError: why" in result.error
        assert "inner()" in result.error
        assert "raise ValueError('why')" in result.error
        assert sandbox.python("kept").value == "1"

    @needs_processes
    @pytest.mark.parametrize(
        ("code", "words"),
        [
            ("1 +", "SyntaxError"),
            ("def f():\nreturn", "IndentationError"),
            ("'\\ud800'.encode()", "UnicodeEncodeError"),
            ("def f(): return f()\nf()", "RecursionError"),
            ("import sys; sys.exit(4)", "SystemExit"),
            ("raise KeyboardInterrupt", "KeyboardInterrupt"),
            ("class R:\n    def __repr__(self): raise OSError('no repr')\nR()", "no repr"),
            ("input()", "EOFError"),
            ("raise BaseException('odd')", "odd"),
        ],
    )
    def test_whatever_the_code_raises_the_kernel_lives_on(
        self, sandbox: Sandbox, code: str, words: str
    ) -> None:
        sandbox.python("kept = 1")
        result = sandbox.python(code, timeout=SOON)
        assert result.error is not None
        assert words in result.error
        assert result.value is None
        assert sandbox.python("kept").value == "1"

    @needs_processes
    @pytest.mark.parametrize(
        "code",
        [
            "import os; os._exit(3)",
            "import os; os.kill(os.getpid(), 9)",
            "import os; os.closerange(0, 100); os._exit(0)",
            "import os; os.abort()",
        ],
    )
    def test_the_death_of_the_kernel_is_data_and_the_next_code_gets_a_new_one(
        self, sandbox: Sandbox, code: str
    ) -> None:
        sandbox.python("x = 1")
        result = sandbox.python(f"print('last words', flush=True)\n{code}", timeout=SOON)
        assert result.error
        assert result.restarted
        assert result.stdout == "last words\n"
        assert sandbox.python("'x' in globals()").value == "False"

    @needs_processes
    def test_a_fork_of_the_kernel_does_not_answer_for_it(self, sandbox: Sandbox) -> None:
        sandbox.python(
            "import os\nif os.fork() == 0:\n    forked = True\nelse:\n    forked = False"
        )
        for number in range(10):
            assert sandbox.python(f"forked, {number}").value == f"(False, {number})"

    @needs_processes
    def test_what_the_code_starts_has_three_descriptors_and_no_more(self, sandbox: Sandbox) -> None:
        script = "for fd in 0 1 2 3 4 5 6 7 8 9; do [ ! -e /proc/$$/fd/$fd ] || echo $fd; done"

        assert sandbox.python(f"import os\nos.system({script!r})").stdout.split() == ["0", "1", "2"]

    @needs_processes
    def test_a_timeout_interrupts_and_variables_survive(self, sandbox: Sandbox) -> None:
        def run(seconds: float) -> PythonResult:
            sandbox.python("kept = 1")
            code = "print('so far', flush=True)\nopen('said', 'w').close()\nwhile True: pass"
            return sandbox.python(code, timeout=seconds)

        result = out_of_time(run, lambda: sandbox.exists("said"))
        assert (result.timed_out, result.restarted, result.ok) == (True, False, False)
        assert result.stdout == "so far\n"
        assert sandbox.python("kept").value == "1"

    @needs_processes
    def test_code_that_will_not_stop_costs_the_kernel(self, sandbox: Sandbox) -> None:
        def run(seconds: float) -> PythonResult:
            sandbox.python("lost = 1")
            return sandbox.python(STUBBORN, timeout=seconds)

        result = out_of_time(run, lambda: sandbox.exists("begun"))
        assert (result.timed_out, result.restarted) == (True, True)
        assert sandbox.python("'lost' in globals()").value == "False"

    @needs_processes
    def test_it_can_be_interrupted_from_another_thread(self, sandbox: Sandbox) -> None:
        assert sandbox.python_interrupt() is False
        sandbox.python("kept = 1")
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(
                sandbox.python, "open('begun', 'w').close()\nimport time\ntime.sleep(600)"
            )
            eventually(lambda: sandbox.exists("begun"))
            assert sandbox.python_interrupt() is True
            result = running.result(SOON)
        assert result.error is not None
        assert "KeyboardInterrupt" in result.error
        assert not result.timed_out
        assert sandbox.python_interrupt() is False
        assert sandbox.python("kept").value == "1"

    @needs_processes
    def test_ctrl_c_interrupts_the_code(self, sandbox: Sandbox) -> None:
        sandbox.python("kept = 1")
        with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: sandbox.exists("begun")):
            sandbox.python("open('begun', 'w').close()\nwhile True: pass")
        assert sandbox.python("kept", timeout=SOON).value == "1"

    @needs_processes
    def test_a_restart_forgets_everything_and_kills_what_it_started(self, sandbox: Sandbox) -> None:
        sandbox.python_restart()
        loop = beating("beat")
        sandbox.python(f"x = 1\nimport subprocess\nsubprocess.Popen(['sh', '-c', {loop!r}])")
        eventually(lambda: has_begun(sandbox, "beat"))
        sandbox.python_restart()
        assert not beats(sandbox, "beat")
        assert sandbox.python("'x' in globals()").value == "False"

    @needs_processes
    def test_a_restart_frees_who_waits_for_code(self, sandbox: Sandbox) -> None:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(sandbox.python, "open('begun', 'w').close()\nwhile True: pass")
            eventually(lambda: sandbox.exists("begun"))
            sandbox.python_restart()
            assert running.result(SOON).restarted

    @needs_processes
    def test_a_file_of_the_workspace_does_not_pose_as_a_module(self, sandbox: Sandbox) -> None:
        trap = "open('hijacked', 'w').close()\n"
        for name in ("json", "shutil", "linecache", "traceback", "struct", "ast", "sitecustomize"):
            sandbox.write(f"{name}.py", trap)
        assert sandbox.python(
            "import json, shutil\njson.dumps([shutil.which('sh') is not None])"
        ).ok
        assert sandbox.python("1/0").error
        assert sandbox.exec(["true"]).ok
        sandbox.grep("(?=x)")
        sandbox.list(recursive=True)
        assert not sandbox.exists("hijacked")

    @needs_processes
    def test_it_works_in_the_working_folder(self, sandbox: Sandbox) -> None:
        sandbox.write("file", b"x")
        assert sandbox.python("import os\nos.getcwd(), open('file').read()").value == repr(
            (sandbox.workdir, "x")
        )

    @needs_processes
    def test_code_may_be_long(self, sandbox: Sandbox) -> None:
        assert sandbox.python("x = '" + "y" * 2_000_000 + "'\nlen(x)").value == "2000000"

    @needs_processes
    def test_too_much_output_is_cut_and_said(self) -> None:
        with self.open_sandbox(limits=Limits(output=1000)) as sandbox:
            result = sandbox.python("print('x' * 3_000_000)")
            assert (len(result.stdout), result.truncated) == (1000, True)
            assert len(sandbox.python("'y' * 3_000_000").value or "") <= 1000
            assert len(sandbox.python("raise ValueError('z' * 3_000_000)").error or "") <= 1000
            whole = sandbox.python("print('x' * 999)")
            assert (len(whole.stdout), whole.truncated) == (1000, False)

    @needs_processes
    def test_code_from_several_threads_runs_one_after_another(self, sandbox: Sandbox) -> None:
        sandbox.python("count = 0")
        ready = threading.Barrier(8)

        def run(number: int) -> str | None:
            ready.wait(SOON)
            code = f"before = count\nprint({number})\ncount = before + 1\n{number}"
            result = sandbox.python(code)
            assert result.stdout == f"{number}\n"
            return result.value

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(run, range(8))) == [str(number) for number in range(8)]
        assert sandbox.python("count").value == "8"

    @needs_processes
    def test_an_interpreter_that_does_not_start_is_an_error(self) -> None:
        with self.open_sandbox(policy=Policy(python="/no/such/python")) as sandbox:
            for _ in range(2):
                with refused(Kind.KERNEL_FAILED):
                    sandbox.python("1")
            assert sandbox.exec(["true"]).ok
        with self.open_sandbox(policy=Policy(python="/bin/false")) as sandbox:
            try:
                assert not sandbox.python("1", timeout=SOON).ok
            except Exception as error:
                assert getattr(error, "kind", None) is Kind.KERNEL_FAILED
            assert sandbox.exec(["true"]).ok
