"""The small files of a run (identity, config, records, attempts, leases, logs) cut, or with a bit flipped.

Each damage is reported in one line that names the file, or changes nothing relevant; it never becomes another result.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.runs.crash_bench import artifact_files

from treadle.core.config import Section
from treadle.core.errors import TreadleError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.locked_config import create_or_open_run
from treadle.core.runs.run import Run, list_runs
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import Table

TIMES = Table(
    "times", 1, ("number",), pa.schema([pa.field("number", pa.int64(), nullable=False)]), "Times.", required=False
)
NUMBERS = Table("numbers", 1, ("number",), pa.schema([pa.field("number", pa.int64(), nullable=False)]), "Numbers.")
SUMS = Table("sums", 1, ("number",), NUMBERS.schema, "Sums.")
CONFIG = {"count": 3, "nested": {"text": "größe", "list": [1, 2.5, None, True]}}


def count(context: StageContext) -> Mapping[str, Any]:
    context.write("numbers", [{"number": number} for number in range(3)])
    context.write_telemetry("times", [{"number": 1}])
    return {"num_numbers": 3, "share": 0.25}


def add(context: StageContext) -> Mapping[str, Any]:
    (numbers,) = context.inputs["numbers"]
    context.write("sums", [{"number": sum(row["number"] for row in numbers.rows())}])
    return {}


COUNT = Stage(name="count", version=1, settings=Section, produces=(NUMBERS,), telemetry=(TIMES,), run=count)
ADD = Stage(name="add", version=1, settings=Section, consumes={"numbers": "numbers"}, produces=(SUMS,), run=add)
COUNTING, ADDING = Address(1, "count"), Address(1, "add")


def work(root: Path) -> None:
    run = create_or_open_run(root, "r1", CONFIG, {"count": 3}, "count = 3\n", seed=1)
    execute(Instance(address=COUNTING, stage=COUNT, settings=Section()), run)
    execute(Instance(address=ADDING, stage=ADD, settings=Section(), inputs={"numbers": (COUNTING,)}), run)


def look(root: Path) -> None:
    """Read what `status`, `verify` and a run without a config file read."""
    assert list_runs(root) == ["r1"] or not (root / "runs/r1/run.json").is_file()
    run = Run.open(root, "r1")
    run.config()
    run.records()
    run.statuses()
    run.verify()


GARBAGE = (b"", b"null", b"[]", b'"text"', b"3", b"{}", b'{"a": NaN}', b"\xff\xfe", b"{" * 5000, b"PAR1", b"\0" * 600)
"""What another program, an editor or a crash may leave in place of a file."""


def damages(content: bytes) -> Iterator[bytes]:
    """All cuts and one flipped bit per byte."""
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
    """Return the line with which an action refuses; empty if it does not."""
    try:
        action(root)
    except TreadleError as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


FILES = (
    "run.json", "config.json", "config.input.toml", "records/1/count.json", "records/1/add.json",
    "attempts/1/count/1/attempt.json", "attempts/1/add/1/log.txt", "attempts/1/count/1/times.parquet",
    "locks/1/count.lock", "locks/run.lock",
)  # fmt: skip


@pytest.mark.covers("flywheel-25")
@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_named_or_changes_nothing(sound: Path, tmp_path: Path, name: str) -> None:
    files, path = artifact_files(sound), tmp_path / "root/runs/r1" / name
    shutil.copytree(sound, tmp_path / "root")
    content = path.read_bytes()
    # A long file is repetitive.
    for damaged in itertools.chain(GARBAGE, itertools.islice(damages(content), 0, None, 1 + len(content) // 40)):
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


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("instead", ["folder", "circle"])
def test_substitute_for_a_file_is_named_or_changes_nothing(
    sound: Path, tmp_path: Path, name: str, instead: str
) -> None:
    root = tmp_path / "root"
    shutil.copytree(sound, root)
    path = root / "runs/r1" / name
    path.unlink()
    path.mkdir() if instead == "folder" else path.symlink_to(path)
    for action in (look, work):
        line = says(action, root)
        assert not line or ("runs/r1/" in line and ("there is a folder" in line or "lead in a circle" in line)), line
    assert artifact_files(root) == artifact_files(sound)


@pytest.mark.parametrize("name", ["run.json", "records/1/count.json", "attempts/1/count/1/attempt.json"])
def test_file_of_another_version_is_refused_by_name(sound: Path, tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    shutil.copytree(sound, root)
    path = root / "runs/r1" / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    line = says(work, root)
    assert name in line and "has format 99" in line and "use the version that wrote it" in line


@pytest.mark.parametrize("content", GARBAGE[:-6] + GARBAGE[-5:], ids=lambda content: repr(content[:10]))
def test_damaged_config_is_rewritten_if_its_source_file_is_given(sound: Path, tmp_path: Path, content: bytes) -> None:
    root = tmp_path / "root"
    shutil.copytree(sound, root)
    config = root / "runs/r1/config.json"
    config.write_bytes(content)
    line = says(lambda root: Run.open(root, "r1").config() and None, root)
    assert str(config) in line and "treadle run CONFIG.toml --run r1" in line
    work(root)
    assert config.read_bytes() == (sound / "runs/r1/config.json").read_bytes()
