"""Reused results are shown once, at a place where they still exist, even if their origin has been remade since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from support.runs.counting_stage import (
    NUMBERS,
    counting,
    no_calls,  # noqa: F401 - an autouse fixture
)
from support.tables.score_tables import put_rows, score
from support.tables.viewer_run import agent_row
from unit.core.runs.test_equal_results import at

from treadle.cli.views.tables import status_table
from treadle.core.figures import Figures
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import InstanceStatus, StageRecord, as_json
from treadle.core.runs.reused import own_results
from treadle.core.runs.run import Run
from treadle.demo.results import counts_by_model
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES
from treadle.tasks.inspection.rows import tables
from treadle.tasks.page.cost import cost_section
from treadle.tasks.page.sources import PageRun
from treadle.tasks.prefect.stage_card import stage_card
from treadle.viewer.catalogue import Catalogue


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def make(run: Run, *iterations: int, count: int = 3) -> list[str]:
    """Count in each; returns what each is the same as."""
    return [execute(at(number, counting(count=count)), run).reused_from for number in iterations]


def shown(run: Run) -> list[str]:
    return [str(address) for address, _ in tables(run, NUMBERS.kind)]


def status(run: Run, iteration: int) -> InstanceStatus:
    return run.status(Address(iteration, "count"))


def record(run: Run, address: str) -> StageRecord:
    found = run.record(Address.parse(address))
    assert found is not None
    return found


def test_reused_result_is_shown_at_its_origin(run: Run) -> None:
    assert make(run, 1, 2, 3) == ["", "1/count", "1/count"]
    assert shown(run) == ["1/count"] and [status(run, n).reused_from for n in (2, 3)] == ["1/count"] * 2
    assert [str(address) for address, _ in tables(run, NUMBERS.kind, 2)] == ["2/count"], "asked for by its iteration"


def test_result_lost_at_its_origin_is_shown_where_it_still_exists(run: Run) -> None:
    make(run, 1, 2)
    make(run, 1, count=4)
    assert make(run, 2, 3) == ["1/count", "2/count"]
    assert shown(run) == ["1/count", "2/count"]
    assert [(status(run, n).reused_from, status(run, n).was_reused_from) for n in (1, 2, 3)] == [
        ("", ""), ("", "1/count"), ("2/count", ""),
    ]  # fmt: skip
    said = "reused from 1/count, which has been rerun since"
    assert said in stage_card(record(run, "2/count"), run).markdown
    assert "the same as 2/count" in stage_card(record(run, "3/count"), run).markdown
    console = Console(width=160)
    with console.capture() as capture:
        console.print(status_table(run, run.statuses(), forced=False))
    assert f"3 numbers, {said}" in capture.get() and "3 numbers, the same as 2/count" in capture.get()


def test_only_one_of_two_reusing_iterations_shows_the_result(run: Run) -> None:
    make(run, 1, 2, 3)
    make(run, 1, count=4)
    assert shown(run) == ["1/count", "2/count"]
    assert (status(run, 3).reused_from, status(run, 3).was_reused_from) == ("2/count", "")


def test_origin_with_equal_content_is_named_even_if_made_differently(run: Run) -> None:
    make(run, 1, 2)
    newer = counting()
    execute(replace(newer, stage=replace(newer.stage, version=2)), run)
    assert record(run, "1/count").outputs == record(run, "2/count").outputs
    assert make(run, 3) == ["1/count"], "and not 2/count, which is not shown itself"


def test_damaged_origin_hides_nothing(run: Run) -> None:
    make(run, 1, 2)
    run.storage.put(run.key("records/1/count.json"), b"{")
    assert [one.address for one in own_results(run.readable_records()[0])] == ["2/count"]
    assert status(run, 2).was_reused_from == "1/count"


def test_viewer_and_totals_include_reused_results(run: Run) -> None:
    def put(address: str, key: str) -> None:
        put_rows(run, address, ROLLOUTS, [agent_row(ROLLOUTS, key, "q1")])
        made = record(run, address)
        tokens = {"num_turns": 1, "prompt_tokens": 10, "completion_tokens": 5}
        run.write_record(made.model_copy(update={"metrics": tokens, "settings": {"model": {"model": "m"}}}))

    viewer = Catalogue(run, refresh_s=0)
    put("1/rollouts@base", "old")
    put("2/rollouts@base", "old")
    assert list(viewer.snapshot().parts) == ["1/rollouts@base"]
    put("1/rollouts@base", "new")
    assert list(viewer.snapshot().parts) == ["1/rollouts@base", "2/rollouts@base"]
    (section,) = cost_section([PageRun(run)])
    (table,) = section.parts
    assert isinstance(table, Figures)
    assert {row[0] for row in table.rows} == {"1/rollouts@base", "2/rollouts@base", "all"}
    before = viewer.snapshot()
    own = record(run, "2/rollouts@base").model_copy(update={"reused_from": ""})
    run.storage.put(run.key("records/2/rollouts@base.json"), as_json(own))
    assert viewer.snapshot() is not before, "who made it counts as well"


def test_demo_counts_scores_missing_at_their_origin(run: Run) -> None:
    for address, right in (("1/scores@base", True), ("2/scores@base", True), ("1/scores@base", False)):
        put_rows(run, address, SCORES, [score("r1", "q1", right)])
    assert counts_by_model(run, ["base"], iteration=2)["base"].num_right == 1
