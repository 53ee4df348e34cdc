"""The first command of the README, for real and small: pools, training, and SmolLM2 on vLLM before and after each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.rollouts.small_demo import DEMO, GROUP_SIZE, NUM_QUESTIONS, NUM_ROWS, NUM_STEPS, finish
from support.servers.served_ids import check_served_ids

from treadle.core.chat import ChatTokenizer
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.tables import MODEL_FOLDER
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.demo.results import counts_by_model
from treadle.rl.training.checkpoint_checks import tensors

MODELS = ("tutor", "base", "tuned", "reinforced")


def rows(run: Run, address: str, kind: str) -> list[dict]:
    record = run.record(Address.parse(address))
    assert record is not None
    return list(run.rows(record.outputs[kind]).rows())


def test_training_changes_the_model_output(demo_run: Run) -> None:
    found = counts_by_model(demo_run, MODELS)
    assert all(tally.num_rollouts == NUM_QUESTIONS for tally in found.values())
    assert found["tuned"].num_valid >= found["base"].num_valid + NUM_QUESTIONS // 2
    assert found["tuned"].num_calls >= found["base"].num_calls + NUM_QUESTIONS // 2
    assert found["tuned"].num_right > found["base"].num_right
    record = demo_run.record(Address.parse("1/sft"))
    assert record is not None and record.metrics["last_loss"] < 0.5 * record.metrics["first_loss"]


def test_checkpoint_is_complete_and_vllm_matches_transformers(demo_run: Run) -> None:
    record = demo_run.record(Address.parse("1/sft"))
    assert record is not None and record.metrics["rows"] == NUM_ROWS and record.metrics["steps"] == NUM_ROWS // 4
    reader = demo_run.rows(record.outputs["checkpoint"])
    (row,) = reader.rows()
    assert row["finetuning_type"] == "full"
    assert row["tokenizer_digest"] == ChatTokenizer.load(embedded_tokenizer()).digest
    assert {"rows.svg", "report.md", "train.yaml"} <= set(reader.file_names())
    workspaces = demo_run.storage.directory("runs") / demo_run.run_id / "workspaces"
    assert not list(workspaces.rglob("events.jsonl")), "states are removed when the training is done"
    check_served_ids(demo_run, record, cutoff_tokens=demo_run.config()["sft"]["cutoff_tokens"])


def test_rl_takes_real_steps_from_the_sft_model(demo_run: Run) -> None:
    record = demo_run.record(Address.parse("1/rl@phase-1"))
    assert record is not None and record.metrics["steps"] == NUM_STEPS
    assert record.metrics["rollouts"] == NUM_STEPS * 2 * GROUP_SIZE
    tuned = demo_run.record(Address.parse("1/sft"))
    assert tuned is not None and record.metrics["policy_in"] == tuned.outputs["checkpoint"].digest
    policy = demo_run.rows(record.outputs["checkpoint"]).folder(MODEL_FOLDER)
    assert {number_type for number_type, _ in tensors(policy).values()} == {"F32"}, "nothing learnt is rounded away"
    made = rows(demo_run, "1/rl@phase-1", "rl_rollouts")
    assert any(row["tool_calls"] > row["tool_failures"] for row in made), "tools were really used"
    chosen = {row["question_key"] for row in rows(demo_run, "1/selection@phase-1", "rl_rows")}
    assert {row["question_key"] for row in made} <= chosen
    assert {"curves.svg", "report.md", "plan.json"} <= set(demo_run.rows(record.outputs["checkpoint"]).file_names())


@pytest.mark.parametrize("model", MODELS)
def test_every_rollout_ends_with_an_expected_status(demo_run: Run, model: str) -> None:
    statuses = {row["status"] for row in rows(demo_run, f"1/rollouts@{model}", "rollouts")}
    assert statuses <= {"answered", "no_answer", "limit", "max_turns", "context_full", "length", "timeout"}


@pytest.mark.parametrize("model", MODELS)
def test_row_ids_decode_to_the_row_text(demo_run: Run, model: str) -> None:
    tokenizer = ChatTokenizer.load(embedded_tokenizer())
    found = rows(demo_run, f"1/rollouts@{model}", "rollouts")
    assert any(row["samples"][0]["ids"] for row in found)
    for row in found:
        assert tokenizer.decode(row["samples"][0]["ids"]) == row["text"]
        assert len(row["samples"][0]["ids"]) == len(row["samples"][0]["origins"])
        segments = json.loads(row["segments"])
        assert "".join(segment["text"] for segment in segments) == row["text"]
        ends = [0, *(segment["end"] for segment in segments)]
        assert [segment["start"] for segment in segments] == ends[:-1]
        assert ends[-1] == len(row["samples"][0]["ids"])


def test_finished_demo_is_not_run_again(demo_run: Run, tmp_path: Path) -> None:
    _, err = finish((*DEMO, "--root", str(demo_run.storage.directory(""))), tmp_path / "again", limit_s=120)
    assert err.count("(unchanged, reused)") == 17
