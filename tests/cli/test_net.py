"""`podbot run --allow`, what is said of refused hosts while it runs, and `podbot net`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_runs import PODBOT, workplace
from hosts_servers import serving
from screen import Screen

from podbot.config.places import state_place
from podbot.egress import HOST_NAME, PRESETS
from podbot.frozen import replace
from podbot.launch.interludes import OtherScreen
from podbot.review import connections
from podbot.runs import unchanged

CONNECT = r"""
ask() {
    exec 3<>/dev/tcp/127.0.0.1/3128
    printf "CONNECT $1 HTTP/1.1\r\nHost: $1\r\n\r\n" >&3
    head -1 <&3 >/dev/null
    exec 3>&-
}
"""
REFUSED = "podbot run: refused: denied.example:443 is not on the allowlist"
REMEDY = "to allow it: podbot run --allow denied.example"


@pytest.fixture
def project() -> Iterator[Path]:
    with workplace() as folder:
        yield folder


def podbot(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PODBOT, *words], cwd=project, capture_output=True, text=True, check=False, stdin=-3
    )


def run(project: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A run that may reach a.example, with its changes kept as *one*."""
    options = ("--allow", "a.example", "--keep", "--name", "one", *words)
    return podbot(project, "run", *options, "--", "bash", "-c", CONNECT + script)


# While it runs


def test_a_refused_host_is_named_while_the_command_runs(project: Path) -> None:
    script = CONNECT + "ask denied.example:443; read line; echo over"
    with subprocess.Popen(
        [*PODBOT, "run", "--allow", "a.example", "--", "bash", "-c", script],
        cwd=project, stdin=-1, stdout=-1, stderr=-1, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stderr is not None
        said = []
        while not said or REMEDY not in said[-1]:
            said.append(process.stderr.readline())
            assert said[-1], said
        assert REFUSED in said[-2]
        assert process.poll() is None  # it still waits for its line

        stdout, rest = process.communicate("\n")

    assert (process.returncode, stdout) == (0, "over\n")
    assert "refused" not in rest


def test_it_is_named_at_a_terminal_too(project: Path) -> None:
    script = CONNECT + "ask denied.example:443; read line; echo over"
    command = [*PODBOT, "run", "--allow", "a.example", "--", "bash", "-c", script]
    with Screen(command, cwd=project) as screen:
        assert screen.see(REMEDY).decode().split(REFUSED)[1].startswith("\r\n")  # lines are lines
        screen.type("\r")
        screen.see("over")
        assert screen.end() == 0
        assert screen.seen.count(b"refused") == 1


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (r"printf '\033[?1049h'", r"printf '\033[?1049l'"),
        (r"printf '\033[?25;47h'", r"printf '\033[?47l'"),
        ("stty -icanon -echo", "stty icanon echo"),
    ],
)
def test_while_a_program_has_the_whole_terminal_it_is_kept(
    project: Path, begin: str, end: str
) -> None:
    ask = "ask denied.example:443; echo asked; read line; echo still; read line"
    script = f"{begin}; {ask}; {end}; read line"
    command = [*PODBOT, "run", "--allow", "a.example", "--", "bash", "-c", CONNECT + script]
    with Screen(command, cwd=project) as screen:
        screen.see("asked")
        screen.type("\n")
        assert b"refused" not in screen.see("still")
        screen.type("\n")
        screen.see(REMEDY)
        screen.type("\n")
        assert screen.end() == 0


def test_what_was_kept_is_said_in_the_end(project: Path) -> None:
    script = CONNECT + r"printf '\033[?1049h'; ask denied.example:443; echo last"
    command = [*PODBOT, "run", "--allow", "a.example", "--", "bash", "-c", script]
    with Screen(command, cwd=project) as screen:
        assert b"refused" not in screen.see("last")
        screen.see(REMEDY)
        assert screen.end() == 0


def test_each_host_is_named_once_and_very_many_are_not(project: Path) -> None:
    done = run(project, "for i in $(seq 30); do ask h$i.example:443; ask h$i.example:443; done")

    named = [line for line in done.stderr.splitlines() if "is not on the allowlist" in line]
    assert len(named) == len(set(named)) == 20
    assert done.stderr.count("more than can be named here") == 1


def test_the_other_screen_is_noticed_when_its_name_comes_in_pieces() -> None:
    screen = OtherScreen()
    for part, on in [(b"text \x1b[?10", False), (b"49h", True), (b"x" * 99, True),
                     (b"\x1b[?2004;1049", True), (b"l", False)]:  # fmt: skip
        screen.see(part)
        assert screen.on is on


# What may be named


