"""Commands on a terminal that is typed at or closed: they end in order, with one code, and nothing is left or lost."""

from __future__ import annotations

import itertools
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runs.command_line import TREADLE, Desk, Done, environment, num_requests, set_up, tutor
from support.runs.processes import family, remaining, until
from support.runs.terminal import CTRL_C, on_terminal
from support.sweep import sampled

from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.store.leases import holder_of

ROLLOUTS = Address.parse("1/rollouts@tutor")
PREFLIGHT = 6
"""Requests of a run before its first rollout: it asks its server twice what that is."""
MANY = ("--set", "rollouts.samples_per_question=3", "--set", "rollouts.max_concurrent=1")
SHARED = (*MANY, "--set", "rollouts.shards=6")


@pytest.fixture(scope="module")
def slow() -> Iterator[str]:
    with tutor("--latency-s", "0.2") as url:
        yield url


@pytest.fixture
def desk(slow: str, tmp_path: Path) -> Desk:
    return set_up(tmp_path / "desk", slow)


def state(desk: Desk) -> dict[str, object]:
    items = desk.treadle("status", "--run", "r", "--json").succeeded().json()
    return next(item for item in items if item["address"] == str(ROLLOUTS))


def check_log(desk: Desk) -> None:
    for log in (desk.folder / "outputs/runs/r/attempts").rglob("log.txt"):
        assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("shell", sampled([False, True], [False]), ids=["alone", "below a shell"])
def test_closed_terminal_ends_a_run_cleanly(desk: Desk, slow: str, shell: bool) -> None:
    before = num_requests(slow)
    with on_terminal(desk.folder, "run", "run.toml", "--run", "r", *MANY, shell=shell) as terminal:
        until(lambda: num_requests(slow) - before >= PREFLIGHT + 5, "two turns are done")
        members = family(terminal.process.pid)
        terminal.hang_up()
        code = terminal.ended()
    assert code == (-signal.SIGHUP if shell else 130)
    until(lambda: not remaining(members), "nothing is left of it")
    assert state(desk)["state"] == "interrupted" and int(str(state(desk)["num_finished"])) >= 1
    assert holder_of(Run.open(desk.folder / "outputs", "r").storage, f"runs/r/locks/{ROLLOUTS}.lock") is None
    check_log(desk)
    desk.treadle("stage", str(ROLLOUTS), "run.toml", "--run", "r", *MANY[:2]).succeeded()


@pytest.mark.sweep
def test_nohup_run_continues_without_its_terminal(desk: Desk, slow: str) -> None:
    before = num_requests(slow)
    arguments = ("run", "run.toml", "--run", "r", *MANY[2:], "--set", 'flow.stages=["rollouts"]')
    with on_terminal(desk.folder, *arguments, ignores_hangup=True) as terminal:
        until(lambda: num_requests(slow) - before >= PREFLIGHT + 3, "it is at work")
        terminal.hang_up()
        assert terminal.ended() == 0
    assert state(desk)["state"] == "completed"
    check_log(desk)


@pytest.mark.sweep
def test_closed_terminal_ends_a_helper_which_releases_its_shard(desk: Desk, slow: str) -> None:
    before = num_requests(slow)
    with desk.started("run", "run.toml", "--run", "r", *SHARED) as run:
        until(lambda: num_requests(slow) - before >= PREFLIGHT + 2, "the run is at work")
        with on_terminal(desk.folder, "work", str(ROLLOUTS), "--run", "r") as terminal:
            until(lambda: terminal.process.pid in holders(desk), "the helper has a shard")
            terminal.hang_up()
            assert terminal.ended() == 130
        assert terminal.process.pid not in holders(desk)
        done = desk.ended(run).succeeded()
    assert "Traceback" not in done.err
    assert state(desk)["num_rows"] == {"rollouts": 9}


def holders(desk: Desk) -> set[int]:
    """Return the processes that hold a shard."""
    run = Run.open(desk.folder / "outputs", "r")
    attempts = run.attempts(ROLLOUTS)
    shards = run.shards(ROLLOUTS, attempts[-1].journal_name)
    found = [holder_of(run.storage, shards.lock_key(index)) for index in range(6)]
    return {holder.pid for holder in found if holder is not None}


