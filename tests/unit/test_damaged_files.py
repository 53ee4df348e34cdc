"""The small files of a run (identity, configuration, records, attempts, leases, logs) cut, or with a bit flipped.

Each is told in one line that names the file, or changes nothing that counts; it is never taken for another result.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.crash_bench import artifact_files

from treadle.core.config import Section
from treadle.core.errors import TreadleError
from treadle.core.execute import execute
from treadle.core.locked_config import create_or_open_run
from treadle.core.runs import Run, list_runs
from treadle.core.schemas import Table
from treadle.core.stage import Address, Instance, Stage, StageContext

NUMBERS = Table("numbers", 1, ("number",), pa.schema([pa.field("number", pa.int64(), nullable=False)]), "Numbers.")
SUMS = Table("sums", 1, ("number",), NUMBERS.schema, "Sums.")
CONFIG = {"count": 3, "nested": {"text": "größe", "list": [1, 2.5, None, True]}}


def count(context: StageContext) -> Mapping[str, Any]:
    context.write("numbers", [{"number": number} for number in range(3)])
    return {"num_numbers": 3, "share": 0.25}


def add(context: StageContext) -> Mapping[str, Any]:
    (numbers,) = context.inputs["numbers"]
    context.write("sums", [{"number": sum(row["number"] for row in numbers.rows())}])
    return {}


COUNT = Stage(name="count", version=1, settings=Section, produces=(NUMBERS,), run=count)
ADD = Stage(name="add", version=1, settings=Section, consumes={"numbers": "numbers"}, produces=(SUMS,), run=add)
COUNTING, ADDING = Address(1, "count"), Address(1, "add")


def work(root: Path) -> None:
    run = create_or_open_run(root, "r1", CONFIG, {"count": 3}, "count = 3\n", seed=1)
    execute(Instance(address=COUNTING, stage=COUNT, settings=Section()), run)
    execute(Instance(address=ADDING, stage=ADD, settings=Section(), inputs={"numbers": (COUNTING,)}), run)


def look(root: Path) -> None:
    """What `status`, `verify` and a run without a configuration file read."""
    assert list_runs(root) == ["r1"] or not (root / "runs/r1/run.json").exists()
    run = Run.open(root, "r1")
    run.config()
    run.records()
    run.statuses()
    run.verify()


def damages(content: bytes) -> Iterator[bytes]:
    """Nothing left, zeros, all cuts and one flipped bit per byte."""
    yield bytes(len(content))
    for at in range(len(content)):
        yield content[:at]
        yield content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound")
    work(root)
    look(root)
    return root


def says(action: Callable[[Path], None], root: Path) -> str:
    """The line with which an action refuses; empty where it does not."""
    try:
        action(root)
    except TreadleError as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


@pytest.mark.covers("flywheel-25")
@pytest.mark.parametrize(
    "name",
    ["run.json", "config.json", "config.input.toml", "records/1/count.json", "records/1/add.json",
     "attempts/1/count/1/attempt.json", "attempts/1/add/1/log.txt", "locks/1/count.lock"],
)  # fmt: skip
def test_a_damaged_file_is_named_or_changes_nothing(sound: Path, tmp_path: Path, name: str) -> None:
    files, path = artifact_files(sound), tmp_path / "root/runs/r1" / name
    shutil.copytree(sound, tmp_path / "root")
    content = path.read_bytes()
    # A long file says the same many times over.
    for damaged in itertools.islice(damages(content), 0, None, 1 + len(content) // 40):
        path.write_bytes(damaged)
        try:
            for action in (look, work):
                line = says(action, tmp_path / "root")
                assert (
                    not line or "runs/r1/" in line or "artifacts/" in line or "1/count" in line or "r1 was" in line
                ), line
            assert artifact_files(tmp_path / "root") == files
        except BaseException as error:
            at = next((at for at, pair in enumerate(zip(content, damaged, strict=False)) if pair[0] != pair[1]), -1)
            error.add_note(f"{len(damaged)} of {len(content)} bytes, {damaged[max(at - 20, 0) : at + 20]!r}")
            raise
        shutil.rmtree(tmp_path / "root")
        shutil.copytree(sound, tmp_path / "root")
