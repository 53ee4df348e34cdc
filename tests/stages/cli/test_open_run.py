"""Tables of a real run, loaded as a notebook loads them."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest
from support.runs.command_line import tutor
from support.tables.table_readers import assert_all_read, says_the_same

from treadle.api import evaluate, open_run, run_flow, run_stage
from treadle.core.errors import ConfigError, DataError, RunError
from treadle.core.tables import TABLES
from treadle.demo.world_files import write_world
from treadle.tasks.analysis.run_results import RunResults
from treadle.tasks.evaluation import EvalOptions
from treadle.tasks.exchange.dataset_export import export_dataset

CONFIG = """
[flow]
models = ["base", "weak"]

[models.base]
model = "treadle-tutor"
server = { type = "tutor", persona = "strong" }

[models.weak]
model = "treadle-tutor"
server = { type = "tutor", persona = "noisy" }

[questions]
sources = [{ path = "questions.jsonl", dataset = "mine", domain = "qa" }]

[environment.search]
corpus = ["corpus.jsonl"]

[environment.python]
enabled = false
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunResults]:
    """Return a finished run of two models over two questions, one of which the corpus answers."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "corpus.jsonl").write_text('{"id": "1", "title": "Vorna", "text": "Vorna was written by Ilme."}\n')
    (folder / "questions.jsonl").write_text(
        '{"question": "Who wrote the book Vorna?", "answer": ["Ilme"]}\n'
        '{"question": "Who wrote the song Orla <b>?", "answer": ["Arn"]}\n'
    )
    (folder / "run.toml").write_text(CONFIG)
    command = [str(Path(sys.executable).with_name("treadle")), "run", "run.toml", "--run", "first"]
    done = subprocess.run(command, cwd=folder, env={**os.environ}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    yield open_run("first", folder / "outputs")


def test_rollouts_come_with_questions_gold_answers_and_verdicts(run: RunResults) -> None:
    frame = run.rollouts(model="base").to_pandas()
    assert list(frame["model"].unique()) == ["base"] and len(frame) == 2
    row = frame[frame["question"] == "Who wrote the book Vorna?"].iloc[0]
    assert (list(row["answers"]), row["instance"], row["split"]) == (["Ilme"], "1/rollouts@base", "train")
    verdicts = {one["rollout_key"]: one for one in run.table("scores").to_arrow().to_pylist()}
    for rollout in run.rollouts().to_arrow().to_pylist():
        verdict = verdicts[rollout["rollout_key"]]
        assert all(rollout[name] == verdict[name] for name in ("prediction", "correct", "score", "scorer", "parts"))
        assert rollout["score_error"] == verdict["error"] and rollout["correct"] is not None
    assert "samples" not in frame.columns and "payload" not in frame.columns
    assert len(run.rollouts()) == 4 and len(run.rollouts(columns=["samples"]).to_arrow()["samples"]) == 4


def test_every_library_gets_the_same_rows(run: RunResults) -> None:
    rows = run.rollouts(columns=["rollout_key", "answers", "correct", "num_turns"])
    pandas, polars, relation = rows.to_pandas(), rows.to_polars(), rows.to_duckdb()
    expected = rows.to_arrow().to_pylist()
    assert polars.to_dicts() == expected
    assert [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()] == expected
    assert [{**row, "answers": list(row["answers"])} for row in pandas.to_dict("records")] == expected
    assert str(pandas["num_turns"].dtype).startswith("int32"), "integers stay integers"


def test_other_tables_reports_and_trajectories_are_found(run: RunResults) -> None:
    assert len(run.questions()) == 2
    figures = run.report().to_polars()
    assert {"base", "weak"} <= set(figures["model"].to_list())
    key = run.rollouts(model="base").to_arrow()["rollout_key"][0].as_py()
    found = run.trajectory(key[:12])
    assert (found.rollout["rollout_key"], found.question["dataset"]) == (key, "mine")
    assert found.score is not None and "1/rollouts@base" in run.instances
    assert run.metrics("1/rollouts@base")["num_rollouts"] == 2
    assert len(run.table("scores", columns=["score", "instance"])) == 4
    assert "first" in repr(run) and "1/scores@weak" in repr(run)


def test_texts_are_escaped_in_a_notebook(run: RunResults) -> None:
    key = run.rollouts(columns=["rollout_key", "question"]).to_pandas().set_index("question")["rollout_key"]
    for shown in (run.questions(), run.trajectory(key["Who wrote the song Orla <b>?"].iloc[0])):
        page = shown._repr_html_()
        assert "Orla &lt;b&gt;" in page and "<b>?" not in page
    assert "1/scores@weak" in run._repr_html_()


def test_library_that_is_not_installed_is_named(run: RunResults, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run.questions()
    for name, hand_over in (("pandas", rows.to_pandas), ("polars", rows.to_polars), ("duckdb", rows.to_duckdb)):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match=rf"needs the package {name}: pip install 'treadle\[analysis\]'"):
            hand_over()


def test_what_is_not_there_is_named(run: RunResults) -> None:
    for ask, said in (
        (lambda: run.rollouts(model="bse"), "run first has no rollouts of 'bse'; there are those of base, weak"),
        (lambda: run.rollouts(columns=["scoer"]), "rollouts have no column 'scoer'; there are .*score"),
        (lambda: run.rollouts(iteration=2), "run first has no finished rollouts in iteration 2; it has .*scores"),
        (lambda: run.pools(), "run first has no finished pools; it has comparisons, .*rollouts"),
        (lambda: run.table("rolouts"), "there is no table 'rolouts'; this run has comparisons"),
        (lambda: run.metrics("1/sft"), "1/sft of run first has not finished; finished: 1/questions"),
        (lambda: open_run("second", Path(str(run.run.storage.location("")))), "there is no run second .*: first"),
    ):
        with pytest.raises(RunError, match=said):
            ask()
    with pytest.raises(DataError, match="no trajectory begins with 'zz'"):
        run.trajectory("zz")


def test_the_guide_loads_a_run(run: RunResults, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/files.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from treadle\.api import open_run\n.*?)```", guide, re.DOTALL)
    monkeypatch.chdir(Path(str(run.run.storage.location(""))).parent)
    names: dict[str, object] = {}
    exec(code, names)
    assert len(names["rollouts"]) == 2  # type: ignore[arg-type]


async def test_run_flow_continues_a_run_inside_an_event_loop(
    run: RunResults, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(str(run.run.storage.location("")))
    monkeypatch.chdir(root.parent)
    again = run_flow(None, "first", root=root)
    assert again.instances == run.instances
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("(unchanged, reused)") == len(run.instances)
    with pytest.raises(ConfigError, match="there is no run 'second'"):
        run_flow(None, "second", root=root)
    with pytest.raises(ConfigError, match="tools names 'browser'"):
        evaluate("m", endpoints="http://127.0.0.1:9/v1", benchmarks={"gsm8k": "x.jsonl"}, tools=["browser"], root=root)


async def test_evaluate_measures_a_model_on_a_file_of_questions(tmp_path: Path) -> None:
    world = tmp_path / "world"
    write_world(world, documents=100, questions=4, heldout_questions=0, tiers=(0,))
    with tutor() as url:
        results = evaluate(
            "treadle-tutor",
            endpoints=url,
            benchmarks={"mine": world / "questions.jsonl"},
            corpus=world / "corpus.jsonl",
            root=tmp_path / "outputs",
            quiet=True,
        )
    assert results.run.run_id == "eval-treadle-tutor-mine"
    frame = results.rollouts().to_pandas()
    assert len(frame) == 4 and frame["correct"].all() and set(frame["dataset"]) == {"mine"}


def test_run_stage_runs_one_stage_alone(
    run: RunResults, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(run.run.storage.location(""))
    monkeypatch.chdir(root.parent)
    with pytest.raises(ConfigError, match="did you mean 'base'"):
        run_stage("1/rollouts@bse", "first", root=root)
    before = {one.address: one.attempt for one in run.run.records()}
    again = run_stage("1/questions", "first", root=root, force=True, quiet=True)
    after = {one.address: one.attempt for one in again.run.records()}
    assert after == before | {"1/questions": before["1/questions"] + 1}
    assert capsys.readouterr().out == ""


def test_evaluate_has_the_options_of_the_command() -> None:
    asked = set(inspect.signature(evaluate).parameters)
    assert set(EvalOptions.__dataclass_fields__) <= asked


def test_trajectories_are_one_joined_table(run: RunResults, tmp_path: Path) -> None:
    frame = run.trajectories(model="base").to_pandas()
    rollouts = {row["rollout_key"]: row for row in run.rollouts(model="base").to_arrow().to_pylist()}
    assert len(frame) == len(rollouts) == 2
    for row in frame.to_dict("records"):
        own = rollouts[row["rollout_key"]]
        assert (list(row["gold"]), row["right"], row["prediction"]) == (
            own["answers"],
            own["correct"],
            own["prediction"],
        )
        assert sum(one["executed"] for one in row["calls"]) == row["num_calls"] == own["calls_executed"]
        assert len(row["seconds_per_turn"]) == len(row["tokens_per_turn"]) == row["num_turns"] > 0
        assert sum(row["tokens_per_turn"]) == row["completion_tokens"] and min(row["tokens_per_turn"]) > 0
        assert 0 < sum(row["seconds_per_turn"]) == pytest.approx(row["model_seconds"] + row["tool_seconds"])

    out = tmp_path / "rows"
    words = ["export", "trajectories", "--run", "first", "--root", str(run.run.storage.location("")), "-o", str(out)]
    done = subprocess.run([str(Path(sys.executable).with_name("treadle")), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = run.trajectories().to_arrow().to_pylist()
    assert len(rows) == 4
    assert_all_read(out, rows, tmp_path / "cache")


def test_trajectories_go_without_lost_times_and_name_damaged_ones(run: RunResults) -> None:
    record = next(one for one in run.run.records() if one.address == "1/rollouts@base")
    (key,) = record.telemetry.values()
    content = run.run.storage.get(key)
    assert content is not None
    try:
        run.run.storage.put(key, content[:100])
        with pytest.raises(DataError, match=f"{key} of run first cannot be read"):
            run.trajectories(model="base")
        assert len(run.trajectories(model="weak")) == 2
        run.run.storage.delete(key)
        lost = run.trajectories(model="base").to_arrow()
        for name in ("seconds", "seconds_per_turn", "tokens_per_turn"):
            assert lost[name].to_pylist() == [None, None]
    finally:
        run.run.storage.put(key, content)


def test_every_library_reads_every_artifact_and_its_export(run: RunResults, tmp_path: Path) -> None:
    read = set()
    for record in run.run.records():
        for kind, ref in record.outputs.items():
            stored = list(run.run.rows(ref).rows(TABLES[kind].schema.names))
            assert_all_read(Path(run.run.storage.location(ref.folder)), stored, tmp_path / "cache")
            out = tmp_path / f"{kind} of {record.stage} {record.finished_at}"  # `datasets` caches by the folder's name
            export_dataset(run.run, record, kind, out)
            loaded = run.table(kind).to_arrow()
            own = loaded.filter(pc.equal(loaded["instance"], record.address)).drop_columns(["instance"]).to_pylist()
            assert_all_read(out, own, tmp_path / "cache")
            read.add(kind)
    assert read >= {"questions", "rollouts", "scores", "summary"}


def test_json_text_with_a_fixed_form_is_lists_and_structs(run: RunResults) -> None:
    for kind in ("rollouts", "scores"):
        (table, parsed), rows = (TABLES[kind], TABLES[kind].parsed), run.table(kind).to_arrow().to_pylist()
        stored = {
            row["rollout_key"]: row
            for record in run.run.records()
            if kind in record.outputs
            for row in run.run.rows(record.outputs[kind]).rows(table.visible)
        }
        for row in rows:
            for name in parsed:
                text = stored[row["rollout_key"]][name]
                assert says_the_same(row[name], None if text is None else json.loads(text)), name
    calls = [call for row in run.rollouts(model="base").to_pandas()["tool_calls"] for call in row]
    assert {call["tool"] for call in calls} == {"search"} and all(call["result_chars"] > 0 for call in calls)
    segments = run.rollouts(columns=["segments"]).to_polars()["segments"].explode().struct.field("kind")
    assert "answer" in segments.to_list()
    (kinds,) = run.rollouts(columns=["segments"]).to_duckdb().aggregate("min(segments[1].kind)").fetchall()
    assert isinstance(kinds[0], str)
