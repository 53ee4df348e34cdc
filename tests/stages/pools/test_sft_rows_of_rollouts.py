"""The stage `sft_rows` over rollouts and their scores, with dialogues of the engine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.tables.pool_tables import ANSWER, ENVIRONMENT
from support.tables.rollout_rows import QUESTIONS, Dialogues, make_rows, rows_of, scored
from support.tables.score_tables import rollout
from support.tables.sft_tables import contents

from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ArtifactError, StageFailed
from treadle.demo.embedded_model import embedded_tokenizer

load = cache(ChatTokenizer.load)


def answered(key: str, question_key: str = "q1", said: str = "hm", **columns: Any) -> dict[str, Any]:
    parts = [("think", f"<think>{said}</think>"), ANSWER]
    return rollout(key, question_key, parts, environment_digest=ENVIRONMENT.digest(), **columns)


@pytest.fixture
def dialogues(monkeypatch: pytest.MonkeyPatch) -> Dialogues:
    monkeypatch.setattr(ChatTokenizer, "load", load)
    return Dialogues(load(embedded_tokenizer()))


def test_only_rollouts_that_succeeded_on_training_questions_become_rows(tmp_path: Path) -> None:
    questions = [*QUESTIONS[:4], QUESTIONS[4] | {"split": "heldout"}]
    rollouts = [
        answered("right", said="h m"),
        answered("twice", said="h  m"),
        answered("wrong", "q2"),
        answered("unknown", "q3"),
        answered("cut", "q4", status="max_turns", truncated=True),
        answered("ended", "q4", status="finished", truncated=True),
        answered("shown", "q5"),
        rollout("lost", "q4", [], status="failed", environment_digest=ENVIRONMENT.digest()),
    ]
    verdicts = scored(rollouts, True, True, False, None, True, True, True, False)
    run, record = make_rows(tmp_path, rollouts, verdicts, questions=questions)
    assert list(rows_of(run, record)) == ["right"]
    reasons = {key: row["reasons"] for key, row in rows_of(run, record, "sft_rejections").items()}
    assert reasons == {
        "twice": ["duplicate"],
        "wrong": ["wrong_answer"],
        "unknown": ["unknown_verdict"],
        "cut": ["unfinished"],
        "ended": ["unfinished"],
        "shown": ["held_out"],
        "lost": ["failed"],
    }
    assert (record.metrics["trajectories"], record.metrics["accepted.rollout"]) == (8, 2)


def test_scores_of_other_rollouts_are_refused(tmp_path: Path) -> None:
    rollouts = [answered("a"), answered("b", "q2")]
    verdicts = scored(rollouts, True, True)
    for name, given in {"missing": verdicts[:1], "order": verdicts[::-1]}.items():
        with pytest.raises(ArtifactError, match=r"rollout [ab] has no score; run `scores` again"):
            make_rows(tmp_path / name, rollouts, given)
    with pytest.raises(ArtifactError, match="the score of b is of no rollout"):
        make_rows(tmp_path / "more", rollouts[:1], verdicts)


def test_dialogue_begins_with_the_messages_of_its_episode(tmp_path: Path, dialogues: Dialogues) -> None:
    rollouts = [dialogues.row(number, secret=secret) for number, secret in enumerate((37, 62, 50), 1)]
    run, record = make_rows(tmp_path, rollouts, scored(rollouts, True, True, False), dialogues.settings())
    rows = rows_of(run, record)
    assert set(rows) == {row["rollout_key"] for row in rollouts[:2]}
    for row in rows.values():
        (role, first), *_, last = contents(row)
        assert (role, first) == ("user", "I think of a number from 1 to 100. Which one?")
        assert last[0] == "assistant" and row["operator"] == "rollout"
        text = dialogues.tokenizer.decode(row["input_ids"])
        assert text == dialogues.tokenizer.render(json.loads(row["messages"]), open_turn=False).removesuffix("\n")
        assert row["num_message_tokens"] > 0 == row["num_result_tokens"]
    report = run.rows(record.outputs["sft_rows"]).read_file("report.md").decode()
    assert f"{record.metrics['message_tokens']:,} in messages of the environment" in report


def test_hinted_rollout_becomes_the_row_of_the_plain_one(tmp_path: Path, dialogues: Dialogues) -> None:
    plain, hinted = (dialogues.row(1, secret=37, hint=hint) for hint in ("", "It is odd."))
    assert len(hinted["samples"][0]["prompt_ids"]) > len(plain["samples"][0]["prompt_ids"])
    rows = []
    for name, row in {"a": plain, "b": hinted}.items():
        run, record = make_rows(tmp_path / name, [row], scored([row], True), dialogues.settings())
        rows += rows_of(run, record).values()
    assert rows[0] == rows[1]
    assert "odd" not in dialogues.tokenizer.decode(rows[1]["input_ids"]) + rows[1]["messages"]


def test_prompt_that_the_messages_do_not_give_is_refused(tmp_path: Path, dialogues: Dialogues) -> None:
    row = dialogues.row(1, secret=37)
    changed = row | {"first_messages": json.dumps([{"role": "user", "content": "Which number?"}])}
    with pytest.raises(StageFailed, match="other token ids than that of its question q1"):
        make_rows(tmp_path / "a", [changed], scored([row], True), dialogues.settings())
    unknown = row | {"first_messages": None}
    with pytest.raises(ArtifactError, match="does not say with which messages it began"):
        make_rows(tmp_path / "b", [unknown], scored([row], True), dialogues.settings())


def test_length_of_a_dialogue_counts_up_to_its_last_turn(tmp_path: Path, dialogues: Dialogues) -> None:
    rollouts = [dialogues.row(number, secret=secret) for number, secret in enumerate((37, 50), 1)]
    run, record = make_rows(tmp_path / "a", rollouts, scored(rollouts, True, True), dialogues.settings())
    length = max(row["num_tokens"] for row in rows_of(run, record).values())
    (sample,) = rollouts[0]["samples"]
    assert length < len(sample["prompt_ids"]) + len(sample["ids"])
    same = dialogues.settings(cutoff_tokens=length)
    assert len(rows_of(*make_rows(tmp_path / "b", rollouts, scored(rollouts, True, True), same))) == 2
    cut = dialogues.settings(cutoff_tokens=length - 1)
    run, record = make_rows(tmp_path / "c", rollouts, scored(rollouts, True, True), cut)
    (rejection,) = rows_of(run, record, "sft_rejections").values()
    assert (rejection["reason"], rejection["num_tokens"]) == ("too_long", length)


def test_other_environment_is_refused_by_the_name_of_the_input(tmp_path: Path, dialogues: Dialogues) -> None:
    row = dialogues.row(1, secret=37)
    other = Dialogues(dialogues.tokenizer, top=64)
    with pytest.raises(StageFailed, match="run `rollouts` again"):
        make_rows(tmp_path, [row], scored([row], True), other.settings())
