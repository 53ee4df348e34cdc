"""One rule for answers: the scores used for selection equal the rewards, with TRL and with verl.

With the confined computer algebra, and with scripted policies.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.tables.score_tables import question, rollout, score_rows
from support.training.stub_verl import StubClient
from support.training.verl_plans import verl_plan

from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.environments.question.settings import QuestionSettings
from treadle.eval.config import ScoresOptions
from treadle.rl.config import AlgebraLimits, RlOptions, RlSettings
from treadle.rl.engine.group_source import open_source
from treadle.rl.engine.rows import Payloads, read_tasks
from treadle.rl.engine.verl.host import host_of
from treadle.rl.engine.verl.sample import Sample
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.training.plan import RlPlan, plan_phase
from treadle.rl.verl.data import write_verl_rows
from treadle.rl.verl.rows import TRAINING_SCHEMA

TURN = r"<think>a</think><answer>\boxed{%s}</answer>"
ENVIRONMENT = {"system_prompt": "Answer.", "python": {"enabled": False}, "search": {"enabled": False}}
SETTINGS = QuestionSettings.model_validate(ENVIRONMENT)
COLOURS = ("red", "green", "blue")
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}

# Response, gold answer, options, domain, scorer, correctness.
CASES: list[tuple[str, str, tuple[str, ...], str, str | None, float]] = [
    ("x+1", "1+x", (), "math", None, 1.0),
    ("x+2", "1+x", (), "math", None, 0.0),
    (r"\sqrt{50}", r"5\sqrt{2}", (), "math", None, 1.0),
    ("1/2", "0.5", (), "math", None, 1.0),
    ("\u201cO\u2019Neill\u201d \u2014 1939\u201345", "O'Neill - 1939-45", (), "qa", None, 1.0),
    ("\u5317\u4eac\u5927\u5b66", "\u5317\u4eac\u5927\u5b66\u533b\u5b66\u90e8", (), "qa", "qa_characters", 8 / 11),
    ("\u5317\u4eac\u5927\u5b66", "\u5317\u4eac\u5927\u5b66\u533b\u5b66\u90e8", (), "qa", None, 0.0),
    ("The answer is C", "C", COLOURS, "choice", None, 1.0),
    ("(B) or (C)", "B", COLOURS, "choice", None, 0.0),
]


def rows() -> list[dict[str, Any]]:
    return [
        {
            "question_key": f"q{number}", "question": f"Question {number}?", "choices": list(choices),
            "answers": [gold], "domain": domain, "dataset": "d", "score_tool": 0.5, "score_corr": 0.5, "rank": 0,
            "format": None, "scorer": scorer,
        }
        for number, (_, gold, choices, domain, scorer, _) in enumerate(CASES)
    ]  # fmt: skip


def by_selection(tmp_path: Path, options: ScoresOptions) -> list[float]:
    """Return what `scores` gives, which selection uses."""
    asked = [
        {**question(row["question_key"], row["answers"], row["domain"], row["choices"]), "scorer": row["scorer"]}
        for row in rows()
    ]
    made = [
        rollout(f"r{number}", f"q{number}", [("text", TURN % said)], domain=domain)
        for number, (said, _, _, domain, *_) in enumerate(CASES)
    ]
    return [row["score"] for row in score_rows(tmp_path, asked, made, options)[0]]


class Policy:
    """Gives for each question the answer of its case."""

    def __init__(self, codec: ChatTokenizer) -> None:
        self.codec = codec

    def __call__(self, request: CompletionRequest) -> Completion:
        assert isinstance(request.prompt, list)
        asked = re.search(r"Question (\d+)\?", self.codec.decode(request.prompt))
        assert asked is not None
        text = TURN % CASES[int(asked[1])][0]
        ids = tuple(self.codec.encode(text))
        return Completion(text, ids, "stop", None, len(request.prompt), len(ids), "", 0.0, 0, (-0.5,) * len(ids))


def training_rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows(), TRAINING_SCHEMA), path)
    return path


def by_trl(tmp_path: Path, codec: ChatTokenizer, algebra: AlgebraLimits | None) -> list[float]:
    keys = {
        "reward": {"sigma_tool": 0.1, "sigma_length": 0.1},
        "group_size": 2,
        "prompts_per_step": 1,
        "mini_batch_prompts": 1,
    }
    options = load_config(RlOptions, data={**keys, "max_prompt_tokens": 4096})
    plan = plan_phase(
        RlSettings(options=options, environment=SETTINGS, algebra=algebra),
        address="1/rl@phase-1",
        rows_digest="",
        rows={"default": len(CASES)},
    )
    asked = read_tasks(training_rows(tmp_path), Payloads(None))
    policy, environments = Policy(codec), {"default": SETTINGS}
    limits = {"max_model_len": None, "max_batch": None}
    with open_source(plan, {}, environments, lambda many: [policy(one) for one in many], codec, **limits) as source:
        groups = source.step(1, asked)
        validated = source.validate(asked)
    assert [reward.score for reward in validated] == [group.rewards[0].score for group in groups]
    return [correctness_of(group.rewards) for group in groups]


def correctness_of(rewards: list[RewardedItem]) -> float:
    (value,) = {reward.score for reward in rewards}
    return value


def verl_job(tmp_path: Path, model: Path, plan: RlPlan) -> Path:
    job = {
        "events": str(tmp_path / "events.jsonl"),
        "environments": {"default": ENVIRONMENT},
        "model": str(model),
        "plan": json.loads(plan.to_json()),
    }
    path = tmp_path / "verl" / "job.json"
    path.parent.mkdir()
    path.write_text(json.dumps(job))
    return path


async def by_verl(tmp_path: Path, codec: ChatTokenizer, job: Path) -> list[float]:
    write_verl_rows(training_rows(tmp_path), tmp_path / "train.parquet", {"default": SETTINGS})
    host, client = await host_of(job), StubClient(Policy(codec))
    found = []
    for made in pq.read_table(tmp_path / "train.parquet").to_pylist():
        sample = Sample.from_fields({**made, "uid": made["extra_info"]["id"], "global_steps": 1})
        sessions = await asyncio.gather(*(host.join(sample, number, 2, client, SAMPLING) for number in range(2)))
        found.append(correctness_of([session.reward for session in sessions]))
    return found


@pytest.mark.covers("pareto-17", "pareto-33", "pareto-34")
@pytest.mark.parametrize("algebra", [AlgebraLimits(limit_s=0.5), None])
async def test_selection_and_both_engines_give_the_same_verdicts(tmp_path: Path, algebra: AlgebraLimits | None) -> None:
    model = write_byte_tokenizer(tmp_path / "model")
    codec = ChatTokenizer.load(model)
    options = ScoresOptions(symbolic=algebra is not None, symbolic_limit_s=0.5)
    selected = by_selection(tmp_path / "run", options)
    right = [case[-1] for case in CASES]
    assert selected == pytest.approx(right if algebra else [0.0, 0.0, 0.0, *right[3:]])
    plan = verl_plan(environment=SETTINGS, algebra=algebra, max_prompt_tokens=4096)
    job = verl_job(tmp_path, model, plan)
    assert await by_verl(tmp_path, codec, job) == selected
    assert await asyncio.to_thread(by_trl, tmp_path, codec, algebra) == selected
