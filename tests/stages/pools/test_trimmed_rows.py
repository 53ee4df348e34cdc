"""Fine-tuning rows of rollouts whose context was trimmed: one per context, each behind what the model saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.rollout_bench import load
from support.tables.rollout_rows import FIVE_QUESTIONS, make_rows, rows_of, scored
from support.tables.trimmed_rollouts import ANSWER, CHECKED, Model, mixed, played, web_settings

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ConfigError, StageFailed
from treadle.datagen.sft_rows.encoding import NO_LOSS
from treadle.datagen.sft_rows.settings import SftRowsOptions, SftRowsSettings
from treadle.environments.rollouts.rows import head_of_row, row_of
from treadle.sft.exporters import export_rows

TURNS = [*mixed(8), CHECKED + ANSWER]
RESERVE = 100
QUESTION = FIVE_QUESTIONS[0]


def rolled_out(tokenizer: ChatTokenizer, *, has_ids: bool = True) -> tuple[dict[str, Any], Model]:
    model = Model(TURNS, tokenizer if has_ids else None)
    made = played(model, 900 if has_ids else 2_000, reserve=RESERVE, task=Task.from_row(QUESTION))
    assert len(made.samples) > 2
    environment = web_settings(RESERVE)
    head = head_of_row(QUESTION, "base", 0, 0)
    return row_of(head, made, environment.digest(), tokenizer.digest if has_ids else "") | {"job": None}, model


def test_each_call_of_linear_think_is_a_row_of_its_own(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    context: dict[str, Any] = {"manager": "linear_think"}
    model = Model(TURNS, tokenizer)
    trajectory = played(model, 4_000, task=Task.from_row(QUESTION), trim_reserve_tokens=None, context=context)
    environment = web_settings(None, context=context)
    row = row_of(head_of_row(QUESTION, "base", 0, 0), trajectory, environment.digest(), tokenizer.digest)
    given = settings(tokenizer).model_copy(update={"environment": environment})
    run, record = make_rows(tmp_path, [row | {"job": None}], scored([row], True), given)
    made = list(rows_of(run, record).values())
    assert len(made) == len(model.saw) == len(TURNS)
    for saw, sampled in zip(model.saw, model.sampled, strict=True):
        (own,) = [one for one in made if one["input_ids"][: len(saw) + len(sampled)] == [*saw, *sampled]]
        assert own["labels"][: len(saw)] == [NO_LOSS] * len(saw)
        learned = [label for label in own["labels"] if label != NO_LOSS]
        assert learned[: len(sampled)] == list(sampled) and len(learned) <= len(sampled) + 1
        check_text(own, tokenizer)


def settings(tokenizer: ChatTokenizer, **options: Any) -> SftRowsSettings:
    return SftRowsSettings(
        environment=web_settings(RESERVE),
        tokenizer=tokenizer.folder,
        tokenizer_digest=tokenizer.digest,
        options=SftRowsOptions(**options),
    )


@pytest.fixture(params=["qwen", "smollm2"])
def tokenizer(request: pytest.FixtureRequest) -> ChatTokenizer:
    return load(request.param)


def test_each_sampled_id_is_learned_once_behind_what_the_model_saw(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    row, model = rolled_out(tokenizer)
    run, record = make_rows(tmp_path, [row], scored([row], True), settings(tokenizer))
    made, key = rows_of(run, record), row["rollout_key"]
    samples = row["samples"]
    assert set(made) == {key, *(f"{key}-{number}" for number in range(2, len(samples) + 1))}
    learned = []
    for saw, sampled in zip(model.saw, model.sampled, strict=True):
        (own,) = [
            one
            for one in made.values()
            if one["input_ids"][: len(saw)] == saw and one["labels"][len(saw) : len(saw) + 3] == list(sampled[:3])
        ]
        assert own["labels"][len(saw) : len(saw) + len(sampled)] == list(sampled)
        learned += sampled
    (last,) = [one for one in made.values() if ANSWER in tokenizer.decode(one["input_ids"])]
    num_labels = sum(len(one["labels"]) - one["labels"].count(NO_LOSS) for one in made.values())
    assert num_labels == len(learned) + 1, "the last row ends its turn, and no other one does"
    end = tokenizer.turn_end_ids[0]
    assert [one["labels"].count(end) for one in made.values()].count(1) == 1 == last["labels"].count(end)
    for one in made.values():
        check_text(one, tokenizer)
    (first,) = [one for one in made.values() if one["rollout_key"] == key]
    assert first["num_prompt_tokens"] == len(samples[0]["prompt_ids"])
    for target in (tmp_path / "hf", tmp_path / "openai"):
        arguments = run.rows(record.outputs["sft_rows"]), target.name, target
        if target.name == "hf":
            assert export_rows(*arguments, origin={}).num_rows == len(samples)
        else:
            with pytest.raises(ConfigError, match=f"{key}-.*trimmed context.*openai"):
                export_rows(*arguments, origin={})


def check_text(row: dict[str, Any], tokenizer: ChatTokenizer) -> None:
    """Assert that the messages say what the ids say, and where results and what a trim left are."""
    turn = json.loads(row["messages"])[-1]
    text, content, num_carried = tokenizer.decode(row["input_ids"]), turn["content"], turn.get("num_carried_chars", 0)
    assert content in text and text.startswith(tokenizer.decode(row["input_ids"][: row["num_prompt_tokens"]]))
    assert tokenizer.decode(row["input_ids"][: row["num_prompt_tokens"]]).endswith(content[:num_carried])
    assert ("<plan>" in content[:num_carried]) == (num_carried > 0)
    for start, end in turn.get("results", ()):
        assert start >= num_carried and content[start:end].strip().startswith("<observation>")
        assert content[start:end].strip().endswith("</observation>")


def test_rollouts_without_ids_are_rejected_and_too_long_contexts_as_a_whole(tmp_path: Path) -> None:
    tokenizer = load("qwen")
    row, _ = rolled_out(tokenizer)
    longest = max(len(one["prompt_ids"]) + len(one["ids"]) for one in row["samples"])
    for place, (chosen, options, reason) in enumerate(
        [
            (rolled_out(tokenizer, has_ids=False)[0], {}, "context was trimmed"),
            (row, {"cutoff_tokens": longest // 2}, "too_long"),
        ]
    ):
        with pytest.raises(StageFailed, match=f"none of the 1 trajectories passed.*{reason[:4]}"):
            make_rows(tmp_path / str(place), [chosen], scored([chosen], True), settings(tokenizer, **options))
