"""Files of whole trajectories, as Agent Foundation Models publishes them, become masked fine-tuning rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.qwen_tokenizer import qwen_tokenizer
from support.tables.score_tables import new_run

from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.errors import ConfigError, StageFailed
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.tasks.catalog import flow_instances, instance
from treadle.tasks.config import TreadleConfig

PROMPT = "You answer with functions."
STEP = "<think>t</think>\n<wiki_search>a|b</wiki_search>\n<observation>\nDoc 1 x\n</observation>\n\n"
ANSWER = "<think>ok</think>\n<answer>z</answer>"


def text_row(text: str = STEP + ANSWER, question: str = "who?") -> dict[str, str]:
    return {"instruction": PROMPT, "input": question, "output": text}


def config(folder: Path, rows: list[Any], source: dict[str, Any] | None = None, **options: Any) -> TreadleConfig:
    folder.mkdir(exist_ok=True)
    (folder / "mhqa.json").write_text(json.dumps(rows))
    data = {
        "flow": {"stages": ["sft_rows", "sft"]},
        "sft_rows": {
            "texts": [{"path": str(folder / "mhqa.json"), **(source or {})}],
            "tokenizer": str(qwen_tokenizer()),
            **options,
        },
    }
    return load_config(TreadleConfig, data=data)


def make(
    folder: Path, rows: list[Any], source: dict[str, Any] | None = None, **options: Any
) -> tuple[Run, StageRecord]:
    made = instance(config(folder, rows, source, **options), Address.parse("1/sft_rows"))
    run = new_run(folder / "run")
    return run, execute(made, run)


def rows_of(run: Run, record: StageRecord, kind: str = "sft_rows") -> list[dict[str, Any]]:
    return list(run.rows(record.outputs[kind]).rows())


def test_flow_of_texts_needs_neither_questions_nor_models(tmp_path: Path) -> None:
    flow = flow_instances(config(tmp_path, [text_row()]))
    assert [str(one.address) for one in flow] == ["1/sft_rows", "1/sft"]
    with pytest.raises(ConfigError, match=r"set sft_rows\.tokenizer"):
        flow_instances(config(tmp_path, [text_row()], tokenizer=None))


def test_observations_have_no_loss_and_all_else_has(tmp_path: Path) -> None:
    run, record = make(tmp_path, [text_row(), text_row("<think>a</think><answer>b</answer>", "Question: what?")])
    tokenizer = ChatTokenizer.load(qwen_tokenizer())
    made = {row["question_key"]: row for row in rows_of(run, record)}
    row = next(row for row in made.values() if row["calls_requested"])
    trained = tokenizer.decode([one for one, label in zip(row["input_ids"], row["labels"], strict=True) if label >= 0])
    assert "".join(trained.split()) == "".join((STEP.split("<observation>")[0] + ANSWER + "<|im_end|>").split())
    hidden = tokenizer.decode([one for one, label in zip(row["input_ids"], row["labels"], strict=True) if label < 0])
    assert f"{PROMPT}\n\nQuestion: who?<|im_end|>" in hidden and "<observation>\nDoc 1 x\n</observation>\n\n" in hidden
    assert row["num_result_tokens"] == 11 and row["calls_requested"] == 2 and row["operator"] == "text"
    turn = json.loads(row["messages"])[-1]
    assert [turn["content"][start:end].strip() for start, end in turn["results"]] == [
        "<observation>\nDoc 1 x\n</observation>"
    ]
    other = next(row for row in made.values() if not row["calls_requested"])
    assert json.loads(other["messages"])[0]["content"] == f"{PROMPT}\n\nQuestion: what?"
    report = run.rows(record.outputs["sft_rows"]).read_file("report.md").decode()
    assert "masked" in report and record.metrics["result_tokens"] == 11
    assert (
        record.metrics["masked_share_max"] == round(11 / row["num_tokens"], 4)
        and record.metrics["masked_share_min"] == 0
    )


def test_each_refused_row_has_its_reason(tmp_path: Path) -> None:
    refused = {
        "nested": f"<think>{STEP}</think>{ANSWER}".replace("<think>t</think>", ""),
        "unbalanced": STEP + "x</plan>" + ANSWER,
        "odd_marker": STEP + STEP.replace("observation", "Observation") + ANSWER,
        "no_answer": STEP,
        "call_without_observation": "<think>t</think><wiki_search>a</wiki_search>" + ANSWER,
        "missing_field": "",
    }
    rows: list[Any] = [text_row(), *(text_row(text, name) for name, text in refused.items()), "no object"]
    run, record = make(tmp_path, rows)
    found = sorted(row["reason"] for row in rows_of(run, record, "sft_rejections"))
    assert found == sorted([*refused, "unreadable"])
    assert record.metrics["rows"] == 1 and record.metrics["reason.no_answer"] == 1


def test_row_with_the_tag_and_no_masked_token_fails_the_stage_by_name(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match=r"row 2 of mhqa\.json: the text has the tag 'observation'"):
        make(tmp_path, [text_row(), text_row(STEP.replace("observation>", "OBSERVATION>") + ANSWER)])


@pytest.mark.covers("planning-16")
def test_row_over_the_cutoff_is_cut_and_what_is_left_of_the_observation_stays_masked(tmp_path: Path) -> None:
    long = STEP.replace("Doc 1 x", "Doc 1 " + "x " * 200) + ANSWER
    run, record = make(tmp_path, [text_row(long)], cutoff_tokens=100)
    (row,) = rows_of(run, record)
    tokenizer = ChatTokenizer.load(qwen_tokenizer())
    assert row["num_tokens"] == len(row["input_ids"]) == 100 and row["labels"][-1] == -100
    trained = tokenizer.decode([one for one in row["labels"] if one >= 0])
    assert trained.strip() == STEP.split("<observation>")[0].strip(), "no end of turn is learned at the cut"
    with pytest.raises(StageFailed, match="too_long 1"):
        make(tmp_path / "rejected", [text_row(long)], cutoff_tokens=100, texts_over_cutoff="reject")


def web_step(query: str, after: str = "") -> str:
    return f"<think>t</think><web_search>{query}</web_search><observation>o</observation>{after}"


def checked(score: int) -> str:
    return f"<think>c</think><suggested_answer>z</suggested_answer><think>d</think><double_check>{score}</double_check>"


def test_rules_of_the_papers_are_applied_with_counts(tmp_path: Path) -> None:
    plan = "<think>t</think><plan>p</plan>"
    reflected = "<think>t</think><reflection>all good</reflection>"
    rows = {
        "kept": plan + web_step("a") + web_step("b") + checked(4) + ANSWER,
        "corrected": plan + web_step("a") + checked(2) + plan + web_step("b") + checked(3) + ANSWER,
        "too_simple": web_step("a") + web_step("b") + reflected + ANSWER,
        "too_few_searches": plan + web_step("a") + reflected + checked(4) + ANSWER,
        "repeated_call": plan + web_step("a b") + web_step("A  b") + checked(4) + ANSWER,
        "violation": plan + reflected + web_step("a") + web_step("b") + checked(4) + ANSWER,
        "unreflected": plan + "".join(map(web_step, "abc")) + ANSWER,
        "too_many_tokens": plan + web_step("a") + web_step("b " * 400) + checked(4) + ANSWER,
    }
    filters = {
        "min_interactions": 4,
        "min_searches": 2,
        "max_text_tokens": 300,
        "drop_repeated_calls": True,
        "drop_violations": True,
        "unreflected_share": 0.0,
        "corrected_copies": 3,
    }
    given = [text_row(text, name) for name, text in rows.items()]
    run, record = make(tmp_path, given, {"dialect": "web"}, filters=filters)
    rules = {key.removeprefix("rule."): value for key, value in record.metrics.items() if key.startswith("rule.")}
    # An answer without a check violates the dialect too.
    assert rules == dict.fromkeys(list(rows)[2:], 1) | {"violation": 3}
    keys = [row["rollout_key"] for row in rows_of(run, record)]
    assert len(keys) == len(set(keys)) == 4 and sorted(key[16:] for key in keys) == ["", "", "-2", "-3"]
    _, whole = make(tmp_path / "all", given)
    assert whole.metrics["rows"] == len(rows), "by default no rule applies"


def test_parallel_rows_are_reduced_to_their_share(tmp_path: Path) -> None:
    rows = [text_row(STEP.replace("a|b", f"{n} | b") + ANSWER, f"p{n}") for n in range(20)]
    rows += [text_row(STEP.replace("a|b", f"{n}") + ANSWER, f"s{n}") for n in range(4)]
    run, record = make(tmp_path, rows, filters={"parallel_share": 0.6})
    assert record.metrics["rows"] == 10 and record.metrics["left_out.over_ratio"] == 14
    made = rows_of(run, record)
    assert sum(row["calls_requested"] > 1 for row in made) == 6
