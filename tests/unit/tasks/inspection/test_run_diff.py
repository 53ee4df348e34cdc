"""`treadle diff`: what two runs have in common, and where they part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.runs.counting_stage import (
    DOUBLING,
    counting,
    no_calls,  # noqa: F401 - an autouse fixture
)
from support.tables.score_tables import put_rows
from support.tables.viewer_run import filled

from treadle.cli.commands.diff import diff
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.datagen.questions.tables import QUARANTINE
from treadle.report.tables import SUMMARY
from treadle.tasks.inspection.run_diff import Change, run_diff

HOSTILE = "\x1b]0;owned\x07\u202e[red]bench"


def summary_row(figure: str, value: float | None, dataset: str = "every") -> dict[str, Any]:
    return filled(SUMMARY, model="base", dataset=dataset, figure=figure, value=value)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Run, Run]:
    first = Run.create(tmp_path, "a", {"seed": 0, "models": {"m": {"top_p": 0.9}}, "files": ["x", "y"]}, {})
    second = Run.create(tmp_path, "b", {"seed": 1, "models": {"m": {"top_p": 0.9}}, "files": ["x", HOSTILE]}, {})
    for run, number in ((first, 2), (second, 3)):
        execute(counting(count=number), run)
        execute(DOUBLING, run)
        put_rows(run, "1/other", QUARANTINE, [])
    put_rows(first, "1/report", SUMMARY, [summary_row("score", 0.5), summary_row("calls", 2.0)])
    rows = [summary_row("score", 0.75), summary_row("calls", 2.0), summary_row("f1", None, HOSTILE)]
    put_rows(second, "1/report", SUMMARY, rows)
    put_rows(second, "2/other", QUARANTINE, [])
    return first, second


def test_every_difference_is_found_with_its_cause(runs: tuple[Run, Run]) -> None:
    found = run_diff(*runs)
    assert found.config == [Change("seed", 0, 1), Change("files[1]", "y", HOSTILE)]
    assert (found.software, found.notes) == ([], [])
    by_address = {item.address: item for item in found.instances}
    assert {address: item.verdict for address, item in by_address.items()} == {
        "1/count": "changed",
        "1/double": "changed",
        "1/other": "same",
        "1/report": "changed",
        "2/other": "only second",
    }
    counts, doubles = by_address["1/count"], by_address["1/double"]
    assert (counts.settings, counts.inputs) == ((Change("count", 2, 3),), ())
    assert counts.metrics == (Change("count", 2, 3),)
    assert (doubles.settings, doubles.inputs) == ((), ("1/count",))
    assert [(table.first_rows, table.second_rows) for table in doubles.tables] == [(2, 3)]
    figures = [(one.dataset, one.figure, one.first, one.second, one.difference) for one in found.figures]
    assert figures == [("every", "score", 0.5, 0.75, 0.25)]


def test_run_equals_itself(runs: tuple[Run, Run]) -> None:
    found = run_diff(runs[0], runs[0])
    assert (found.config, found.software, found.figures) == ([], [], [])
    assert {item.verdict for item in found.instances} == {"same"}


def test_results_are_in_flow_order_and_show_reuse(tmp_path: Path) -> None:
    flow = {"stages": ["rollouts", "scores"], "models": ["b", "a"]}
    models = {name: {"model": name, "endpoints": [{"url": "http://127.0.0.1:9/v1"}]} for name in "ab"}
    first = Run.create(tmp_path, "a", {}, {})
    second = Run.create(tmp_path, "b", {"flow": flow, "models": models}, {})
    for iteration in (1, 2):
        for place in ("scores@a", "rl@phase-10", "rl@phase-2", "rollouts@a", "scores@b", "questions", "rollouts@b"):
            put_rows(second, f"{iteration}/{place}", QUARANTINE, [])
    found = run_diff(first, second)
    assert [item.address for item in found.instances][:7] == [
        "1/questions", "1/rollouts@b", "1/scores@b", "1/rollouts@a", "1/scores@a", "1/rl@phase-2", "1/rl@phase-10",
    ]  # fmt: skip
    assert [item.reused_from for item in found.instances][6:8] == [("", ""), ("", "1/questions")]
    shown = CliRunner().invoke(diff, ["a", "b", "--root", str(tmp_path)], catch_exceptions=False).output
    assert shown.count("in b it is the same as 1/questions") == 1


def test_keys_of_stages_that_neither_run_has_are_counted(tmp_path: Path) -> None:
    def create(name: str, **tables: Any) -> Run:
        models = {"base": {"model": "base", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]}}
        run = Run.create(tmp_path, name, {"flow": {"stages": ["rollouts", "scores"]}, "models": models} | tables, {})
        put_rows(run, "1/questions", QUARANTINE, [])
        return run

    def shown(*names: str) -> str:
        return CliRunner().invoke(diff, [*names, "--root", str(tmp_path)], catch_exceptions=False).output

    tables = {"scores": {"f1_threshold": 0.5}, "rl": {"group_size": 4}, "curriculum": {"phases": 2}}
    first, second = create("a"), create("b", **tables)
    found = run_diff(first, second)
    assert [change.name for change in found.config] == ["scores"]
    assert [change.name for change in found.unused_config] == ["rl", "curriculum"]
    assert "configuration: 1 keys differ" in shown("a", "b")
    assert "and 2 keys of stages that neither run has (rl, curriculum)" in shown("a", "b")
    assert "neither run has" not in shown("a", "a")
    put_rows(first, "1/rollouts@phase-1", QUARANTINE, [])  # as of an import
    assert [change.name for change in run_diff(first, second).unused_config] == ["rl"]
    assert run_diff(first, Run.create(tmp_path, "c", {"of another version": 1}, {})).unused_config == []


def test_unreadable_results_are_noted_and_the_rest_is_compared(runs: tuple[Run, Run]) -> None:
    first, second = runs
    record = Path(first.storage.location(first.key("records/1/double.json")))
    record.write_bytes(record.read_bytes()[:-20])
    summary = next(record for record in second.records() if record.address == "1/report").outputs["summary"]
    Path(second.storage.location(f"{summary.folder}/artifact.json")).unlink()
    found = run_diff(first, second)
    assert len(found.notes) == 2
    assert "records/1/double.json cannot be read" in found.notes[0] and "is missing" in found.notes[1]
    assert {item.address: item.verdict for item in found.instances}["1/double"] == "only second"


def test_diff_command_prints_sanitized_lines_and_json(runs: tuple[Run, Run]) -> None:
    root = runs[0].storage.location()
    shown = CliRunner().invoke(diff, ["a", "b", "--root", root], catch_exceptions=False)
    assert shown.exit_code == 0
    for words in (
        "configuration: 2 keys differ",
        "numbers 2 -> 3",
        "different count",
        "different input 1/count",
        "only in b",
    ):
        assert words in shown.output
    assert "score" in shown.output and "+0.25" in shown.output
    assert "1 of 5 results are the same, byte for byte" in shown.output
    assert "\x1b" not in shown.output and "\u202e" not in shown.output
    told = json.loads(CliRunner().invoke(diff, ["a", "b", "--root", root, "--json"]).output)
    assert told["config"][1] == {"name": "files[1]", "first": "y", "second": HOSTILE}
    assert told["figures"][0]["difference"] == 0.25
