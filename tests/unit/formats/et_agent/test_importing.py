"""`treadle import et-agent`: other programs' files become results for the next stages."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.foreign_desk import RIGHT, WRONG, Desk, calling, evolved, sampled

from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.errors import ConfigError, DataError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import planned_action
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.estimate.estimates import estimates
from treadle.tasks.summaries.stage_report import stage_report


@pytest.fixture
def flywheel(tmp_path: Path) -> Desk:
    return Desk(tmp_path, ["pools", "sft_rows"])


@pytest.fixture
def direct(tmp_path: Path) -> Desk:
    return Desk(tmp_path, ["rl"])


def test_pools_of_another_flywheel_become_training_rows(flywheel: Desk) -> None:
    path = flywheel.write(
        [
            evolved(1, calling("2", end=WRONG), calling("2", "36"), calling("2"), RIGHT + " and more"),
            evolved(2, calling("2", "Traceback (most recent call last):\nNameError: x")),
            evolved(3, f" {RIGHT}\n"),
        ]
    )
    told = flywheel.bring("pools", path)
    assert (told["num_rows"], told["num_trajectories"], told["num_other_prompts"], told["left_out"]) == (3, 6, 3, {})
    rows = flywheel.rows("1/pools", "pools")
    assert [row["operator"] for row in rows] == ["initial", "imported", "imported", "imported", "initial", "initial"]
    assert {json.loads(row["judge"])["method"] for row in rows} == {"imported"}
    assert [row["correct"] for row in rows] == [False, True, True, False, True, True]
    assert [row["calls_executed"] for row in rows] == [1, 2, 1, 0, 2, 0]
    assert [row["failed_calls"] for row in rows] == [0, 0, 0, 0, 1, 0]
    assert [row["status"] for row in rows][3:] == ["no_answer", "answered", "answered"]
    assert rows[5]["text"] == RIGHT
    tokenizer = ChatTokenizer.load(flywheel.tokenizer)
    assert all(tokenizer.decode(row["samples"][0]["ids"]) == row["text"] for row in rows)
    assert {origin for row in rows for origin in row["samples"][0]["origins"]} == {0, 2}, "none of them was sampled"
    flywheel.make("1/sft_rows")
    trained = flywheel.rows("1/sft_rows", "sft_rows")
    assert {row["rollout_key"] for row in trained} == {rows[place]["rollout_key"] for place in (1, 2, 5)}
    assert all(row["num_target_tokens"] > 0 for row in trained)
    (two,) = [row for row in trained if row["calls_executed"] == 2]
    masked = tokenizer.decode([i for i, label in zip(two["input_ids"], two["labels"], strict=True) if label == -100])
    assert masked.endswith("<result>2</result><result>36</result>" + tokenizer.decode(tokenizer.turn_end_ids[1:]))
    reasons = {row["rollout_key"]: row["reason"] for row in flywheel.rows("1/sft_rows", "sft_rejections")}
    assert reasons[rows[4]["rollout_key"]] == "result_error" and reasons[rows[0]["rollout_key"]] == "wrong_answer"


def test_imported_result_is_current_names_its_source_and_is_not_reused_elsewhere(flywheel: Desk) -> None:
    path = flywheel.write([evolved(1, RIGHT)])
    flywheel.bring("pools", path)
    record = flywheel.run.record(Address(1, "pools"))
    assert record is not None and record.metrics["imported_from"] == "foreign.json"
    made = json.loads(flywheel.run.rows(record.outputs["pools"]).read_file("imported.json"))
    assert (made["source"], made["sha256"]) == ("foreign.json", record.metrics["imported_sha256"])
    config = load_config(TreadleConfig, base=flywheel.run.config())
    assert planned_action(instance(config, Address(1, "pools")), flywheel.run) == "reuse"
    assert flywheel.bring("pools", path, "--out", str(flywheel.folder / "questions-again"))["reused"]
    assert not flywheel.bring("pools", path, "--force")["reused"]
    flywheel.write([evolved(1, WRONG, RIGHT)])
    with pytest.raises(RunError, match=r"a result already, imported from foreign.json; replace it with --force"):
        flywheel.bring("pools", path, "--out", str(flywheel.folder / "again"))
    assert len(flywheel.rows("1/pools", "pools")) == 1
    flywheel.bring("pools", path, "--force")
    assert len(flywheel.rows("1/pools", "pools")) == 2


def test_imported_pools_with_trajectory_objects_keep_operators_parents_and_outcomes(flywheel: Desk) -> None:
    pool = [
        {"tid": "a", "round": 0, "operator": "initial", "trajectory": calling("prose", end=WRONG), "correct": False,
         "finish_reason": "answer", "tool_calls": [{"tool": "python", "status": "timeout"}], "score": 0.0},
        {"tid": "b", "round": 2, "operator": "hint_tail", "parent_tid": "a", "trajectory": RIGHT, "correct": True,
         "finish_reason": "answer", "prediction": "36", "edit_step": 2, "edit_text": "Wait."},
        {"tid": "c", "round": 2, "operator": "of my own", "parent_tid": "b", "trajectory": "", "correct": None,
         "finish_reason": "llm_failed"},
    ]  # fmt: skip
    fields = {"question": "How many?", "answers": ["36"], "source": "openr1", "pool": pool, "status": "partial"}
    flywheel.bring("pools", flywheel.write([json.dumps(fields) + "\n"], "pools.jsonl"))
    first, second, third = flywheel.rows("1/pools", "pools")
    assert json.loads(first["tool_calls"])[0]["status"] == "timeout"
    assert (second["operator"], second["round"], second["edit_step"], second["score"]) == ("hint_tail", 2, 2, 1.0)
    assert second["parents"] == [first["rollout_key"]] and third["parents"] == [second["rollout_key"]]
    assert (third["operator"], third["status"], third["correct"]) == ("imported", "failed", None)


def test_imported_rollouts_are_scored_and_selected(direct: Desk) -> None:
    half = [RIGHT, calling("36"), calling("1", "36"), WRONG, calling("35", end=WRONG), "", calling("1", end=" So")]
    path = direct.write([sampled(1, *half), sampled(2, *[RIGHT] * 7)], "rollouts.jsonl")
    direct.bring("rollouts", path, "--instance", "1/rollouts@phase-1")
    rows = direct.rows("1/rollouts@phase-1", "rollouts")
    assert [row["status"] for row in rows[:7]] == ["answered"] * 5 + ["failed", "no_answer"]
    assert [row["calls_executed"] for row in rows[:7]] == [0, 1, 2, 0, 1, 0, 1]
    assert {row["operator"] for row in rows} == {"imported"} and rows[5]["error"]
    direct.make("1/scores@phase-1")
    scores = direct.rows("1/scores@phase-1", "scores")
    assert [row["score"] for row in scores[:7]] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    direct.make("1/selection@phase-1")
    (chosen,) = direct.rows("1/selection@phase-1", "rl_rows")
    assert (chosen["num_unusable"], chosen["calls"]) == (1, [0, 1, 2, 0, 1, 1])
    (left,) = direct.rows("1/selection@phase-1", "rl_rejections")
    assert left["num_rollouts"] == 7


def test_rollouts_import_from_parquet_and_whitespace_before_results_is_masked(direct: Desk) -> None:
    text = "<think>x</think><python>6*6</python> <result>\n36\n</result><think>So.</think><answer>\\boxed{36}</answer>"
    path = direct.folder / "rollouts.parquet"
    pq.write_table(pa.Table.from_pylist([sampled(1, text, finish=["answer"])]), path)
    direct.bring("rollouts", path, "--instance", "1/rollouts@phase-1")
    (row,) = direct.rows("1/rollouts@phase-1", "rollouts")
    segments = json.loads(row["segments"])
    assert [part["text"] for part in segments if part["kind"] == "result"] == [" <result>\n36\n</result>"]
    assert (row["text"], row["num_turns"]) == (text, 2)
    space = segments[2]
    assert set(row["samples"][0]["origins"][space["start"] : space["end"]]) == {0}


def test_export_in_the_same_format_equals_the_import(flywheel: Desk) -> None:
    given = [evolved(1, calling("2", "36"), WRONG), evolved(2, RIGHT)]
    flywheel.bring("pools", flywheel.write(given))
    back = flywheel.send("pools", "1/pools")
    same = ("input", "source", "initial_logs", *(name for name in given[0] if name.startswith("evolve_t")))
    for old, new in zip(given, back, strict=True):
        assert {name: new[name] for name in same} == {name: old[name] for name in same}
        assert (new["answer"], list(new)) == (["36"], list(old)) and r"\boxed" in new["instruction"]


def test_rollouts_are_exported_in_the_same_format_with_their_verdicts(direct: Desk) -> None:
    given = [sampled(1, RIGHT, "", calling("1", end=WRONG)), sampled(2, calling("36"))]
    direct.bring("rollouts", direct.write(given), "--instance", "1/rollouts@phase-1")
    assert "correctness" not in direct.send("rollouts", "1/rollouts@phase-1")[0]
    direct.make("1/scores@phase-1")
    back = direct.send("rollouts", "1/rollouts@phase-1")
    for old, new in zip(given, back, strict=True):
        assert {name: new[name] for name in ("rollout_outputs", "tool_counts")} == {
            name: old[name] for name in ("rollout_outputs", "tool_counts")
        }
    assert [one["correctness"] for one in back] == [[1.0, 0.0, 0.0], [1.0]]
    assert [one["predictions"] for one in back] == [["36", "", "35"], ["36"]]
    path = direct.write(back, "back.json")
    told = direct.bring("rollouts", path, "--instance", "1/rollouts@phase-1", "--force")
    assert (told["num_trajectories"], told["left_out"], told["num_other_prompts"]) == (4, {}, 0)


def test_import_without_usable_rows_creates_no_folder_and_no_run(flywheel: Desk) -> None:
    with pytest.raises(DataError, match="none of the 2 rows .* can be imported; row 1: .*'Error: it broke'"):
        flywheel.bring("pools", flywheel.write([evolved(1, prediction="Error: it broke"), evolved(2)]))
    assert not (flywheel.folder / "questions").exists() and not (flywheel.root / "runs").exists()
    with pytest.raises(DataError, match="does not exist"):
        flywheel.bring("pools", flywheel.folder / "missing.json")


def test_unknown_source_needs_a_domain_and_the_instance_must_make_the_table(flywheel: Desk) -> None:
    path = flywheel.write([evolved(1, RIGHT, source="lab/tiles", answer=["36", 36.0])])
    with pytest.raises(DataError, match="give --domain NAME=DOMAIN"):
        flywheel.bring("pools", path)
    told = flywheel.bring("pools", path, "--domain", "lab/tiles=math")
    assert told["num_rows"] == 1
    (question,) = flywheel.rows("1/questions", "questions")
    assert (question["dataset"], question["domain"], question["answers"]) == ("lab/tiles", "math", ["36", "36.0"])
    with pytest.raises(ConfigError, match="makes no pools; name an instance such as 1/pools"):
        flywheel.bring("pools", path, "--force", "--domain", "lab/tiles=math", "--instance", "1/sft_rows")


def test_rows_are_text_only_without_a_tokenizer(flywheel: Desk) -> None:
    lines = [line for line in flywheel.config.read_text().splitlines() if not line.startswith("tokenizer")]
    flywheel.config.write_text("\n".join(lines))
    flywheel.bring("pools", flywheel.write([evolved(1, calling("36"))]))
    (row,) = flywheel.rows("1/pools", "pools")
    assert (row["samples"][0]["ids"], row["samples"][0]["prompt_ids"], row["tokenizer_digest"]) == ([], [], "")
    flywheel.make("1/sft_rows")
    assert flywheel.run.record(Address(1, "sft_rows")).metrics["text_mode_rows"] == 1  # type: ignore[union-attr]


def test_imported_pools_have_no_cost_and_are_not_used_for_estimates(flywheel: Desk) -> None:
    flywheel.bring("pools", flywheel.write([evolved(1, WRONG, RIGHT), evolved(2, RIGHT)]))
    run, pools = flywheel.run, Address(1, "pools")
    record = run.record(pools)
    assert record is not None
    told = stage_report(record, run)
    assert told is not None and told.sentences[0] == "Imported from foreign.json."
    assert not any("tokens" in sentence for sentence in told.sentences)
    item = instance(load_config(TreadleConfig, base=run.config()), pools)
    (estimate,) = estimates([item], run, [str(pools)], force=True)
    assert estimate.basis.startswith("nothing measured yet")
