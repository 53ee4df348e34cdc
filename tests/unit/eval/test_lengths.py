"""The columns of `scores` that measure how much an agent did and wrote, whatever its answer is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.tables.score_tables import parts_of, question, rollout, sample, score_rows

from treadle.agent.contract import CallRecord
from treadle.agent.dialects.base import Segment
from treadle.agent.trajectory import Trajectory
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.rollouts.rows import row_of
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.config import ScoresOptions, ScoresSettings
from treadle.eval.lengths import count_agent_ids

WITHOUT_ALGEBRA = ScoresOptions(symbolic=False)
THOUGHT, CALL, ANSWER = (
    ("think", "<think>é</think>"),
    ("search", "<search>q</search>"),
    ("answer", "<answer>7</answer>"),
)
QUESTIONS = [question("q1", ["7"])]


def result(text: str) -> tuple[str, str]:
    return "result", f"<result>{text}</result>"


def only_row(tmp_path: Path, segments: list[tuple[str, str]], tokenizer: Path | None = None, **columns: Any) -> Any:
    settings = ScoresSettings(tokenizer=tokenizer, options=WITHOUT_ALGEBRA)
    (row,), _ = score_rows(tmp_path, QUESTIONS, [rollout("r1", "q1", segments, **columns)], settings)
    return row


def test_ids_not_written_by_a_tool_are_counted(tmp_path: Path) -> None:
    row = only_row(tmp_path, [ANSWER], samples=[sample([1, 1, 0]), sample([0, 2, 1])], tokenizer_digest="d")
    assert row["reasoning_tokens"] == 4


def test_ids_are_counted_per_rollout_of_a_batch() -> None:
    rollouts = [[[1, 0, 2]], [[]], [[0, 0]], [], [[1], [0, 1]]]
    rows = [[sample(origins) for origins in samples] for samples in rollouts]
    samples = pa.array(rows, ROLLOUTS.schema.field("samples").type)
    assert count_agent_ids(samples) == [2, 0, 0, 0, 2]
    assert count_agent_ids(samples[1:]) == [0, 0, 0, 2]


def test_text_is_counted_by_the_model_tokenizer_if_ids_are_missing(tmp_path: Path) -> None:
    folder = write_byte_tokenizer(tmp_path / "tokenizer")
    own = THOUGHT[1] + CALL[1] + ANSWER[1]
    row = only_row(tmp_path, [THOUGHT, CALL, result("a long text"), ANSWER], folder)
    assert row["reasoning_tokens"] == len(ChatTokenizer.load(folder).encode(own)) == len(own.encode())
    assert row["output_chars"] == len(own)


def test_length_is_unknown_without_ids_and_tokenizer(tmp_path: Path) -> None:
    assert only_row(tmp_path, [ANSWER])["reasoning_tokens"] is None


def test_unfinished_rollout_with_ids_has_a_length_without_a_tokenizer(tmp_path: Path) -> None:
    assert only_row(tmp_path, [], status="failed", tokenizer_digest="d")["reasoning_tokens"] == 0


@pytest.mark.covers("evaluation-11")
@pytest.mark.parametrize("text", ["", "x", "7 " * 3_000, "<think>not the agent's</think><answer>7</answer>"])
def test_result_text_never_changes_a_length(tmp_path: Path, text: str) -> None:
    folder = write_byte_tokenizer(tmp_path / "tokenizer")
    row = only_row(tmp_path / "with", [THOUGHT, CALL, result(text), ANSWER], folder)
    without = only_row(tmp_path / "without", [THOUGHT, CALL, ANSWER], folder)
    assert (row["reasoning_tokens"], row["output_chars"]) == (without["reasoning_tokens"], without["output_chars"])


@pytest.mark.covers("evaluation-11")
def test_unloadable_tokenizer_is_an_error_before_any_row(tmp_path: Path) -> None:
    ids = {"samples": [sample([1])], "tokenizer_digest": "d"}
    with pytest.raises(ConfigError, match=r"nowhere.tokenizer\.json"):
        only_row(tmp_path / "a", [ANSWER], tmp_path / "nowhere", **ids)
    settings = ScoresSettings(tokenizer=write_byte_tokenizer(tmp_path / "tokenizer"), tokenizer_digest="other")
    with pytest.raises(ConfigError, match="differs from the one that this run was created with"):
        score_rows(tmp_path / "b", QUESTIONS, [rollout("r1", "q1", [ANSWER], **ids)], settings)


@pytest.mark.covers("evaluation-2")
def test_published_token_f1_is_reported_next_to_the_corrected_one(tmp_path: Path) -> None:
    questions = [
        question("q1", ["Paris"]),
        question("q2", ["A"], "choice", ["x", "y"]),
        question("q3", ["1 2"], "math"),
    ]
    rollouts = [
        rollout("r1", "q1", [("answer", "<answer>Paris.</answer>")]),
        rollout("r2", "q2", [("answer", "<answer>A</answer>")]),
        rollout("r3", "q3", [("answer", "<answer>2 3</answer>")]),
        rollout("r4", "q1", [("answer", "<answer>Paris</answer>")], status="limit"),
    ]
    rows, _ = score_rows(tmp_path, questions, rollouts)
    assert [parts_of(row)["f1_legacy"] for row in rows] == [0.0, 0.0, 0.5, 0.0]
    assert [parts_of(row)["f1"] for row in rows] == [1.0, 1.0, 0.5, 0.0]


def scored_calls(tmp_path: Path, calls: list[CallRecord], segments: list[tuple[str, str]]) -> Any:
    """Return the row of `scores` for a trajectory as the engine writes it down, ledger and all."""
    parts = [Segment(kind, text, 0, 0) for kind, text in segments]
    trajectory = Trajectory("answered", "".join(part.text for part in parts), parts, [], calls, 1)
    written = row_of(rollout("r1", "q1", []), trajectory, "e", "")
    (row,), _ = score_rows(tmp_path, QUESTIONS, [written])
    return row


@pytest.mark.covers("evaluation-8")
def test_calls_come_from_the_ledger_never_from_tags_in_a_result(tmp_path: Path) -> None:
    calls = [
        CallRecord("search", "a", "ok", 0),
        CallRecord("python", "1", "ok", 1),
        CallRecord("search", "b", "refused", 2),
    ]
    quoted = result("<search>x</search><python>y</python>")
    row = scored_calls(tmp_path, calls, [CALL, quoted, ("python", "<python>1</python>"), result("1"), CALL, ANSWER])
    assert (row["calls_requested"], row["calls_executed"]) == (3, 2)
    assert row["tools"] == [
        {"tool": "python", "requested": 1, "executed": 1, "failed": 0},
        {"tool": "search", "requested": 2, "executed": 1, "failed": 0},
    ]
    assert row["efficiency"] == pytest.approx(1 / 3)


@pytest.mark.covers("evaluation-10")
@pytest.mark.parametrize(("status", "failed"), [("ok", 0), ("error", 1), ("empty", 1), ("timeout", 1), ("refused", 0)])
def test_failed_calls_come_from_the_ledger(tmp_path: Path, status: Any, failed: int) -> None:
    found = result("It was found by trial and error.")
    row = scored_calls(tmp_path, [CallRecord("search", "q", status, 0)], [CALL, found, ANSWER])
    assert row["failed_calls"] == failed
