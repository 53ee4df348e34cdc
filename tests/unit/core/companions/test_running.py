"""Companions of a run, as real processes: started in order, found running, watched, stopped, and never left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runs.processes import until
from support.servers.own_clock import HourlyClock
from support.servers.ports import free_port

from treadle.core.companions.readiness import LogText
from treadle.core.companions.running import running_companions
from treadle.core.companions.settings import CompanionSettings
from treadle.core.engines import process
from treadle.core.errors import ConfigError, EngineError

SERVER = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"OK")
    def log_message(self, *args): pass
sys.stdout.buffer.write(b"\\xff\\xfe \\x1b[31m half of a letter: \\xc3\\n"); sys.stdout.flush()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-S", "-c", code, *map(str, arguments)]


def server(port: int, **keys: object) -> CompanionSettings:
    url = f"http://127.0.0.1:{port}/healthz"
    return CompanionSettings.model_validate(
        {"name": "desk", "command": python(SERVER, port), "ready_url": url, "start_timeout_s": 60, **keys}
    )


def program(code: str, **keys: object) -> CompanionSettings:
    given = {"name": "program", "ready_text": "ready", "start_timeout_s": 60, **keys}
    return CompanionSettings.model_validate({**given, "command": python(code)})


def is_open(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[int]:
    """Yield the port of a server that runs already, started by someone else."""
    port = free_port()
    process = subprocess.Popen(python(SERVER, port), stdout=subprocess.DEVNULL)
    until(lambda: is_open(port), "the server answers", 30.0)
    yield port
    assert process.poll() is None, "nothing may stop it"
    process.kill()
    process.wait()


def test_companion_runs_during_the_block_and_no_longer() -> None:
    port, said = free_port(), list[str]()
    with running_companions([server(port)], said.append):
        assert is_open(port)
    assert not is_open(port)


@pytest.mark.covers("service-24")
def test_companion_that_dies_before_it_is_ready_fails_the_start_and_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    child = f"""
import os, sys
if (pid := os.fork()) == 0:
    os.setsid()
    import time; time.sleep(600)
open({str(tmp_path / "pid")!r}, "w").write(str(pid))
sys.stdout.buffer.write(b"\\xc3( \\x1b]0;title\\x07 last words \\xff\\n"); sys.stdout.flush()
os._exit(7)
"""
    port, said = free_port(), list[str]()
    with (
        pytest.raises(EngineError, match="companion program ended with code 7 before it was ready"),
        running_companions([server(port), program(child)], said.append),
    ):
        pytest.fail("the block must not begin")
    assert any("last words" in line for line in said) and all("\x1b" not in line for line in said)
    assert not is_alive(int((tmp_path / "pid").read_text())) and not is_open(port)
    assert {path.suffix for path in cache.rglob("*") if path.is_file()} == {".log", ".lock"}


@pytest.mark.covers("service-24")
def test_companion_that_is_running_and_ready_is_used_and_left_alone(foreign: int) -> None:
    said: list[str] = []
    with running_companions([server(foreign)], said.append):
        assert len(said) == 1 and "running already" in said[0]
    assert is_open(foreign)


def test_running_program_is_refused_if_it_must_not_be_used(foreign: int) -> None:
    with pytest.raises(EngineError, match="already answers"), running_companions([server(foreign, reuse=False)], print):
        pytest.fail("the block must not begin")


def test_answer_of_another_program_does_not_make_a_dead_companion_ready(foreign: int) -> None:
    # It prints its text, cannot have the port, and ends.
    one = program("print('ready')", ready_url=f"http://127.0.0.1:{foreign}/", name="other", reuse=True)
    later = one.model_copy(update={"ready_url": f"http://127.0.0.1:{free_port()}/"})
    with pytest.raises(EngineError, match="ended with code 0"), running_companions([later], print):
        pytest.fail("the block must not begin")


def test_text_that_is_written_in_pieces_among_arbitrary_bytes_is_found(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = LogText(log, "réady")
    log.write_bytes(b"\x00\xff\xc3" * 1000 + "ré".encode()[:2])
    assert not text.found()
    for part, expected in ((b"\xa9ad", False), (b"y\xff", True), (b"", True)):
        with log.open("ab") as file:
            file.write(part)
        assert text.found() == expected


def test_flow_that_its_command_calls_starts_no_companion_again() -> None:
    one, said = program("print('ready', flush=True); import time; time.sleep(600)"), list[str]()
    with running_companions([one], said.append), running_companions([one], said.append):
        assert sum(line.startswith("starting") for line in said) == 1


def test_order_is_kept_and_an_earlier_companion_that_dies_ends_the_start(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    gone = program(
        f"print('ready', flush=True); open({str(gate)!r}).read(); print('my end'); raise SystemExit(5)", name="first"
    )
    hangs = program(f"open({str(gate)!r}, 'w').close(); import time; time.sleep(600)", name="second")
    said: list[str] = []
    with (
        pytest.raises(EngineError, match="companion first ended with code 5"),
        running_companions([gone, hangs], said.append),
    ):
        pytest.fail("the block must not begin")
    assert any("my end" in line for line in said)
    starts = [line.split(";")[0] for line in said if line.startswith("starting")]
    assert starts == ["starting companion first", "starting companion second"]


def test_one_line_says_that_a_companion_ended_during_the_run(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    code = f"print('ready', flush=True); open({str(gate)!r}).read(); print('no more'); raise SystemExit(9)"
    said, heard = list[str](), threading.Event()

    def notify(line: str) -> None:
        said.append(line)
        if "ended" in line:
            heard.set()

    with running_companions([program(code)], notify):
        gate.write_text("go")
        assert heard.wait(60)
    assert [line for line in said if "ended" in line] == [line for line in said if "code 9" in line]
    assert "no more" in said[-1]


def test_companion_gets_named_keys_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "a")
    monkeypatch.setenv("OTHER_API_KEY", "b")
    monkeypatch.setenv("PLAIN", "c")
    code = f"""
