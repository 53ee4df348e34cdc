"""Which Prefect server a command is watched on, and that it continues without one. The servers are not real."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from click.testing import CliRunner
from support.runs.processes import until

from treadle.cli.commands import demo as cli_demo
from treadle.cli.main import cli
from treadle.core.engines.cache import quiet
from treadle.core.errors import EngineError, JobsPending
from treadle.tasks.prefect import available_server as watched
from treadle.tasks.prefect import server as prefect_server
from treadle.tasks.prefect.available_server import available_server, is_prefect_error
from treadle.tasks.prefect.prefect_home import prefect_home
from treadle.tasks.prefect.server import HOST, PrefectServer, _RestartedChild, running_server

NAMED = "http://127.0.0.1:9/api"


@pytest.fixture(autouse=True)
def answering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[str]:
    """Addresses that answer; any server can be talked to, and one of ours starts at once."""
    there: set[str] = set()
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREFECT_API_AUTH_STRING", raising=False)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setattr(watched, "prefect_answers", there.__contains__)
    monkeypatch.setattr(watched, "_try", lambda server: None)
    monkeypatch.setattr(watched, "_flush_client", lambda: None)
    monkeypatch.setattr(PrefectServer, "start", lambda self: there.add(self.api_url))
    return there


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield the usual port, at which something else listens."""
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = int(other.getsockname()[1])
        monkeypatch.setattr(watched, "USUAL_PORT", port)
        yield port


def messages_without_a_server() -> str:
    said: list[str] = []
    with available_server(said.append) as server:
        assert server is None
        assert os.environ.get("PREFECT_API_URL") in (None, NAMED)
    assert all("\n" not in line for line in said)
    assert said[-1].startswith("continuing without Prefect")
    return said[-1]


def test_named_server_is_used(monkeypatch: pytest.MonkeyPatch, answering: set[str]) -> None:
    monkeypatch.setenv("PREFECT_API_URL", NAMED)
    answering.add(NAMED)
    with running_server(prefect_home(), 0, None, quiet), available_server(quiet) as server:
        assert server is not None and (server.api_url, server.is_temporary) == (NAMED, False)
        assert server.url_after_exit("http://x/runs/1") == "http://x/runs/1"


def test_dead_named_server_is_reported_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", NAMED)
    assert f"PREFECT_API_URL={NAMED} does not answer" in messages_without_a_server()


def test_server_of_prefect_up_is_used_within_the_block(answering: set[str]) -> None:
    with running_server(prefect_home(), 0, None, quiet) as up:
        with available_server(quiet) as server:
            assert server is not None and (server.api_url, server.is_temporary) == (up.api_url, False)
            assert os.environ["PREFECT_API_URL"] == up.api_url
        assert "PREFECT_API_URL" not in os.environ
        answering.clear()
        assert "does not answer yet" in messages_without_a_server()


def test_own_server_is_started_and_ends_with_the_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        free = int(probe.getsockname()[1])
    monkeypatch.setattr(watched, "USUAL_PORT", free)
    said: list[str] = []
    with available_server(said.append) as server:
        assert server is not None and server.is_temporary and server.port == free
        assert os.environ["PREFECT_API_URL"] == server.api_url == f"http://{HOST}:{free}/api"
        assert os.environ["PREFECT_HOME"] == str(tmp_path / "home")
        assert server.url_after_exit("http://x/runs/1") == "treadle prefect up, then http://x/runs/1"
        there = prefect_home().running()
        assert there is not None and there.doing == "treadle demo"
        assert len(said) == 2 and said[0].startswith("starting")
        assert said[1] == f"its UI asks for a password: the text in {tmp_path / 'home/treadle.password'}"
    assert said[2:] == ["stopping the Prefect server"]
    assert prefect_home().running() is None and "PREFECT_API_URL" not in os.environ


def test_other_port_is_named_if_the_default_is_in_use(taken: int) -> None:
    with available_server(quiet) as server:
        assert server is not None and server.port not in (0, taken)
        assert server.url_after_exit("URL") == f"treadle prefect up --port {server.port}, then URL"


def test_server_of_another_demo_is_left_alone() -> None:
    with running_server(prefect_home(), 0, None, quiet, doing="treadle demo"):
        line = messages_without_a_server()
    assert f"process {os.getpid()} runs the Prefect server" in line and line.endswith("for treadle demo alone")


def test_server_that_does_not_start_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: PrefectServer) -> None:
        raise EngineError("Prefect server ended before it answered; log: x\nand its last lines")

    monkeypatch.setattr(PrefectServer, "start", start)
    assert messages_without_a_server().endswith("ended before it answered; log: x")
    assert prefect_home().running() is None


def test_server_that_cannot_be_reached_is_stopped_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(server: watched.AvailableServer) -> None:
        raise EngineError("it wants a password")

    monkeypatch.setattr(watched, "_try", refuse)
    assert messages_without_a_server().endswith("it wants a password")
    assert prefect_home().running() is None