@pytest.mark.sweep
def test_ctrl_c_twice_ends_a_run_on_its_terminal(desk: Desk, slow: str) -> None:
    before = num_requests(slow)
    with on_terminal(desk.folder, "run", "run.toml", "--run", "r", *MANY) as terminal:
        until(lambda: num_requests(slow) - before >= PREFLIGHT + 3, "it is at work")
        terminal.type(CTRL_C)
        # Whether the second one arrives in time or not, the message is one of two lines.
        terminal.type(CTRL_C)
        assert terminal.ended() == 130
    assert "Traceback" not in terminal.shown
    assert "treadle: interrupted" in terminal.shown or "treadle: stopped at once" in terminal.shown


SERVING: dict[str, tuple[tuple[str, ...], str, str]] = {
    "work": (("work", "--run", "later", "--wait"), "waiting for run later", "treadle: interrupted"),
    "view": (("view", "--run", "r", "--port", "0", "--no-open"), "Ctrl-C stops it", "treadle: stopped"),
    "retriever": (("retriever", "serve", "--corpus", "c.jsonl", "--port", "0"), "ready: ", "treadle: stopped"),
    "tutor": (("tutor",), '"url"', ""),
}
ENDINGS = ("Ctrl-C", "closed terminal")
SAMPLE = [("work", ENDINGS[1]), ("view", ENDINGS[0]), ("retriever", ENDINGS[0]), ("tutor", ENDINGS[1])]


@pytest.mark.parametrize(("name", "ending"), sampled(itertools.product(SERVING, ENDINGS), SAMPLE))
def test_serving_command_ends_with_its_terminal_or_ctrl_c(tmp_path: Path, name: str, ending: str) -> None:
    arguments, ready, last = SERVING[name]
    (tmp_path / "c.jsonl").write_text('{"id": "1", "contents": "Vorna\\nA town on the Ilme."}\n')
    Run.create(tmp_path / "outputs", "r", {}, {})
    with on_terminal(tmp_path, *arguments, TREADLE_CACHE=str(tmp_path / "cache")) as terminal:
        terminal.shows(ready)
        members = family(terminal.process.pid)
        terminal.type(CTRL_C) if ending == "Ctrl-C" else terminal.hang_up()
        assert terminal.ended() == 130
    assert "Traceback" not in terminal.shown and "Exception" not in terminal.shown
    assert ending != "Ctrl-C" or terminal.shown.rstrip().splitlines()[-1].removeprefix("^C").startswith(last)
    until(lambda: not remaining(members), "nothing is left of it")


def interruptible() -> None:
    """In a child: let Ctrl-C through, which workers of pytest-xdist ignore."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


AT_IMPORT = """
import os, signal, sys
def interrupt(event, arguments):
    if event == "import" and arguments[0] == os.environ.get("INTERRUPT_AT"):
        os.environ.pop("INTERRUPT_AT")
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("treadle.cli.main", ("--help",)),
        ("treadle.tasks.planning.run_setup", ("run", "run.toml", "--run", "r")),
        ("treadle.tasks.shard_worker", ("work", "--run", "r")),
        ("treadle.viewer.app", ("view", "--run", "r")),
        ("treadle.retriever.service.server", ("retriever", "serve", "--corpus", "c.jsonl")),
        ("treadle.tasks.prefect.server", ("prefect", "up")),
        ("treadle.demo.quickstart", ("demo",)),
        ("treadle.demo.tutor.__main__", ("tutor",)),
    ],
)
def test_ctrl_c_during_startup_prints_no_traceback(tmp_path: Path, module: str, arguments: tuple[str, ...]) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_IMPORT)
    done = set_up(tmp_path / "desk", "http://127.0.0.1:9/v1").alone(
        *arguments, PYTHONPATH=str(tmp_path), INTERRUPT_AT=module, prepare=interruptible
    )
    done.failed("interrupted", code=130)
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("stream", sampled(["2>&-", "2>/dev/full", ">&-"], ["2>/dev/full"]))
def test_command_survives_unwritable_progress_output(desk: Desk, stream: str) -> None:
    command = f"exec {TREADLE} stage 1/questions run.toml --run r {stream}"
    ended = subprocess.run(["sh", "-c", command], cwd=desk.folder, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr
    assert Run.open(desk.folder / "outputs", "r").status(Address(1, "questions")).state == "completed"


def test_unwritable_results_are_an_error(desk: Desk, tmp_path: Path) -> None:
    command = f"exec {TREADLE} doctor --json --root . > /dev/full"
    env = environment(TREADLE_CACHE=str(tmp_path))  # without engines: an installed one is imported, which takes long
    ended = subprocess.run(["sh", "-c", command], cwd=desk.folder, env=env, capture_output=True, text=True)
    Done(ended.returncode, "", ended.stderr).failed("cannot use the output", "the disk is full", code=1)