import os, time
open({str(tmp_path / "env")!r}, "w").write(" ".join(f"{{k}}={{v}}" for k, v in os.environ.items()))
open("here", "w").close()
print("ready", flush=True)
time.sleep(600)
"""
    (tmp_path / "folder").mkdir()
    with running_companions([program(code, folder=tmp_path / "folder", env=["MY_API_KEY", "COLOUR=red"])], print):
        given = (tmp_path / "env").read_text().split()
    assert {"MY_API_KEY=a", "PLAIN=c", "COLOUR=red"} <= set(given) and "OTHER_API_KEY=b" not in given
    assert (tmp_path / "folder" / "here").exists()


def test_missing_folder_and_variable_are_named(tmp_path: Path) -> None:
    for keys, what in (({"folder": tmp_path / "none"}, "its folder"), ({"env": ["NOT_SET_ANYWHERE"]}, "NOT_SET_ANY")):
        with pytest.raises(ConfigError, match=what), running_companions([program("", **keys)], print):
            pytest.fail("the block must not begin")


@pytest.mark.parametrize("command", [["no-such-program"], ["/dev/null"]])
def test_program_that_cannot_be_started_is_named(command: list[str]) -> None:
    settings = CompanionSettings.model_validate({"name": "none", "command": command, "ready_text": "x"})
    with pytest.raises(EngineError, match="cannot start companion none"), running_companions([settings], print):
        pytest.fail("the block must not begin")


def test_companion_that_is_never_ready_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    monkeypatch.setattr(process, "SteadyClock", HourlyClock(lambda: pid.exists() and pid.read_text() != ""))
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with (
        pytest.raises(EngineError, match="not ready within 1000 s .*did not print ready_text"),
        running_companions([program(code, start_timeout_s=1000)], print),
    ):
        pytest.fail("the block must not begin")
    assert not is_alive(int(pid.read_text()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_companion_ends_with_the_process_that_started_it(number: int, tmp_path: Path) -> None:
    port = free_port()
    code = """
import sys, time
from treadle.core.companions.running import running_companions
from treadle.core.companions.settings import CompanionSettings
with running_companions([CompanionSettings.model_validate_json(sys.argv[1])], print):
    print("up", flush=True)
    time.sleep(600)
"""
    command = [sys.executable, "-c", code, server(port).model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        until(lambda: run.stdout.readline().strip() == "up", "the companion is up", 60.0)
        assert is_open(port)
        run.send_signal(number)
    until(lambda: not is_open(port), "the end of the companion", 10.0)
