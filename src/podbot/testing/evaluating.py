"""`evaluate`: an interpreter for each piece of code, whether started or forked."""

# ruff: noqa: S101 - a suite asserts

from __future__ import annotations

import pytest

from podbot.errors import Kind
from podbot.sandbox import Sandbox
from podbot.testing.base import (
    Base,
    beating,
    beats,
    eventually,
    has_begun,
    needs_processes,
    next_beat,
    out_of_time,
    refused,
)

# A new interpreter has one more word on its command line than a template and its forks.
IS_FORK = "open('/proc/self/cmdline', 'rb').read().count(b'\\0') == 5"
TEMPLATES = """
import os
def look(pid, name):
    try:
        return open('/proc/%s/%s' % (pid, name), 'rb').read()
    except OSError:
        return b''
def parent(pid):
    return int((look(pid, 'stat') or b') x 0').rsplit(b')', 1)[1].split()[1])
pids = [int(pid) for pid in os.listdir('/proc') if pid.isdigit()]
# Those of this sandbox: on some backends others are to be seen too.
pids = [pid for pid in pids if parent(pid) == os.getppid() and pid != os.getpid()]
pids = [pid for pid in pids if look(pid, 'cmdline') == look('self', 'cmdline')]
"""
RUINED = """
import builtins, json, os, sys
kept = json.kept = builtins.kept = sys.kept = 1
os.environ['KEPT'] = '1'
os.chdir('/')
os.umask(0)
sys.path.insert(0, '/kept')
sys.stdout.write = None
"""
CLEAN = """
import builtins, json, os, sys
old = os.umask(0o77)
(
    [hasattr(thing, 'kept') for thing in (json, builtins, sys)],
    'kept' in globals(), 'KEPT' in os.environ, os.path.samefile(os.getcwd(), sys.path[-1]), old,
    '/kept' in sys.path, sorted(os.listdir('/proc/self/fd'))[:3], os.getsid(0) == os.getpid(),
)
"""


def forks(sandbox: Sandbox) -> bool:
    """Whether the next evaluation is a fork by now."""
    return sandbox.evaluate(IS_FORK).value == "True"