def test_what_is_allowed_is_reached(project: Path) -> None:
    with serving({"/": b"of the host"}) as (port, asked):
        url = f"http://{HOST_NAME}:{port}/"
        script = (
            f"exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET {url} HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
        )
        done = podbot(project, "run", "--allow", f"{HOST_NAME}:{port}", "--", "bash", "-c", script)
    assert done.stdout.endswith("of the host") and asked == ["/"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--net", "none", "--allow", "a.example"), "contradict"),
        (("--allow", "https://a.example/x"), "a host is named, not a URL: a.example"),
        (("--allow", "localhost:80"), f"{HOST_NAME}:PORT"),
        (("--backend", "local", "--allow", "a.example"), "--allow cannot be used"),
        (("--backend", "local", "--net", "allow"), "--net cannot be used"),
        (("--allow", "pypy"), "there is no preset 'pypy'; did you mean pypi?"),
        (("--allow", "github"), "there is no preset 'github'"),
        (("--publish", "70000"), "'70000' is no port to publish"),
        (("--publish", "1:70000"), "'1:70000' is no port to publish"),
        (("--backend", "docker"), "did you mean 'container'?"),
        (("--backend", "zzz"), "overlay, container, local; or memory, for files alone"),
    ],
)
def test_what_cannot_be_allowed_is_refused_with_what_to_do(
    project: Path, words: tuple[str, ...], why: str
) -> None:
    done = podbot(project, "run", *words, "--", "touch", "made")

    assert done.returncode == 125 and why in done.stderr and "remedy:" in done.stderr
    assert not (project / "made").exists()


def test_a_word_that_is_like_no_preset_is_a_host(project: Path) -> None:
    for word in ("intranet", "pypy:443", "pypy.example"):
        assert podbot(project, "net", "explain", word, "--allow", word).returncode == 0


def test_a_network_that_names_no_host_is_said_to_reach_nothing(project: Path) -> None:
    done = podbot(project, "run", "--net", "allow", "--", "true")
    assert done.returncode == 0 and "reaches nothing unless hosts are named" in done.stderr
    assert podbot(project, "run", "--allow", "a.example", "--", "true").stderr == ""


def test_presets_are_named_beside_hosts(project: Path) -> None:
    done = run(project, "ask denied.example:443; touch made", "--allow", "pypi", "--net", "allow")

    assert done.returncode == 0, done.stderr
    shown = podbot(project, "changes", "show", "one").stdout
    assert "network allow a.example, @pypi" in shown
    assert podbot(project, "net", "explain", "pypi.org", "--in", "one").returncode == 0


# Afterwards


def test_what_was_reached_and_refused_is_part_of_the_review(project: Path) -> None:
    with serving({"/": b"x" * 1000}) as (port, _):
        url = f"http://{HOST_NAME}:{port}/"
        get = f"printf 'GET {url} HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
        asks = "ask denied.example:443; ask denied.example:443; touch made"
        script = f"exec 3<>/dev/tcp/127.0.0.1/3128; {get}; {asks}"
        done = run(project, script, "--allow", f"{HOST_NAME}:{port}")
    refused = "refused: denied.example:443 (2)"
    assert f"network, reached: {HOST_NAME}:{port}\n" in done.stderr
    assert f"network, {refused}\n" in done.stderr

    shown = podbot(project, "changes", "show", "one").stdout
    assert f"reached: {HOST_NAME}:{port}" in shown and refused in shown
    contacts = json.loads(podbot(project, "changes", "show", "one", "--json").stdout)["connections"]
    assert [(each["verdict"], each["count"]) for each in contacts] == [
        ("allowed", 1), ("refused", 2),
    ]  # fmt: skip
    assert contacts[0]["bytes_down"] >= 1000

    log = podbot(project, "net", "log", "one")
    rows = [line.split() for line in log.stdout.splitlines()]
    assert rows[0][:4] == ["HOST", "PORT", "VERDICT", "TIMES"]
    assert ["denied.example", "443", "refused", "2"] in [row[:4] for row in rows]
    each = json.loads(podbot(project, "net", "log", "one", "--json").stdout)
    assert [line["host"] for line in each["connections"]] == [
        HOST_NAME, "denied.example", "denied.example",
    ]  # fmt: skip


def test_programs_are_told_in_the_outcome_and_nothing_is_said_besides(project: Path) -> None:
    done = run(project, "ask denied.example:443", "--json")

    outcome = json.loads(done.stderr)
    assert [(each["host"], each["would_allow"]) for each in outcome["connections"]] == [
        ("denied.example", "denied.example")
    ]


