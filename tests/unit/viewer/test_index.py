"""Search, counts and order of the viewer's list, and which parts of a page's address it uses."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tables.score_tables import new_run, put_rows, put_tables, score
from support.tables.viewer_run import agent_row, example_run, filled, put_from, question_row

from treadle.core.errors import ArtifactError
from treadle.core.runs.run import Run
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.datagen.pools.tables import POOLS
from treadle.datagen.questions.tables import QUESTIONS
from treadle.datagen.sft_rows.tables import SFT_ROWS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.rl.training.tables import RL_ROLLOUTS
from treadle.viewer import tables
from treadle.viewer.catalogue import Catalogue, Snapshot
from treadle.viewer.index import neighbours
from treadle.viewer.reading import read_trajectory
from treadle.viewer.selection import PAGE_ROWS, Selection


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield example_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def snapshot(run: Run) -> Snapshot:
    return Catalogue(run, refresh_s=0).snapshot()


def asked(*pairs: tuple[str, str]) -> Selection:
    return Selection.of(pairs)


def keys(snapshot: Snapshot, *pairs: tuple[str, str]) -> list[str]:
    """Keys of what is found, in order."""
    found = snapshot.index.find(asked(*pairs))
    return [row["key"] for row in snapshot.index.rows(found.rows)]


def counts(snapshot: Snapshot, name: str, *pairs: tuple[str, str]) -> dict[str, int]:
    return {value.value: value.num for value in snapshot.index.find(asked(*pairs)).values[name]}


def test_all_three_kinds_of_trajectories_are_indexed(snapshot: Snapshot) -> None:
    assert keys(snapshot) == ["p1", "p2", "p3", "3.0.g/7?", "3.1.g/7?", "3.2.g/7?", "r1", "r2", "r3", "r4", "r5"]
    assert snapshot.problems == [] and snapshot.unfinished == []


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ([("instance", "1/pools")], "p1 p2 p3"),
        ([("verdict", "right")], "p2 p3 3.0.g/7? r1"),
        ([("verdict", "no verdict")], "3.2.g/7? r4"),
        ([("verdict", "not judged")], "r5"),
        ([("verdict", "partly right")], "3.1.g/7?"),
        ([("verdict", "right"), ("verdict", "wrong"), ("instance", "1/rollouts@base")], "r1 r2 r3"),
        ([("status", "max_turns")], "r3"),
        ([("dataset", "sums"), ("verdict", "wrong")], "r3"),
        ([("model", "policy in training")], "3.0.g/7? 3.1.g/7? 3.2.g/7?"),
        ([("operator", "hint_tail")], "p2"),
        ([("operator", "branch")], "3.1.g/7?"),
        ([("tool", "python")], "r2 r3"),
        ([("tool", "(others)")], ""),
        ([("tools", "error")], "r2"),
        ([("tools", "timeout"), ("tools", "error")], "r2 r3"),
        ([("tools", "failed")], "3.1.g/7?"),
        ([("tools", "no calls")], "p3 r4 r5"),
        ([("sft_outcome", "row")], "p2"),
        ([("sft_outcome", "not_correct")], "p1"),
        ([("question", "q2")], "r3 r4"),
        ([("q", "KEYERROR")], "r2 r3"),
        ([("q", "arn?")], "r3 r4"),
        ([("q", "r4")], "r4"),
        ([("q", "no such text")], ""),
        ([("q", "(vorna")], ""),
        ([("verdict", "splendid")], ""),
        ([("dataset", "sums"), ("nobody", "knows"), ("page", "-1"), ("page", "²"), ("sort", "text")], "r3 r4"),
    ],
)  # fmt: skip
def test_filter_matches_any_of_its_values(snapshot: Snapshot, pairs: list[tuple[str, str]], found: str) -> None:
    assert keys(snapshot, *pairs) == found.split()


def test_counts_show_the_result_of_choosing_a_value(snapshot: Snapshot) -> None:
    chosen = [("verdict", "wrong"), ("instance", "1/rollouts@base")]
    assert counts(snapshot, "dataset", *chosen) == {"world": 1, "sums": 1}
    # The other values of a column with a choice are those that a further choice would add.
    assert counts(snapshot, "verdict", *chosen) == {"right": 1, "wrong": 2, "no verdict": 1, "not judged": 1}
    assert counts(snapshot, "instance", *chosen) == {"1/pools": 1, "1/rollouts@base": 2}
    assert counts(snapshot, "tools", *chosen) == {"error": 1, "timeout": 1}
    assert counts(snapshot, "verdict", ("verdict", "splendid"))["splendid"] == 0


def test_filter_names_the_tools_that_most_trajectories_call(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    rows = []
    for number in range(300):
        names = ["calc", f"made-up-{number:03}", *(["wiki"] if number % 2 else [])]
        tools = [{"tool": name, "requested": 1, "executed": 1, "failed": 0} for name in names]
        rows.append(agent_row(ROLLOUTS, f"k{number:03}", "q1", tools=tools))
    put_tables(run, "1/rollouts@base", {"rollouts": [*rows, agent_row(ROLLOUTS, "idle", "q1")]})
    found = Catalogue(run, refresh_s=0).snapshot()
    assert counts(found, "tool") == {
        "calc": 300, "wiki": 150, **{f"made-up-{number:03}": 1 for number in range(6)}, "(others)": 294,
    }  # fmt: skip
    assert len(keys(found, ("tool", "wiki"), ("tool", "made-up-000"))) == 151
    assert len(keys(found, ("tool", "(others)"))) == 294


def test_missing_scores_sort_last_in_both_directions(snapshot: Snapshot) -> None:
    rollouts = ("instance", "1/rollouts@base")
    assert keys(snapshot, rollouts, ("sort", "-score")) == ["r1", "r2", "r3", "r4", "r5"]
    assert keys(snapshot, rollouts, ("sort", "score")) == ["r2", "r3", "r1", "r4", "r5"]
    assert keys(snapshot, rollouts, ("sort", "-calls"))[0] == "r3"


def test_neighbours_come_from_the_current_results(snapshot: Snapshot) -> None:
    found = snapshot.index.find(asked(("dataset", "world"), ("instance", "1/rollouts@base")))
    number = snapshot.index.number("1/rollouts@base", "r2")
    assert number is not None
    before, after, place = neighbours(found, number)
    assert place == 2 and before is not None and after is not None
    assert [row["key"] for row in snapshot.index.rows([before, after])] == ["r1", "r5"]
    hidden = snapshot.index.number("1/rollouts@base", "r3")
    assert hidden is not None and neighbours(found, hidden) == (None, None, 0)


def test_related_trajectories_belong_to_the_same_instance(snapshot: Snapshot) -> None:
    assert snapshot.index.rows(snapshot.index.children("1/pools", "p1"))[0]["key"] == "p2"
    assert snapshot.index.children("1/rollouts@base", "p1") == []
    branch = snapshot.index.children("1/rl@phase-1", "3.0.g/7?")
    assert [row["key"] for row in snapshot.index.rows(branch)] == ["3.1.g/7?"]


def test_address_round_trips(snapshot: Snapshot) -> None:
    selection = asked(("q", "a&b=c #/?"), ("dataset", "<x>&"), ("dataset", "b"), ("sort", "-score"), ("page", "3"))
    again = Selection.of(selection.pairs())
    assert again == selection and again.page == selection.page
    assert selection.query().startswith("?dataset=%3Cx%3E%26&dataset=b&q=a%26b%3Dc")
    other = selection.toggled("dataset", "b")
    assert other.filters == {"dataset": frozenset({"<x>&"})} and other.page == 1
    assert other.toggled("dataset", "<x>&").filters == {}


def test_later_results_appear(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    catalogue = Catalogue(run, refresh_s=0)
    assert len(catalogue.snapshot().index) == 0
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", "What?")])
    put_rows(run, "1/rollouts@base", ROLLOUTS, [agent_row(ROLLOUTS, "a", "q1")])
    assert keys(catalogue.snapshot()) == ["a"]
    before = catalogue.snapshot()
    assert catalogue.snapshot() is before
    put_rows(run, "1/rollouts@tuned", ROLLOUTS, [agent_row(ROLLOUTS, "a", "q1", model="tuned")])
    after = catalogue.snapshot()
    assert [row["model"] for row in after.index.rows([0, 1])] == ["base", "tuned"]
    # What was read before is not read again.
    assert after.parts["1/rollouts@base"] is before.parts["1/rollouts@base"]


def test_instance_that_completes_during_a_look_appears_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", "What?")])
    catalogue, readable_records = Catalogue(run, refresh_s=0), Run.readable_records

    def read_then_complete(run: Run) -> Any:
        found = readable_records(run)
        monkeypatch.undo()
        put_rows(run, "1/rollouts@base", ROLLOUTS, [agent_row(ROLLOUTS, "a", "q1")])
        return found

    monkeypatch.setattr(Run, "readable_records", read_then_complete)
    assert catalogue.snapshot().unfinished == []
    assert keys(catalogue.snapshot()) == ["a"]


def test_replaced_results_are_released(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", "What?")])
    made = put_rows(run, "1/rollouts@base", ROLLOUTS, [agent_row(ROLLOUTS, "a", "q1")])
    catalogue = Catalogue(run, refresh_s=0)
    seen: list[weakref.ref[Any]] = []
    for value in range(4):
        rows = [score("a", "q1", True, score=float(value))]
        put_from(run, "1/scores@base", {"scores": rows}, {"rollouts": made})
        snapshot = catalogue.snapshot()
        part = snapshot.parts["1/rollouts@base"]
        assert part.facts["score"].to_pylist() == [value] and part.joined.scores is not None
        held = (part.table, part.joined.scores, *snapshot.questions.tables, *snapshot.run._readers.values())
        seen += [weakref.ref(one) for one in held]
        num_held = len({id(one) for one in held})
    del snapshot, part, held
    gc.collect()
    assert len({id(one) for ref in seen if (one := ref()) is not None}) == num_held == 6


def test_started_instance_is_named_without_showing_its_rows(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    rows = [agent_row(ROLLOUTS, "a", "q1"), agent_row(ROLLOUTS, "a", "q1")]
    with pytest.raises(ArtifactError, match="written before"):
        put_rows(run, "1/rollouts@base", ROLLOUTS, rows)
    run.storage.put(run.key("attempts/notes.txt"), b"of another origin")
    snapshot = Catalogue(run, refresh_s=0).snapshot()
    assert snapshot.unfinished == [("1/rollouts@base", "failed")] and len(snapshot.index) == 0


def test_missing_table_is_reported_and_the_others_are_shown(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/rollouts@base", ROLLOUTS, [agent_row(ROLLOUTS, "a", "q1")])
    put_rows(run, "1/rollouts@tuned", ROLLOUTS, [agent_row(ROLLOUTS, "b", "q1")])
    ref = run.records()[0].outputs["rollouts"]
    (tmp_path / ref.folder / "artifact.json").unlink()
    snapshot = Catalogue(run, refresh_s=0).snapshot()
    assert keys(snapshot) == ["b"]
    assert [problem.startswith(f"artifact {ref.folder} is missing") for problem in snapshot.problems] == [True]


def data_file(root: Path, run: Run, kind: str) -> Path:
    """Return the first data file of the last table of a kind."""
    (*_, ref) = (record.outputs[kind] for record in run.records() if kind in record.outputs)
    return min((root / ref.folder).glob("data/*.parquet"))


@pytest.mark.parametrize("kind", ["rollouts", "scores", "judgements", "questions"])
def test_unreadable_file_is_reported_and_retried(tmp_path: Path, kind: str) -> None:
    run = example_run(tmp_path)
    whole = keys(Catalogue(run, refresh_s=0).snapshot())
    file = data_file(tmp_path, run, kind)
    file.rename(tmp_path / "away")
    catalogue = Catalogue(run, refresh_s=0)
    damaged = catalogue.snapshot()
    assert [file.name in problem for problem in damaged.problems] == [True]
    assert set(keys(damaged)) <= set(whole) and len(keys(damaged)) >= 6
    (tmp_path / "away").rename(file)
    well = catalogue.snapshot()
    assert well.problems == [] and keys(well) == whole
    assert catalogue.snapshot() is well


def test_table_finished_while_unreadable_appears_once_readable(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/rollouts@base", ROLLOUTS, [agent_row(ROLLOUTS, "a", "q1")])
    catalogue = Catalogue(run, refresh_s=0)
    assert keys(catalogue.snapshot()) == ["a"]
    put_rows(run, "1/rollouts@tuned", ROLLOUTS, [agent_row(ROLLOUTS, "b", "q1")])
    file = data_file(tmp_path, run, "rollouts")
    file.rename(tmp_path / "away")
    damaged = catalogue.snapshot()
    assert keys(damaged) == ["a"] and [file.name in problem for problem in damaged.problems] == [True]
    (tmp_path / "away").rename(file)
    assert keys(catalogue.snapshot()) == ["a", "b"] and catalogue.snapshot().problems == []


def test_scores_of_other_rollouts_are_ignored(tmp_path: Path) -> None:
    run = example_run(tmp_path)
    again = [agent_row(ROLLOUTS, "r1", "q1", status="length")]
    put_rows(run, "2/rollouts@base", ROLLOUTS, again)
    found = keys(Catalogue(run, refresh_s=0).snapshot(), ("verdict", "not judged"))
    assert found == ["r5", "r1"]


def test_rows_are_found_across_row_groups_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from treadle.core.store import parquet

    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 3)
    monkeypatch.setattr(parquet, "PART_ROW_GROUPS", 2)
    run = new_run(tmp_path)
    rows = [agent_row(ROLLOUTS, f"k{n:02}", "q1", ("text", f"text number {n:02}")) for n in range(20)]
    put_rows(run, "1/rollouts@base", ROLLOUTS, rows)
    snapshot = Catalogue(run, refresh_s=0).snapshot()
    part = snapshot.parts["1/rollouts@base"]
    assert len(part.table.reader.file_names()) > 3
    for n in (0, 2, 3, 6, 19):
        assert f"text number {n:02}" in part.table.row(n, ("segments",))["segments"]
    assert keys(snapshot, ("q", "number 13")) == ["k13"]


def test_search_over_many_instances_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path)
    for n in range(20):
        rows = [agent_row(ROLLOUTS, f"k{n}", "q1", ("text", f"number {n:02} of all"))]
        put_rows(run, f"1/rollouts@m{n:02}", ROLLOUTS, rows)
    snapshot = Catalogue(run, refresh_s=0).snapshot()
    assert len(keys(snapshot, ("q", "of all"))) == 20
    monkeypatch.setattr(ArtifactReader, "row_groups", None)  # Looking again would fail.
    assert keys(snapshot, ("q", "of all"), ("instance", "1/rollouts@m03")) == ["k3"]


def test_few_row_groups_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from treadle.core.store import parquet

    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 1)
    monkeypatch.setattr(tables, "_MAX_CACHED_BYTES", 1)
    run = new_run(tmp_path)
    rows = [agent_row(ROLLOUTS, f"k{n}", "q1", ("text", "x" * 1000)) for n in range(5)]
    put_rows(run, "1/rollouts@base", ROLLOUTS, rows)
    catalogue = Catalogue(run, refresh_s=0)
    part = catalogue.snapshot().parts["1/rollouts@base"]
    for n in range(5):
        part.table.row(n, ("segments",))
    assert len(part.table._groups._tables) == 1


def test_changed_file_is_not_shown(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/rollouts@base", ROLLOUTS, [agent_row(ROLLOUTS, "a", "q1", ("text", "x" * 300))])
    part = Catalogue(run, refresh_s=0).snapshot().parts["1/rollouts@base"]
    (file,) = (tmp_path / run.records()[0].outputs["rollouts"].folder).glob("data/*.parquet")
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    with pytest.raises(ArtifactError, match="has changed since it was written"):
        part.table.row(0, ("segments",))


def test_empty_index_has_no_values(tmp_path: Path) -> None:
    snapshot = Catalogue(new_run(tmp_path), refresh_s=0).snapshot()
    found = snapshot.index.find(asked(("q", "x"), ("verdict", "right")))
    assert len(found.rows) == 0 and found.num_pages == 1
    assert [len(values) for name, values in found.values.items() if name != "verdict"] == [0] * 9


def test_pages_contain_fifty_rows(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    rows = [agent_row(ROLLOUTS, f"k{n:03}", "q1", completion_tokens=n) for n in range(2 * PAGE_ROWS + 1)]
    put_tables(run, "1/rollouts@base", {"rollouts": rows})
    index = Catalogue(run, refresh_s=0).snapshot().index
    found = index.find(asked(("sort", "-tokens")))
    assert found.num_pages == 3
    shown = [[row["key"] for row in index.page(found, number)] for number in (1, 2, 3)]
    assert [len(page) for page in shown] == [PAGE_ROWS, PAGE_ROWS, 1]
    assert shown[0][0] == "k100" and shown[2] == ["k000"]
    assert np.array_equal(found.rows, np.arange(2 * PAGE_ROWS, -1, -1))


def test_tables_without_rows_are_accepted(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    made = put_rows(run, "1/rollouts@base", ROLLOUTS, [agent_row(ROLLOUTS, "a", "q1")])
    put_from(run, "1/scores@base", {"scores": [score("a", "q1", True)], "judgements": []}, {"rollouts": made})
    pool = put_rows(run, "1/pools", POOLS, [agent_row(POOLS, "p", "q1", correct=True)])
    row = filled(SFT_ROWS, rollout_key="p", question_key="q1", labels=[1], input_ids=[1])
    put_from(run, "1/sft_rows", {"sft_rows": [row], "sft_rejections": []}, {"pools": pool})
    put_rows(run, "1/rl@phase-1", RL_ROLLOUTS, [])
    snapshot = Catalogue(run, refresh_s=0).snapshot()
    assert snapshot.problems == [] and keys(snapshot) == ["p", "a"]
    assert keys(snapshot, ("sft_outcome", "row")) == ["p"] and keys(snapshot, ("q", "no such text")) == []
    one = read_trajectory(snapshot, "1/rollouts@base", "a")
    assert one is not None and one.judgements == [] and one.score is not None


def test_every_filter_column_has_distinct_values(snapshot: Snapshot) -> None:
    values: dict[str, Any] = snapshot.index.find(asked()).values
    assert {found.value for found in values.pop("environment")} == {"default"}
    assert all(len(found) > 1 for found in values.values()), {name: len(found) for name, found in values.items()}
