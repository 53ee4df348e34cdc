"""The stage `sft_rows` over rollouts and their scores, with dialogues of the engine."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.native_rollouts import SETTINGS, Spoken, play_native, tokenizer_of
from support.tables.pool_tables import ANSWER, ENVIRONMENT
from support.tables.rollout_rows import FIVE_QUESTIONS, Dialogues, make_rows, rows_of, scored
from support.tables.score_tables import rollout
from support.tables.sft_tables import contents

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ArtifactError, DataError, StageFailed
from treadle.datagen.sft_rows.settings import SftRowsSettings
from treadle.demo.embedded_model import embedded_tokenizer
from treadle.environments.rollouts.rows import head_of_row, row_of
from treadle.sft.export_reader import read_export
from treadle.sft.exporters import export_rows
from treadle.sft.row_text import RowText

load = cache(ChatTokenizer.load)


def answered(key: str, question_key: str = "q1", said: str = "hm", **columns: Any) -> dict[str, Any]:
    parts = [("think", f"<think>{said}</think>"), ANSWER]
    return rollout(key, question_key, parts, environment_digest=ENVIRONMENT.digest(), **columns)


@pytest.fixture
def dialogues(monkeypatch: pytest.MonkeyPatch) -> Dialogues:
    monkeypatch.setattr(ChatTokenizer, "load", load)
    return Dialogues(load(embedded_tokenizer()))


def test_only_rollouts_that_succeeded_on_training_questions_become_rows(tmp_path: Path) -> None:
    questions = [*FIVE_QUESTIONS[:4], FIVE_QUESTIONS[4] | {"split": "heldout"}]
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


SCRIPT = [Spoken("", [("search", {"query": "a"}), ("python", {"code": "1"})]), Spoken("It is 1.")]


def native_row(route: str, number: int = 1) -> dict[str, Any]:
    """Return the row of a rollout with native calls on question `number`."""
    asked, tokenizer = FIVE_QUESTIONS[number - 1], tokenizer_of(route)
    made = asyncio.run(play_native(route, SCRIPT, Task.from_row(asked)))
    digest = tokenizer.digest if tokenizer else ""
    return row_of(head_of_row(asked, "base", 0, 0), made, SETTINGS.digest(), digest) | {"job": None}


def native_settings(tokenizer: ChatTokenizer) -> SftRowsSettings:
    return SftRowsSettings(environment=SETTINGS, tokenizer=tokenizer.folder, tokenizer_digest=tokenizer.digest)


@pytest.mark.parametrize("route", ["qwen", "llama", "smollm2"])
def test_native_calls_have_their_prompt_and_schemas(tmp_path: Path, route: str) -> None:
    tokenizer = tokenizer_of(route)
    assert tokenizer is not None
    over_ids, over_chat = native_row(route), native_row("chat", 2)
    run, record = make_rows(
        tmp_path, [over_ids, over_chat], scored([over_ids, over_chat], True, True), native_settings(tokenizer)
    )
    row, text_row = (rows_of(run, record)[one["rollout_key"]] for one in (over_ids, over_chat))
    (sample,) = over_ids["samples"]
    assert row["input_ids"][: row["num_prompt_tokens"]] == sample["prompt_ids"]
    learned = tokenizer.decode([token for token in row["labels"] if token != -100])
    assert "It is 1." in learned and '"query"' in learned and "found: a" not in learned
    messages = json.loads(row["messages"])
    assert [message["role"] for message in messages[-4:]] == ["assistant", "tool", "tool", "assistant"]
    assert messages[-4:] == json.loads(text_row["messages"])[-4:]
    assert "<tools>" not in messages[0]["content"]
    assert [one["name"] for one in json.loads(row["tool_schemas"])] == ["search", "python"]
    assert text_row["tool_schemas"] == row["tool_schemas"]
    # The turns of the chat service are encoded as the student of this family would have written them.
    parts = [tokenizer.decode(one["input_ids"][one["num_prompt_tokens"] :]).rstrip("\n") for one in (row, text_row)]
    assert parts[1] == parts[0] and text_row["tokenizer_digest"] == tokenizer.digest
    assert tokenizer.decode([token for token in text_row["labels"] if token != -100]) == learned
    table = run.rows(record.outputs["sft_rows"])
    for name in ("openai", "sharegpt"):
        export_rows(table, name, tmp_path / name, origin={})
        assert list(read_export(tmp_path / name)) == [RowText.of(one) for one in table.rows()]


def test_tools_that_came_later_are_in_no_prompt(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("qwen")
    assert tokenizer is not None
    row = native_row("qwen")
    later = {"name": "later", "description": "", "parameters": {}}
    added = row | {"tool_schemas": json.dumps([*json.loads(row["tool_schemas"]), later | {"added": True}])}
    run, record = make_rows(tmp_path / "a", [added], scored([row], True), native_settings(tokenizer))
    (made,) = rows_of(run, record).values()
    assert json.loads(made["tool_schemas"])[2] == later
    told = row | {"tool_schemas": json.dumps([*json.loads(row["tool_schemas"]), later])}
    with pytest.raises(StageFailed, match="other token ids than that of its question q1"):
        make_rows(tmp_path / "b", [told], scored([row], True), native_settings(tokenizer))


def test_row_of_an_environment_that_the_run_does_not_have_is_refused(tmp_path: Path, dialogues: Dialogues) -> None:
    row = dialogues.row(1, secret=37) | {"environment": "guess"}
    with pytest.raises(DataError, match="'guess', which this run does not have; there are default"):
        make_rows(tmp_path / "a", [row], scored([row], True), dialogues.settings())
    named = SftRowsSettings(
        environments={"guess": dialogues.environment},
        tokenizer=dialogues.tokenizer.folder,
        tokenizer_digest=dialogues.tokenizer.digest,
    )
    run, record = make_rows(tmp_path / "b", [row], scored([row], True), named)
    assert rows_of(run, record).keys() == {row["rollout_key"]}
    with pytest.raises(StageFailed, match=r"run `rollouts` again, or restore the \[environment\]"):
        make_rows(tmp_path / "c", [row | {"environment": "default"}], scored([row], True), named)
