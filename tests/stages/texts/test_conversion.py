"""A teacher rewrites sequential trajectories; what is not kept byte for byte or breaks its own plan is no row."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.qwen_tokenizer import qwen_tokenizer
from support.servers.hosted_service import hosted
from support.servers.scripted_server import Fault, Item, RecordedRequest
from support.tables.score_tables import new_run, put_rows, question, rollout, score
from support.teacher import question_of, rewrite

from treadle.core.config import load_config, merge
from treadle.core.errors import ConfigError, JobsPending, StageFailed
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES
from treadle.tasks.catalog import flow_instances, instance
from treadle.tasks.config import TreadleConfig

FAST = {"retry_limit": 0, "backoff_base_s": 0.0, "outage_wait_s": 60.0, "probe_base_s": 0.05, "probe_max_s": 0.1}


def text_of(name: str, searches: int = 3) -> str:
    steps = "".join(
        f"<think>t</think>\n<wiki_search>q{n}</wiki_search>\n<observation>\nDoc 1 {name} {n}\n</observation>\n\n"
        for n in range(searches)
    )
    return f"{steps}<think>ok</think>\n<answer>{name}</answer>"


def row(name: str, searches: int = 3) -> dict[str, str]:
    return {"instruction": "Search one by one.", "input": name, "output": text_of(name, searches)}


def config(folder: Path, url: str, rows: Sequence[Mapping[str, Any]], **conversion: Any) -> TreadleConfig:
    folder.mkdir(exist_ok=True)
    (folder / "mhqa.json").write_text(json.dumps(rows))
    base = {
        "seed": 3,
        "flow": {"stages": ["conversion", "sft_rows"]},
        "models": {"teacher": {"model": "scripted", "api": "chat", "endpoints": [{"url": url}], **FAST}},
        "environments": {"parallel": {"type": "planning", "dialect": "gap"}},
        "conversion": {
            "teacher": {"model": "teacher"},
            "environment": "parallel",
            "texts": [{"path": str(folder / "mhqa.json")}],
            "attempts": 1,
            "parallel_share": None,
            "pending_retries": 0,
            "pending_pause_s": 0.0,
        },
        "sft_rows": {"tokenizer": str(qwen_tokenizer())},
    }
    return load_config(TreadleConfig, data=merge(base, {"conversion": conversion}))


async def make(run: Run, made: TreadleConfig, *addresses: str) -> StageRecord:
    records = [await asyncio.to_thread(execute, instance(made, Address.parse(one)), run) for one in addresses]
    return records[-1]


def rows_of(run: Run, record: StageRecord, kind: str) -> list[dict[str, Any]]:
    return list(run.rows(record.outputs[kind]).rows())


@pytest.mark.covers("planning-30")
async def test_refused_rewrites_have_their_reasons_and_are_no_rows(tmp_path: Path) -> None:
    names = ["good", "chain", "changed", "unplanned", "early", "talkative", "long", "short"]
    rows = [row(name, 2 if name == "short" else 3) for name in names]
    run = new_run(tmp_path / "run")
    async with hosted(rewrite) as server:
        made = config(tmp_path, server.url, rows)
        assert [str(one.address) for one in flow_instances(made)] == ["1/conversion", "1/sft_rows"]
        record = await make(run, made, "1/conversion")
        asked = {question_of(one) for one in server.requests if question_of(one)}
        sft_rows = await make(run, made, "1/sft_rows")
    assert asked == {*names} - {"short"}, "what cannot pass is not paid for"
    found = rows_of(run, record, "conversion")
    assert {one["source_text"]: one["reason"] for one in found} == {
        text_of(name, 2 if name == "short" else 3): reason
        for name, reason in {
            "good": "", "chain": "", "changed": "observation_changed", "unplanned": "no_plan",
            "early": "call_before_inputs", "talkative": "text_outside", "long": "too_long",
            "short": "too_few_searches",
        }.items()
    }  # fmt: skip
    metrics = record.metrics
    assert (metrics["status_converted"], metrics["status_rejected"], metrics["status_not_asked"]) == (2, 5, 1)
    assert (metrics["parallel"], metrics["sequential"], metrics["reason.no_plan"]) == (1, 1, 1)
    trained = rows_of(run, sft_rows, "sft_rows")
    assert {key for one in trained for key in one["parents"]} == {
        one["source_key"] for one in found if one["status"] == "converted"
    }
    good = next(one for one in found if one["status"] == "converted" and one["widest"] == 2)
    assert [json.loads(good["plan"])[2]["depends_on"], good["num_batches"]] == [["T1", "T2"], 2]
    for one in trained:
        prompt, turn = json.loads(one["messages"])
        assert prompt["content"].endswith("Question: good") or prompt["content"].endswith("Question: chain")
        assert "plan it as a graph" in prompt["content"] and one["num_result_tokens"] > 0
        assert all(f"\n{text}\n</observation>" in turn["content"] for text in ("Doc 1 good 1",)) or "chain" in str(
            prompt
        )


async def test_paid_rewrites_survive_a_failure_and_changes_of_the_selection(tmp_path: Path) -> None:
    rows = [row(f"good {n}") for n in range(6)] + [row("chain 1")]
    asked: Counter[str] = Counter()
    broken = {"good 3"}

    def teacher(request: RecordedRequest) -> Item:
        name = question_of(request)
        asked.update([name] if name else [])
        return Fault.status(500) if name in broken else rewrite(request)

    run = new_run(tmp_path / "run")
    async with hosted(teacher) as server:
        made = config(tmp_path, server.url, rows, max_concurrent=1)
        with pytest.raises(JobsPending, match="1 of 7 trajectories"):
            await make(run, made, "1/conversion")
        broken.clear()
        first = await make(run, made, "1/conversion")
        assert asked == {f"good {n}": 1 + (n == 3) for n in range(6)} | {"chain 1": 1}
        # The choice among finished rewrites asks for nothing.
        fewer = config(tmp_path, server.url, rows, max_concurrent=1, parallel_share=0.5)
        second = await make(run, fewer, "1/conversion")
        again = await make(run, made, "1/conversion")
    assert asked.total() == 8
    assert (first.metrics["status_converted"], second.metrics["status_converted"]) == (7, 2)
    assert second.metrics["status_left_out"] == second.metrics["reason.over_ratio"] == 5
    assert again.outputs == first.outputs


async def test_a_second_attempt_is_asked_for_with_another_seed(tmp_path: Path) -> None:
    seeds: list[int] = []

    def teacher(request: RecordedRequest) -> str:
        if not question_of(request):
            return "yes"
        seeds.append(request.body["seed"])
        return "no rewrite" if len(seeds) == 1 else rewrite(request)

    run = new_run(tmp_path / "run")
    async with hosted(teacher) as server:
        record = await make(run, config(tmp_path, server.url, [row("good")], attempts=3), "1/conversion")
    (found,) = rows_of(run, record, "conversion")
    assert found["num_attempts"] == len(set(seeds)) == 2 and found["status"] == "converted"
    assert found["prompt_tokens"] > 0 and record.metrics["prompt_tokens"] == found["prompt_tokens"]


async def test_stage_without_a_rewrite_fails_with_the_reasons(tmp_path: Path) -> None:
    async with hosted(rewrite) as server:
        with pytest.raises(StageFailed, match=r"none of the 2 trajectories was rewritten: no_plan 1, text_outside 1"):
            rows = [row("unplanned"), row("talkative")]
            await make(new_run(tmp_path / "a"), config(tmp_path, server.url, rows), "1/conversion")
        with pytest.raises(StageFailed, match=r"none of the 1 trajectories can be rewritten: too_few_searches 1"):
            await make(new_run(tmp_path / "b"), config(tmp_path, server.url, [row("good", 1)]), "1/conversion")


def test_conversions_that_cannot_be_made_are_refused_before_the_run(tmp_path: Path) -> None:
    def plan(**conversion: Any) -> None:
        flow_instances(config(tmp_path, "http://127.0.0.1:9/v1", [row("good")], **conversion))

    with pytest.raises(ConfigError, match=r"set conversion\.teacher\.model"):
        plan(teacher={"model": None})
    with pytest.raises(ConfigError, match=r"conversion\.environment = 'default': rewrites need plans"):
        plan(environment="default")
    with pytest.raises(ConfigError, match="there is no environment 'paralel'"):
        plan(environment="paralel")
    with pytest.raises(ConfigError, match="not under"):
        plan(teacher={"model": "nobody"})


async def test_right_rollouts_of_the_policy_are_rewritten(tmp_path: Path) -> None:
    def parts(name: str, searches: int = 3) -> list[tuple[str, str]]:
        steps = [
            part
            for n in range(searches)
            for part in (
                ("think", "<think>t</think>"),
                ("search", f"<search>q{n}</search>"),
                ("result", f"<result>Doc 1 {name} {n}</result>"),
            )
        ]
        return [*steps, ("think", "<think>ok</think>"), ("answer", "<answer>1</answer>")]

    names = ["right", "wrong", "unknown", "cut", "heldout", "plan", "trimmed"]
    questions = [
        question(name, ["1"]) | {"question": f"good {name}?", "split": "heldout" if name == "heldout" else "train"}
        for name in names
    ]
    begun = json.dumps([{"role": "user", "content": "Search one by one."}])
    given = [
        rollout(f"r-{name}", name, parts("<plan>x" if name == "plan" else name), first_messages=begun) for name in names
    ]
    given[-1]["samples"] *= 2
    given[3] |= {"status": "max_turns", "truncated": True}
    verdicts = {"wrong": False, "unknown": None}
    run = new_run(tmp_path / "run")
    put_rows(run, "1/questions", QUESTIONS, questions)
    put_rows(run, "1/rollouts@agent", ROLLOUTS, given)
    put_rows(run, "1/scores@agent", SCORES, [score(f"r-{name}", name, verdicts.get(name, True)) for name in names])
    async with hosted(rewrite) as server:
        made = config(tmp_path, server.url, [row("good")], texts=[])
        data = made.model_dump(mode="json", exclude_unset=True)
        agent = data["models"]["teacher"] | {"model": "agent"}
        data |= {"models": {"agent": agent, **data["models"]}, "questions": {"sources": [{"path": "q.jsonl"}]}}
        data["flow"]["stages"] = ["rollouts", "scores", "conversion", "sft_rows"]
        data["environment"] = {"search": {"enabled": False}, "python": {"enabled": False}}
        data["sft_rows"] |= {"with_conversion_sources": True}
        made = load_config(TreadleConfig, data=data)
        record = await make(run, made, "1/conversion")
        sft_rows = await make(run, made, "1/sft_rows")
    found = {one["source_key"]: one["reason"] for one in rows_of(run, record, "conversion")}
    assert found == {
        "r-right": "", "r-wrong": "wrong_answer", "r-unknown": "unknown_verdict", "r-cut": "unfinished",
        "r-heldout": "held_out", "r-plan": "marker_in_result", "r-trimmed": "trimmed",
    }  # fmt: skip
    trained = {
        one["operator"]: json.loads(one["messages"])[-1]["content"] for one in rows_of(run, sft_rows, "sft_rows")
    }
    assert trained.keys() == {"conversion", "source"} and "<plan>" not in trained["source"]
    assert all("Doc 1 right 2" in text for text in trained.values())
