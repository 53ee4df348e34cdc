"""Companions that stay up between runs: recorded by identity, used by runs, stopped only if they are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.runs.processes import until

from treadle.cli.commands.companions import companions
from treadle.core.companions import kept as kept_module
from treadle.core.companions.kept import KeptCompanion, ProcessIdentity, keep, kept_companion, kept_companions, stop
from treadle.core.companions.running import running_companions
from treadle.core.companions.settings import CompanionSettings
from treadle.core.errors import ConfigError, EngineError

SLEEPS = "print('ready', flush=True); import time; time.sleep(600)"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TREADLE_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    for path in (tmp_path / "cache" / "companions").glob("*.json"):
        KeptCompanion.model_validate_json(path.read_bytes()).stop()


def program(code: str = SLEEPS, **keys: object) -> CompanionSettings:
    command = [sys.executable, "-S", "-c", code]
    given = {"name": "desk", "command": command, "ready_text": "ready", "start_timeout_s": 60, **keys}
    return CompanionSettings.model_validate(given)


def call(*words: str) -> Result:
    result = CliRunner().invoke(companions, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def config_file(folder: Path, *entries: CompanionSettings) -> str:
    path = folder / "run.toml"
    tables = []
    for one in entries:
        keys = one.model_dump(mode="json", exclude_unset=True)
        tables.append("[[companions]]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in keys.items()))
    path.write_text("\n\n".join(tables))
    return str(path)


def states() -> dict[str, str]:
    return {one["name"]: one["state"] for one in json.loads(call("status", "--json").stdout)}


def test_commands_start_show_restart_and_stop(tmp_path: Path) -> None:
    file = config_file(tmp_path, program(), program(name="other"))
    call("start", file)
    assert states() == {"desk": "ready", "other": "ready"}
    before = kept_companion("desk")
    assert before is not None and before.program is not None
    call("start", file)
    assert kept_companion("desk") == before
    call("restart", "desk")
    after = kept_companion("desk")
    assert after is not None and after.is_alive() and not before.is_alive() and not before.program.is_alive()
    call("stop", "desk")
    assert states() == {"other": "ready"}
    assert not after.is_alive() and after.program is not None and not after.program.is_alive()
    call("stop")
    assert states() == {}


def test_unknown_names_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are: none"):
        call("stop", "desk")
    keep(program(), print)
    with pytest.raises(ConfigError, match="did you mean 'desk'"):
        call("restart", "dsk")
    with pytest.raises(ConfigError, match="no companion 'x'"):
        call("start", config_file(tmp_path, program()), "--only", "x")
    with pytest.raises(ConfigError, match="no \\[\\[companions\\]\\]"):
        call("start", config_file(tmp_path))


def test_companion_that_is_stopped_meanwhile_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is deleted between being found and being read."""
    kept = keep(program(), print)
    assert kept is not None
    record, read = kept_module._path("desk").read_bytes(), kept_module._read

    def stop_then_read(path: Path) -> KeptCompanion | None:
        path.unlink()
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(kept_module, "_read", stop_then_read)
        assert kept_companions() == ([], [])
        kept_module._path("desk").write_bytes(record)
        assert kept_companion("desk") is None
    kept_module._path("desk").write_bytes(record)


def test_runs_use_what_is_kept_and_leave_it_running() -> None:
    kept = keep(program(), print)
    said: list[str] = []
    with running_companions([program()], said.append):
        assert len(said) == 1 and "kept running" in said[0]
    assert kept is not None and kept.is_alive()


def test_other_settings_under_one_name_are_refused_while_it_runs() -> None:
    keep(program(), print)
    with pytest.raises(EngineError, match="running with other settings"):
        keep(program(env=["COLOUR=red"]), print)
    with (
        pytest.raises(EngineError, match="running with other settings; stop it: treadle companions stop desk"),
        running_companions([program(env=["COLOUR=red"])], print),
    ):
        pytest.fail("the block must not begin")


def test_what_is_kept_is_used_although_programs_of_others_are_not() -> None:
    keep(program(), print)
    said: list[str] = []
    with running_companions([program(reuse=False)], said.append):
        assert "kept running" in said[0]


def test_one_line_says_that_a_kept_companion_ended_during_the_run() -> None:
    kept = keep(program(), print)
    assert kept is not None
    said, heard = list[str](), threading.Event()

    def notify(line: str) -> None:
        said.append(line)
        if line.startswith("warning"):
            heard.set()

    with running_companions([program()], notify):
        kept.stop()
        assert heard.wait(60)
    assert "desk, which was kept running, does not run any more" in said[-1]