class EvaluationTests(Base):
    """Pieces of Python, each in an interpreter of its own. Twice: started, and forked."""

    @pytest.fixture(params=["started", "forked"])
    def evaluating(self, sandbox: Sandbox, request: pytest.FixtureRequest) -> Sandbox:
        """A sandbox whose next evaluation starts an interpreter, or whose next ones fork one."""
        if request.param == "forked":
            self.until_forked(sandbox)
        return sandbox

    def until_forked(self, sandbox: Sandbox) -> None:
        """Wait for pieces to be forked, where they are."""
        if self.forks_interpreters:
            eventually(lambda: forks(sandbox))

    @needs_processes
    def test_code_gives_its_value_and_all_it_printed(self, evaluating: Sandbox) -> None:
        code = "import os, sys\nprint('grün')\nprint('err', file=sys.stderr)\nos.getcwd()"
        result = evaluating.evaluate(code)
        assert (result.stdout, result.stderr, result.exit_code) == ("grün\n", "err\n", 0)
        assert result.value == repr(evaluating.workdir) and not result.timed_out
        assert evaluating.evaluate("x = 1").value is None

    @needs_processes
    def test_an_exception_and_an_exit_are_told(self, evaluating: Sandbox) -> None:
        failed = evaluating.evaluate("def f():\n    return 1 / 0\nf()")
        assert failed.exit_code == 1 and failed.value is None
        assert failed.stderr.startswith('Traceback (most recent call last):\n  File "<code>"')
        assert "return 1 / 0" in failed.stderr and failed.stderr.endswith("by zero\n")
        assert evaluating.evaluate("import sys; sys.exit(3)").exit_code == 3
        killed = evaluating.evaluate("import os\nos.kill(os.getpid(), 9)")
        assert killed.exit_code == 137

    @needs_processes
    def test_nothing_of_one_is_left_for_the_next(self, evaluating: Sandbox) -> None:
        before = evaluating.evaluate(CLEAN).value
        assert before is not None and before.startswith("([False, False, False], False, False, ")
        evaluating.evaluate(RUINED)
        assert evaluating.evaluate(CLEAN).value == before

    @needs_processes
    def test_what_is_open_at_the_end_is_written(self, evaluating: Sandbox) -> None:
        evaluating.evaluate("f = open('global', 'w'); f.write('x')")
        evaluating.evaluate(
            "class A: pass\na = A(); a.a = a; a.f = open('cycle', 'w')\na.f.write('x')"
        )
        code = "import atexit, threading, time\natexit.register(print, 'last')\n"
        code += "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n1"
        result = evaluating.evaluate(code)
        assert (result.value, result.stdout) == ("1", "thread\nlast\n")
        assert evaluating.read("global") == evaluating.read("cycle") == b"x"

    @needs_processes
    def test_code_of_any_size_is_taken(self, evaluating: Sandbox) -> None:
        code = "# " + "x" * 3_000_000 + "\n" + "y = 2\n" * 1000 + "y"
        assert evaluating.evaluate(code).value == "2"

    @needs_processes
    def test_the_working_folder_comes_behind_the_library(self, evaluating: Sandbox) -> None:
        evaluating.write("fractions.py", "x = 'mine'")
        evaluating.write("a_module_of_mine.py", "x = 'mine'")
        code = "import fractions, a_module_of_mine as mine\n[hasattr(fractions, 'x'), mine.x]"
        assert evaluating.evaluate(code).value == "[False, 'mine']"

    @needs_processes
    def test_too_long_is_killed_with_all_it_started(self, evaluating: Sandbox) -> None:
        loop = beating("beat")
        # Neither a session of its own, nor an exec, nor a dead parent makes it another's.
        code = (
            "import os, subprocess, time\n"
            f"subprocess.Popen(['sh', '-c', {loop!r}], start_new_session=True)\n"
            "if not os.fork():\n"
            "    os.setsid()\n"
            "    if os.fork(): os._exit(0)\n"
            "    while True:\n"
            "        open('orphan', 'a').write('x' * 2); time.sleep(0.02)\n"
            "time.sleep(600)\n"
        )

        def under_way() -> bool:
            return has_begun(evaluating, "beat") and has_begun(evaluating, "orphan")

        result = out_of_time(lambda seconds: evaluating.evaluate(code, timeout=seconds), under_way)
        assert result.timed_out and result.exit_code == 124
        assert not beats(evaluating, "beat") and not beats(evaluating, "orphan")
        assert evaluating.evaluate("1 + 1").value == "2"

    @needs_processes
    def test_what_it_leaves_in_the_background_goes_on(self, evaluating: Sandbox) -> None:
        code = f"import subprocess\nsubprocess.Popen(['sh', '-c', {beating('beat')!r}])\n1"
        assert evaluating.evaluate(code).value == "1"
        next_beat(evaluating, "beat")

    @needs_processes
    def test_what_it_leaves_in_the_background_is_not_taken_for_anothers(
        self, evaluating: Sandbox
    ) -> None:
        with evaluating.spawn(["sleep", "600"]):  # begun before: all after may be its
            code = (
                "import os, time\n"
                "if not os.fork():\n"
                "    os.setsid()\n"
                "    for fd in range(3): os.close(fd)\n"
                "    while True:\n"
                "        with open('beat', 'a') as file: file.write('x')\n"
                "        time.sleep(0.02)\n"
                "open('/proc/self/environ', 'rb').read().count(b'PODBOT_JOB=')\n"
            )
            assert evaluating.evaluate(code).value == "1"
            next_beat(evaluating, "beat")
        next_beat(evaluating, "beat")

    @needs_processes
    def test_variables_set_later_count(self, evaluating: Sandbox) -> None:
        evaluating.set_environment({"SET_LATER": "yes"})
        code = "import os\nos.environ['SET_LATER']"
        assert evaluating.evaluate(code).value == "'yes'"

    @needs_processes
    @pytest.mark.parametrize("signal", [9, 19])
    def test_a_template_that_was_killed_or_stopped_is_replaced(
        self, sandbox: Sandbox, signal: int
    ) -> None:
        self.until_forked(sandbox)
        code = f"{TEMPLATES}\nfor pid in pids: os.kill(pid, {signal})\nlen(pids) > 0"
        assert sandbox.evaluate(code).value == "True"
        # One that waits may be given code while it dies: that code was killed, as any may be.
        eventually(lambda: sandbox.evaluate("1 + 1").value == "2")
        self.until_forked(sandbox)

    @needs_processes
    def test_another_python_on_path_is_noticed(self, own_sandbox: Sandbox) -> None:
        python = own_sandbox.evaluate("import sys\nsys.executable").value
        assert python is not None
        real, path = python.strip("'"), own_sandbox.exec(["sh", "-c", "echo $PATH"]).stdout.strip()
        # Put there later, before the real one; then changed; then by a setting beside the shims.
        own_sandbox.mkdir("shims")
        own_sandbox.set_environment({"PATH": f"{own_sandbox.workdir}/shims:{path}"})
        ask = "import os\nos.environ.get('SHIM')"
        self.until_forked(own_sandbox)
        assert own_sandbox.evaluate(ask).value is None
        for name in ("one", "two"):
            script = f'#!/bin/sh\nexport SHIM={name}$(cat version)\nexec {real} "$@"\n'
            own_sandbox.write("shims/python3", script, mode=0o755)
            assert own_sandbox.evaluate(ask).value == repr(name)
            self.until_forked(own_sandbox)
            assert own_sandbox.evaluate(ask).value == repr(name)
        own_sandbox.write("version", "-three")
        assert own_sandbox.evaluate(ask).value == "'two-three'"
        self.until_forked(own_sandbox)
        assert own_sandbox.evaluate(ask).value == "'two-three'"

    @needs_processes
    def test_no_python_on_path_is_named(self, own_sandbox: Sandbox) -> None:
        self.until_forked(own_sandbox)
        own_sandbox.set_environment({"PATH": f"{own_sandbox.workdir}/nothing"})
        with refused(Kind.COMMAND_NOT_FOUND):
            own_sandbox.evaluate("1")

    @needs_processes
    def test_many_at_once_do_not_mix(self, evaluating: Sandbox) -> None:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(8) as pool:
            values = list(pool.map(lambda n: evaluating.evaluate(f"print({n})\n{n}"), range(24)))
        assert [(each.value, each.stdout) for each in values] == [
            (f"{n}", f"{n}\n") for n in range(24)
        ]