def test_a_run_without_a_proxy_has_no_log(project: Path) -> None:
    podbot(project, "run", "--keep", "--name", "one", "--", "touch", "made")

    assert "its network was none" in podbot(project, "net", "log", "one").stdout
    assert "connections" not in podbot(project, "changes", "show", "one").stdout
    done = podbot(project, "net", "explain", "a.example", "--in", "one")
    assert done.returncode == 1 and "would be refused" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("pypi.org", "--allow", "pypi"), 0, "pypi.org:443 would be reached"),
        (("pypi.org:8443", "--allow", "pypi"), 1, "to allow it: podbot run --allow pypi.org:8443"),
        (("http://b.example/x?y", "--allow", "a.example"), 1, "b.example:80 would be refused"),
        (("WWW.A.example.", "--allow", "*.a.example"), 0, "would be reached: *.a.example allows"),
        (("127.1", "--allow", "a.example"), 1, "would be refused"),
        (("a.example",), 1, "would be refused"),
        (("deb.debian.org:80", "--allow", "debian"), 0, "by requests of plain HTTP only: GET,HEAD"),
        (("GET http://deb.debian.org/debian/x", "--allow", "debian"), 0, "deb.debian.org:80 would"),
        (("http://deb.debian.org/debian/x", "--allow", "debian"), 0, "deb.debian.org:80 would"),
        (("POST http://deb.debian.org/x", "--allow", "debian"), 1, "not for POST /x"),
        (("GET deb.debian.org/x", "--allow", "GET deb.debian.org/y"), 1, "not for GET /x"),
        (("a.example", "--allow", "GET a.example"), 1, "not for a tunnel"),
        (("https://a.example/x", "--allow", "GET a.example"), 1, "a.example:443 would be refused"),
        (("a.example", "--allow", "*"), 2, ""),
        (("a.example", "--allow", "b.example", "--in", "last"), 2, ""),
    ],
)
def test_what_rules_say_of_a_host_is_explained(
    project: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    done = podbot(project, "net", "explain", *words)

    assert done.returncode == code, done
    assert said in done.stdout
    if code < 2:
        answer = json.loads(podbot(project, "net", "explain", *words, "--json").stdout)
        assert answer["allowed"] is (code == 0)


def test_presets_are_listed(project: Path) -> None:
    text = podbot(project, "net", "presets").stdout
    assert all(word in text for words in PRESETS.values() for word in words)
    data = json.loads(podbot(project, "net", "presets", "--json").stdout)
    assert data == {"presets": {name: list(words) for name, words in PRESETS.items()}}


# A run that changed nothing


def ask(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A run that asks for a host, is refused, and changes nothing."""
    script = CONNECT + "ask denied.example:443"
    return podbot(project, "run", "--allow", "a.example", *words, "--", "bash", "-c", script)


def test_the_log_of_the_latest_run_is_there_though_it_changed_nothing(project: Path) -> None:
    podbot(project, "run", "--keep", "--name", "older", "--", "touch", "made")
    ask(project)

    log = podbot(project, "net", "log").stdout
    assert "denied.example" in log and "older" not in log
    each = json.loads(podbot(project, "net", "log", "--json").stdout)
    assert [line["host"] for line in each["connections"]] == ["denied.example"]
    assert "refused denied.example:443" in podbot(project, "net", "log", "--follow").stdout
    # Its rules are known too, and of the review nothing is left.
    explained = podbot(project, "net", "explain", "a.example", "--in", "last")
    assert explained.returncode == 0, explained
    assert "older" in podbot(project, "changes", "show", "last").stdout


def test_it_has_its_name_for_who_asks_and_no_claim_to_it(project: Path) -> None:
    ask(project, "--name", "net1")
    assert "denied.example" in podbot(project, "net", "log", "net1").stdout

    done = podbot(project, "run", "--keep", "--name", "net1", "--", "touch", "made")
    assert done.returncode == 0, done
    assert "its network was none" in podbot(project, "net", "log", "net1").stdout


def test_a_later_run_without_a_proxy_is_the_latest(project: Path) -> None:
    ask(project)
    podbot(project, "run", "--", "true")

    log = podbot(project, "net", "log").stdout
    assert "its network was none" in log and ": true" in log


def test_only_so_many_are_remembered_each_of_so_many_bytes(project: Path) -> None:
    ask(project)
    entry = connections.find("last", str(project))
    assert entry.record is not None
    for number in range(unchanged.MOST + 5):
        record = replace(entry.record, id=f"29991231-2359{number:02}-00000000")
        unchanged.note(record, [{"host": "h" * 1000}] * 1000)

    assert len(unchanged.entries()) == unchanged.MOST
    kept, left_out = unchanged.connections(record.id)
    assert 0 < len(kept) < 1000 == len(kept) + left_out


def test_gc_sweeps_the_old_and_the_damaged_ones(project: Path) -> None:
    ask(project)
    entry = connections.find("last", str(project))
    assert entry.record is not None
    old = replace(entry.record, id="20200101-000000-00000000", started=1.0)
    unchanged.note(old, ())
    place = state_place() / unchanged.FOLDER / "20200101-000000-00000001.json"
    place.write_text("{")

    swept = podbot(project, "gc").stdout

    assert old.id in swept and place.name in swept
    assert [each.id for each in unchanged.entries()] == [entry.id]
    assert not place.exists()


# From a second terminal


@contextmanager
def waiting(project: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A run called *one* that asks whatever it is told by its stdin, a host and port a line."""
    script = CONNECT + 'echo ready; while read place; do ask "$place"; echo asked; done; touch made'
    words = ["run", *options, "--keep", "--name", "one", "--", "bash", "-c", script]
    with subprocess.Popen(
        [*PODBOT, *words], cwd=project, stdin=-1, stdout=-1, stderr=-1, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()
        process.stdout.read()
        assert process.wait(60) == 0


def told(process: subprocess.Popen[str], place: str) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(place + "\n")
    assert process.stdout.readline() == "asked\n"


def test_a_host_is_allowed_from_a_second_terminal_and_the_log_is_followed(project: Path) -> None:
    with serving({"/": b"x"}) as (port, _), waiting(project, "--allow", "a.example") as run:
        follow = [*PODBOT, "net", "log", "one", "--follow"]
        with subprocess.Popen(follow, cwd=project, stdout=-1, text=True) as following:
            assert following.stdout is not None
            told(run, f"{HOST_NAME}:{port}")
            assert following.stdout.readline().startswith(f"refused {HOST_NAME}:{port}")

            done = podbot(project, "net", "allow", "one", f"{HOST_NAME}:{port}")
            assert (done.returncode, done.stderr) == (0, "")
            assert f"may reach {HOST_NAME}:{port} from now on" in done.stdout

            told(run, f"{HOST_NAME}:{port}")
            assert following.stdout.readline().startswith(f"allowed {HOST_NAME}:{port}")

            assert run.stdin is not None
            run.stdin.close()
            assert following.stdout.read() == ""  # it ends with the run
        assert following.returncode == 0

    each = podbot(project, "net", "log", "one", "--follow", "--json").stdout.splitlines()
    assert [json.loads(line)["verdict"] for line in each] == ["refused", "allowed"]


def test_a_preset_is_allowed_by_its_name(project: Path) -> None:
    with waiting(project, "--net", "allow"):
        done = podbot(project, "net", "allow", "one", "pypi")
        assert done.returncode == 0 and "pypi.org" in done.stdout


def test_what_cannot_be_allowed_is_said(project: Path) -> None:
    with waiting(project):
        done = podbot(project, "net", "allow", "one", "a.example")
        assert done.returncode == 2 and "its network is none" in done.stderr
    done = podbot(project, "net", "allow", "one", "a.example")
    assert done.returncode == 2 and "does not run any more" in done.stderr
    podbot(project, "changes", "discard", "one", "--yes")
    with waiting(project, "--net", "allow"):
        done = podbot(project, "net", "allow", "one", "https://a.example")
        assert done.returncode == 2 and "a host is named, not a URL" in done.stderr


# Telemetry


def test_telemetry_is_refused_without_a_word_and_counted(project: Path) -> None:
    asks = "ask statsig.anthropic.com:443; ask us.i.posthog.com:443; ask denied.example:443"
    done = run(project, f"{asks}; touch made", "--allow", "*.anthropic.com")

    refused = [line for line in done.stderr.splitlines() if "refused" in line]
    assert REFUSED in refused[0]
    assert refused[1:] == ["network, refused: denied.example:443, telemetry (2)"]
    log = podbot(project, "net", "log", "one").stdout
    assert "statsig.anthropic.com" in log and "us.i.posthog.com" in log
    explained = podbot(project, "net", "explain", "statsig.anthropic.com", "--in", "one")
    assert explained.returncode == 1 and "--allow statsig.anthropic.com" in explained.stdout


def test_telemetry_that_is_named_itself_is_allowed(project: Path) -> None:
    for words in (("--allow", "statsig.anthropic.com"), ("--allow", "*.sentry.io")):
        host = words[1].replace("*", "o1")
        assert podbot(project, "net", "explain", host, *words).returncode == 0