def test_restart_that_fails_keeps_the_record_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "a")
    before = keep(program(env=["SOME_TOKEN"]), print)
    assert before is not None
    monkeypatch.delenv("SOME_TOKEN")
    with pytest.raises(ConfigError, match="SOME_TOKEN"):
        call("restart", "desk")
    assert states() == {"desk": "ready"} and before.is_alive(), "nothing was stopped"
    monkeypatch.setenv("SOME_TOKEN", "b")
    monkeypatch.setattr(kept_module, "start_ready", failing)
    with pytest.raises(EngineError, match="no process"):
        call("restart", "desk")
    assert states() == {"desk": "ended"}
    monkeypatch.undo()


def failing(*_: object, **__: object) -> None:
    raise EngineError("no process")


@pytest.mark.covers("service-24")
def test_failed_start_leaves_no_record_and_no_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"""
import os, time
if (pid := os.fork()) == 0:
    os.setsid(); time.sleep(600)
open({str(pid)!r}, "w").write(str(pid))
os._exit(3)
"""
    with pytest.raises(EngineError, match="ended with code 3"):
        keep(program(code), print)
    assert kept_companions() == ([], []) and ProcessIdentity.of(int(pid.read_text())) is None


def test_command_that_is_killed_before_it_has_a_record_leaves_no_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    killed = f"""
import os, pathlib, sys, time
from treadle.core.companions import kept
from treadle.core.companions.settings import CompanionSettings
class Killed:
    @staticmethod
    def of(pid):
        while not ((file := pathlib.Path({str(pid)!r})).exists() and file.read_text()):
            time.sleep(0.01)
        os._exit(9)
kept.ProcessIdentity = Killed
kept.keep(CompanionSettings.model_validate_json(sys.argv[1]), print)
"""
    done = subprocess.run([sys.executable, "-c", killed, program(code).model_dump_json()], check=False)
    assert done.returncode == 9 and kept_companions() == ([], [])
    until(lambda: ProcessIdentity.of(int(pid.read_text())) is None, "the end of the program")


def test_number_of_a_recycled_process_gets_no_signal(cache: Path) -> None:
    kept = keep(program(), print)
    assert kept is not None
    stop(kept, print)
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        now = ProcessIdentity.of(stranger.pid)
        assert now is not None
        recycled = now.model_copy(update={"started_ticks": now.started_ticks - 1})
        rebooted = now.model_copy(update={"boot": "another"})
        for one in (recycled, rebooted):
            old = kept.model_copy(update={"supervisor": one, "program": one})
            (cache / "companions" / "desk.json").write_text(old.model_dump_json())
            assert states() == {"desk": "ended"}
            call("stop", "desk")
            assert stranger.poll() is None and states() == {}
        assert stranger.stdin is not None
        stranger.stdin.close()


def test_killed_supervisor_takes_the_program_with_it() -> None:
    kept = keep(program(), print)
    assert kept is not None and kept.program is not None
    os.kill(kept.supervisor.pid, 9)
    kept.program.end(0, 60.0)
    assert kept.state() == "ended" and not kept.program.is_alive()


def test_unreadable_record_is_named(cache: Path) -> None:
    (cache / "companions").mkdir(parents=True)
    path = cache / "companions" / "desk.json"
    path.write_text("{")
    keep(program(name="other"), print)
    for words in (("status",), ("stop",), ("stop", "desk")):
        with pytest.raises(EngineError, match="desk.json cannot be read"):
            call(*words)
    call("stop", "other")
    assert kept_companion("other") is None
    path.unlink()


def test_record_is_readable_by_its_user_alone(tmp_path: Path, cache: Path) -> None:
    call("start", config_file(tmp_path, program()))
    assert (cache / "companions" / "desk.json").stat().st_mode & 0o777 == 0o600
    call("stop")
    with pytest.raises(ConfigError, match="OpenAI-style key"):
        call("start", config_file(tmp_path, program(env=["COLOUR=sk-proj-" + "a1" * 20])))


def test_kept_companion_outlives_the_command_that_started_it(tmp_path: Path) -> None:
    code = "import sys; from treadle.cli.commands.companions import companions; companions(['start', sys.argv[1]])"
    subprocess.run([sys.executable, "-c", code, config_file(tmp_path, program())], check=True, capture_output=True)
    assert states() == {"desk": "ready"}
