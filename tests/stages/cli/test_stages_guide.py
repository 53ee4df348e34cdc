"""The guide to stages and recipes: what its files declare shows up everywhere, with nothing changed in Treadle."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs/guides/stages.md"
CONFIG = """
[flow]
stages = ["rollouts", "lengths", "scores", "report"]

[models.base]
model = "treadle-tutor"
server = { type = "tutor", persona = "strong" }

[questions]
sources = [{ path = "questions.jsonl", dataset = "mine", domain = "qa" }]

[environment]
tools = {}

[environment.search]
corpus = ["corpus.jsonl"]

[environment.python]
enabled = false

[lengths]
longest = 10
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a configuration, on whose path the package of the guide is installed."""
    stage, recipe = blocks("python")
    points, _ = blocks("toml")
    (tmp_path / "lengths.py").write_text(stage)
    (tmp_path / "my_recipes.py").write_text(recipe)
    info = tmp_path / "lengths-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lengths\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        points.replace('[project.entry-points."treadle.stages"]', "[treadle.stages]").replace('"', "")
    )
    (tmp_path / "corpus.jsonl").write_text('{"id": "1", "title": "Vorna", "text": "Vorna was written by Ilme."}\n')
    (tmp_path / "questions.jsonl").write_text('{"question": "Who wrote the book Vorna?", "answer": ["Ilme"]}\n')
    (tmp_path / "own.toml").write_text(CONFIG)
    return tmp_path


def treadle(folder: Path, *words: str, fails: bool = False) -> str:
    environ = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    command = [str(Path(sys.executable).with_name("treadle")), *words]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stdout + done.stderr


def test_stage_of_another_package_runs_in_the_flow_and_is_known_everywhere(folder: Path) -> None:
    shown = treadle(folder, "run", "own.toml", "--run", "r")
    assert "1 trajectories are long." in shown
    record = json.loads((folder / "outputs/runs/r/records/1/lengths@base.json").read_text())
    assert (record["metrics"]["num_long"], record["settings"]["longest"]) == (1, 10)
    planned = treadle(folder, "run", "own.toml", "--run", "r", "--dry-run")
    assert planned.index("1/rollouts@base") < planned.index("1/lengths@base") < planned.index("1/report")
    assert re.search(r"1/lengths@base +reuse +nothing changed", planned)
    assert "1/lengths@base" in treadle(folder, "status", "--run", "r")
    lines = treadle(folder, "lineage", first_rollout(folder), "--run", "r")
    assert re.search(r"row of lengths by 1/lengths@base: num_chars \d+", lines)


def first_rollout(folder: Path) -> str:
    """Key of the only rollout."""
    (table,) = (folder / "outputs/artifacts/rollouts").glob("*/data/part-00000.parquet")
    return str(pq.read_table(table).column("rollout_key").to_pylist()[0])


def test_key_of_the_table_is_checked_and_documented(folder: Path) -> None:
    said = treadle(folder, "run", "own.toml", "--run", "r", "--set", "lengths.longer=1", "--dry-run", fails=True)
    assert "unknown config key 'lengths.longer'; did you mean 'longest'?" in said
    program = (
        "from treadle.tasks.reference import pages; from treadle.tasks.prefect.deployments import deployments; "
        "print(pages()['config.md'], pages()['tables.md'], [one.name for one in deployments()])"
    )
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    shown = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    assert "Length in characters from which a trajectory counts as long." in shown.stdout
    assert "its length in characters" in shown.stdout and "'lengths'" in shown.stdout.splitlines()[-1]


def test_own_recipe_decides_what_the_flow_runs(folder: Path) -> None:
    stages = 'flow.stages=["pools","sft_rows","sft","rollouts","scores","report"]'
    words = ("run", "own.toml", "--run", "r", "--dry-run", "--set", 'flow.recipe="my_recipes.py:Compare"')
    planned = treadle(folder, *words, "--set", stages)
    assert planned.index("1/sft_rows") < planned.index("1/rollouts@base") < planned.index("1/report")
    said = treadle(folder, *words, "--set", 'flow.stages=["rl"]', fails=True)
    assert "names 'rl', which is no stage of the recipe my_recipes.py:Compare; there are pools, sft_rows" in said


def test_stage_that_cannot_say_its_settings_is_named_in_one_line(folder: Path) -> None:
    stage = (folder / "lengths.py").read_text()
    for wrong, said in (
        ("1 / 0", "1/lengths@base: its StageEntry gives no settings or inputs: ZeroDivisionError"),
        ("3", "1/lengths@base: `settings` of its StageEntry returned int, not a Section"),
    ):
        text = re.sub(r"settings=lambda plan, address: .*", f"settings=lambda plan, address: {wrong},", stage)
        (folder / "lengths.py").write_text(text)
        assert said in treadle(folder, "run", "own.toml", "--run", "r", "--dry-run", fails=True)


def test_stage_whose_report_fails_says_so(folder: Path) -> None:
    stage = (folder / "lengths.py").read_text()
    (folder / "lengths.py").write_text(stage.replace('return {"num_long": num_long}', "return {}"))
    said = " ".join(treadle(folder, "run", "own.toml", "--run", "r").split())
    assert "1/lengths@base: the report of its StageEntry cannot be shown: KeyError: 'num_long'" in said


def test_package_whose_stage_cannot_be_loaded_is_named_in_one_line(folder: Path) -> None:
    (folder / "lengths.py").write_text("import no_such_module")
    said = treadle(folder, "run", "own.toml", "--run", "r", "--dry-run", fails=True)
    assert (
        "stage lengths: lengths:ENTRY cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'" in said
    )
    assert "Traceback" not in said
