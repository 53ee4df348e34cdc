"""What was taken over is shown once, where it still is, also when its origin has been made anew since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from support.counting_stage import (
    NUMBERS,
    counting,
    no_calls,  # noqa: F401 - an autouse fixture
)
from support.score_tables import put_rows, score
from support.viewer_run import agent_row
from unit.test_equal_results import at

from treadle.core import schemas
from treadle.core.execute import execute
from treadle.core.figures import Figures
from treadle.core.record_files import as_json
from treadle.core.records import InstanceStatus, StageRecord
from treadle.core.runs import Run
from treadle.core.stage import Address
from treadle.core.taken_over import own_results
from treadle.demo.outcome import tallies
from treadle.eval.viewer.catalogue import Catalogue
from treadle.flows.render import status_table
from treadle.tasks.inspection.rows import tables
from treadle.tasks.page.cost import cost_section
from treadle.tasks.page.sources import Source
from treadle.tasks.prefect.stage_card import stage_card


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, "r1", {}, {})


def make(run: Run, *iterations: int, count: int = 3) -> list[str]:
    """Count in each; returns what each is the same as."""
    return [execute(at(number, counting(count=count)), run).same_as for number in iterations]


def shown(run: Run) -> list[str]:
    return [str(address) for address, _ in tables(run, NUMBERS.kind)]


def status(run: Run, iteration: int) -> InstanceStatus:
    return run.status(Address(iteration, "count"))


def record(run: Run, address: str) -> StageRecord:
    found = run.record(Address.parse(address))
    assert found is not None
    return found


def test_what_was_taken_over_is_shown_where_it_was_made(run: Run) -> None:
    assert make(run, 1, 2, 3) == ["", "1/count", "1/count"]
    assert shown(run) == ["1/count"] and [status(run, n).same_as for n in (2, 3)] == ["1/count"] * 2
    assert [str(address) for address, _ in tables(run, NUMBERS.kind, 2)] == ["2/count"], "asked for by its iteration"


def test_what_its_origin_has_no_more_is_shown_where_it_still_is(run: Run) -> None:
    make(run, 1, 2)
    make(run, 1, count=4)
    assert make(run, 2, 3) == ["1/count", "2/count"]
    assert shown(run) == ["1/count", "2/count"]
    assert [(status(run, n).same_as, status(run, n).was_same_as) for n in (1, 2, 3)] == [
        ("", ""), ("", "1/count"), ("2/count", ""),
    ]  # fmt: skip
    said = "reused from 1/count, which has been rerun since"
    assert said in stage_card(record(run, "2/count"), run).markdown
    assert "the same as 2/count" in stage_card(record(run, "3/count"), run).markdown
    console = Console(width=160)
    with console.capture() as capture:
        console.print(status_table(run, run.statuses(), forced=False))
    assert f"3 numbers, {said}" in capture.get() and "3 numbers, the same as 2/count" in capture.get()


def test_of_two_that_took_over_the_same_one_shows_it(run: Run) -> None:
    make(run, 1, 2, 3)
    make(run, 1, count=4)
    assert shown(run) == ["1/count", "2/count"]
    assert (status(run, 3).same_as, status(run, 3).was_same_as) == ("2/count", "")


def test_an_origin_is_named_that_has_the_same_though_it_was_made_otherwise(run: Run) -> None:
    make(run, 1, 2)
    newer = counting()
    execute(replace(newer, stage=replace(newer.stage, version=2)), run)
    assert record(run, "1/count").outputs == record(run, "2/count").outputs
    assert make(run, 3) == ["1/count"], "and not 2/count, which is not shown itself"


def test_a_damaged_origin_hides_nothing(run: Run) -> None:
    make(run, 1, 2)
    run.storage.put(run.key("records/1/count.json"), b"{")
    assert [one.address for one in own_results(run.readable_records()[0])] == ["2/count"]
    assert status(run, 2).was_same_as == "1/count"


def test_the_viewer_and_the_sums_have_it_too(run: Run) -> None:
    def put(address: str, key: str) -> None:
        put_rows(run, address, schemas.ROLLOUTS, [agent_row(schemas.ROLLOUTS, key, "q1")])
        made = record(run, address)
        tokens = {"num_turns": 1, "prompt_tokens": 10, "completion_tokens": 5}
        run.write_record(made.model_copy(update={"metrics": tokens, "settings": {"model": {"model": "m"}}}))

    viewer = Catalogue(run, fresh_s=0)
    put("1/rollouts@base", "old")
    put("2/rollouts@base", "old")
    assert list(viewer.snapshot().parts) == ["1/rollouts@base"]
    put("1/rollouts@base", "new")
    assert list(viewer.snapshot().parts) == ["1/rollouts@base", "2/rollouts@base"]
    (section,) = cost_section([Source(run)])
    (table,) = section.parts
    assert isinstance(table, Figures)
    assert {row[0] for row in table.rows} == {"1/rollouts@base", "2/rollouts@base", "all"}
    before = viewer.snapshot()
    own = record(run, "2/rollouts@base").model_copy(update={"same_as": ""})
    run.storage.put(run.key("records/2/rollouts@base.json"), as_json(own))
    assert viewer.snapshot() is not before, "who made it counts as well"


def test_the_demo_counts_scores_that_are_there_no_more_where_they_were_made(run: Run) -> None:
    for address, right in (("1/scores@base", True), ("2/scores@base", True), ("1/scores@base", False)):
        put_rows(run, address, schemas.SCORES, [score("r1", "q1", right)])
    assert tallies(run, ["base"], iteration=2)["base"].num_right == 1
