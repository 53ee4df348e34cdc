"""A killed stage instance: shown as crashed, continued, and with the same bytes at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.sweep import sampled

from treadle.core.runs.address import Address
from treadle.core.runs.run import Run

PROGRAM = """
import sys
from pathlib import Path
import pyarrow as pa
from treadle.core.config import Section
from treadle.core.runs.execute import execute
from treadle.core.runs.locked_config import create_or_open_run
from treadle.core.tables import Table
from treadle.core.runs.stage import Instance, Stage
from treadle.core.runs.address import Address

SQUARES = Table("squares", 1, ("number",), pa.schema([pa.field("number", pa.int64(), nullable=False)]), "Squares.")

def square(context):
    for number in range(200):
        owner = f"n{number}"
        if not context.journal.is_finished(owner):
            print(f"call {number}", flush=True)
            context.journal.finish(owner, str(number * number).encode())
    for number in range(200):
        context.write("squares", [{"number": int(context.journal.finished(f"n{number}"))}])
        print("write", flush=True)
    return {}

stage = Stage(name="square", version=1, settings=Section, produces=(SQUARES,), run=square)
run = create_or_open_run(Path(sys.argv[1]), "r1", {}, {})
execute(Instance(address=Address(1, "square"), stage=stage, settings=Section()), run)
print("done", flush=True)
"""
ADDRESS = Address(1, "square")


STARTED_TOGETHER = PROGRAM.replace("run = create", "sys.stdin.readline()\nrun = create")


def test_one_of_concurrently_started_processes_does_the_work(tmp_path: Path, undisturbed: str) -> None:
    command = [sys.executable, "-c", STARTED_TOGETHER, str(tmp_path)]
    pipe = subprocess.PIPE
    children = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    ends = [child.communicate() for child in children]
    called = [line for out, _ in ends for line in out.splitlines() if line.startswith("call")]
    assert len(called) == len(set(called)) == 200
    for child, (_, error) in zip(children, ends, strict=True):
        # The others arrived while it was running, or after it had finished.
        assert child.returncode == 0 or ("RunError" in error and "is being run by process" in error), error
    record = Run.open(tmp_path, "r1").record(ADDRESS)
    assert record is not None
    assert record.outputs["squares"].digest == undisturbed
    assert Run.open(tmp_path, "r1").status(ADDRESS).num_attempts == 1


def run_program(root: Path, kill_at: int | None = None) -> list[str]:
    """Run the program; return the lines that it printed; kill it after this number of them."""
    lines: list[str] = []
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(root)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line.strip())
            if len(lines) == kill_at:
                child.kill()
    assert child.returncode == -9 or (child.returncode == 0 and lines[-1] == "done")
    return lines


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("undisturbed")
    run_program(root)
    record = Run.open(root, "r1").record(ADDRESS)
    assert record is not None
    return record.outputs["squares"].digest


@pytest.mark.parametrize("kill_at", sampled([1, 60, 201, 390], [60]))
def test_killed_instance_is_resumed(tmp_path: Path, undisturbed: str, kill_at: int) -> None:
    first = run_program(tmp_path, kill_at)
    run = Run.open(tmp_path, "r1")
    assert run.status(ADDRESS).state == ("crashed" if run.record(ADDRESS) is None else "completed")
    second = run_program(tmp_path)
    called = [line for line in first + second if line.startswith("call")]
    # At most the call in flight at the kill is made twice.
    assert len(set(called)) == 200
    assert len(called) <= 201
    record = run.record(ADDRESS)
    assert record is not None
    assert record.outputs["squares"].digest == undisturbed
    assert run.status(ADDRESS).state == "completed"
    assert not list(tmp_path.rglob(".tmp-*"))