def test_command_continues_without_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "find_spec", lambda name: None)
    assert "Prefect is not installed (pip install 'treadle[orchestration]')" in messages_without_a_server()


def test_prefect_up_reports_who_owns_the_running_server() -> None:
    with running_server(prefect_home(), 0, None, quiet, doing="treadle demo"):
        done = CliRunner().invoke(cli, ["prefect", "up"])
    assert done.output.endswith(f"(process {os.getpid()}), until treadle demo ends\n")


def test_server_that_exits_is_restarted_while_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def start(self: PrefectServer, name: str, argv: list[str], ended: int | None = None) -> _RestartedChild:
        started.append(name)
        child = SimpleNamespace(name=name, poll=lambda: ended, log_path=tmp_path / "log", stop=lambda: None)
        return _RestartedChild(name, argv, child, began=float("-inf"))  # type: ignore[arg-type]

    started: list[str] = []
    said: list[str] = []
    monkeypatch.setattr(PrefectServer, "_run", start)
    monkeypatch.setattr(PrefectServer, "start", lambda self: setattr(self, "_server", start(self, "server", [], 3)))
    with running_server(prefect_home(), 0, None, said.append) as server, server.keep_alive():
        until(lambda: len(started) == 2, "it is started again")
    assert said == [f"server ended with code 3; started again (log: {tmp_path / 'log'})"]


def test_server_that_cannot_be_restarted_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    said: list[str] = []
    monkeypatch.setattr(prefect_server, "start_child", full)
    server = PrefectServer(prefect_home(), 0, None, said.append)
    ended = SimpleNamespace(name="server", poll=lambda: 3, log_path=Path("log"), stop=lambda: None)
    server._server = _RestartedChild("server", [], ended, began=float("-inf"))  # type: ignore[arg-type]
    with server.keep_alive():
        until(lambda: len(said) == 2, "it is said")
    assert said[1] == "warning: Prefect server cannot be started ([Errno 28] No space left on device)"


def test_unwritable_home_means_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    prefect_home().place.mkdir(parents=True)  # cannot be written as a file
    assert "cannot be written" in messages_without_a_server()


def test_restarted_server_does_not_inherit_flow_run_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    level = "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"
    given: list[dict[str, str]] = []
    monkeypatch.delenv(level, raising=False)
    monkeypatch.setattr(prefect_server, "start_child", lambda argv, **options: given.append(options["env"]))
    server = PrefectServer(prefect_home(), 0, None, quiet)
    monkeypatch.setenv(level, "CRITICAL")
    server._run("server", [])
    PrefectServer(prefect_home(), 0, None, quiet)._run("server", [])
    assert [env.get(level) for env in given] == [None, "CRITICAL"], "one of the user's own stays"


def raised(first: BaseException, then: Exception) -> Exception:
    """`then` as if it was raised while `first` was handled."""
    then.__context__ = first
    return then


def test_causes_of_flow_run_ends_are_distinguished() -> None:
    from prefect.exceptions import CancelledRun, CrashedRun

    assert is_prefect_error(httpx.ConnectError("refused")) and is_prefect_error(CrashedRun("it"))
    assert is_prefect_error(raised(httpx.ConnectError("refused"), RuntimeError("Failed to reach API")))
    assert not is_prefect_error(ValueError("a bug")) and not is_prefect_error(CancelledRun("by somebody"))
    for ending in (JobsPending("3 are owed"), KeyboardInterrupt()):
        with pytest.raises(type(ending)) as found:
            is_prefect_error(raised(ending, httpx.ConnectError("refused")))
        assert found.value is ending


@pytest.mark.parametrize(
    ("error", "expected"),
    [(httpx.ConnectError("refused"), None), (ValueError("a bug"), ValueError), (EngineError("of ours"), EngineError)],
)
def test_demo_continues_only_if_prefect_itself_fails(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception] | None
) -> None:
    def flywheel(**given: object) -> None:
        view.records.append("one")
        raise error

    said: list[str] = []
    view = SimpleNamespace(records=[])
    run = SimpleNamespace(run_id="demo", storage=SimpleNamespace(location=lambda: "outputs"))
    monkeypatch.setattr("treadle.flows.flywheel.flywheel", flywheel)
    monkeypatch.setattr(cli_demo, "shown_flow_run", lambda view: nullcontext())
    monkeypatch.setattr(cli_demo, "say", said.append)
    if expected is not None:
        with pytest.raises(expected):
            cli_demo._made_in_flow_run(run, None, view)  # type: ignore[arg-type]
        assert not said
        return
    assert not cli_demo._made_in_flow_run(run, None, view)  # type: ignore[arg-type]
    assert said == ["continuing without Prefect, which failed: refused"] and not view.records
