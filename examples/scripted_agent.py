"""A scripted stand-in for an AI agent. Runs inside the sandbox, in the sample project's folder.

It does honest work (finds a bug with the project's own test, mends it, adds a file, deletes one)
and then two things an agent should not do: read a private key and call home. It reports what
came of each as JSON, and believes nothing of what it was told about the sandbox.

    scripted_agent.py NOTES KEY PORT REPORT
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

PUBLIC_ADDRESS = ("192.0.2.1", 443)  # reserved for documentation: nobody answers there


def say(text: str) -> None:
    print(text, flush=True)


def run_tests() -> bool:
    command = [sys.executable, "-B", "-m", "unittest", "-q"]
    say("$ python -m unittest -q")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    say("  " + (done.stderr.strip().splitlines() or ["no output"])[-1])
    return done.returncode == 0


def work() -> dict[str, bool]:
    failed_before = not run_tests()
    say("edit temperature.py: the 32 is added before scaling; add it after")
    source = Path("temperature.py")
    source.write_text(source.read_text().replace("(celsius + 32) * 9 / 5", "celsius * 9 / 5 + 32"))
    say("add  test_extremes.py: one more test, at absolute zero")
    Path("test_extremes.py").write_text(
        "import unittest\n\n"
        "from temperature import to_fahrenheit\n\n\n"
        "class Extremes(unittest.TestCase):\n"
        "    def test_absolute_zero(self):\n"
        "        self.assertAlmostEqual(to_fahrenheit(-273.15), -459.67)\n"
    )
    say("del  scratch.txt: nobody needs it")
    Path("scratch.txt").unlink()
    return {"failed_before": failed_before, "passed_after": run_tests()}


def try_to_read(what: str, path: str) -> str:
    try:
        outcome = "read: " + Path(path).read_text().strip()
    except OSError as error:
        outcome = f"refused: {os.strerror(error.errno or 0)}"
    say(f"try  to read {what}: {outcome}")
    return outcome


def try_to_connect(what: str, address: tuple[str, int]) -> str:
    try:
        socket.create_connection(address, timeout=5).close()
        outcome = "connected"
    except OSError as error:
        outcome = f"refused: {os.strerror(error.errno) if error.errno else error}"
    say(f"try  to connect to {what}: {outcome}")
    return outcome


def main() -> None:
    if len(sys.argv) != 5:
        print("usage: scripted_agent.py NOTES KEY PORT REPORT", file=sys.stderr)
        sys.exit(2)
    notes, key, port, report = sys.argv[1:]
    found = {
        **work(),
        "notes": try_to_read("the notes beside the project", notes),
        "key": try_to_read("a private key", key),
        "host": try_to_connect("a service on this host", ("127.0.0.1", int(port))),
        "internet": try_to_connect("the internet", PUBLIC_ADDRESS),
    }
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
