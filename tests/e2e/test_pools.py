"""The flywheel with SmolLM2 on real vLLM in every role: any output is parsed, or rejected with a reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.rollouts.pools_bench import PoolsBench

from treadle.core.engines.serving import ServedModel

QUESTIONS = [
    {"question": "What is 12 * 13?", "answers": ["156"], "domain": "math", "dataset": "math"},
    {"question": "Which city is the capital of France?", "answers": ["Paris"]},
    {"question": "What is (17 + 5) * 3?", "answers": ["66"], "domain": "math", "dataset": "math"},
]


def test_small_real_model_plays_every_role(served_embedded_model: ServedModel, tmp_path: Path) -> None:
    bench = PoolsBench(tmp_path, QUESTIONS)
    model = {
        "model": "smollm2",
        "tokenizer": str(served_embedded_model.tokenizer_folder),
        "request_timeout_s": 300.0,
    }
    sampling = {"max_tokens": 128}
    roles = {role: {"model": model, "sampling": sampling} for role in ("policy", "critic", "refiner", "judge")}
    operators = ["rerollout", "redundant_mod", "global_refine", "self_correct", "hint_step", "hint_tail", "reflect"]
    record = asyncio.run(
        bench.make(
            served_embedded_model.url,
            roles=roles,
            options={"rounds": 1, "operators": operators},
            environment={"max_turns": 3, "python": {"enabled": True}},
        )
    )
    questions, pools, events = (bench.rows(record, kind) for kind in ("pool_questions", "pools", "pool_events"))
    assert [question["status"] for question in questions] == ["ok"] * len(QUESTIONS), questions
    for event in events:
        assert event["outcome"] in ("produced", "found", "duplicate") or event["reason"]
        assert event["outcome"] != "failed", event
    for row in pools:
        # Sampled, inserted and tool text are adjacent spans of the turn, and join to its text.
        assert (
            len(row["samples"][0]["ids"]) == len(row["samples"][0]["origins"])
            and len(row["samples"][0]["prompt_ids"]) > 0
        )
        assert "".join(segment["text"] for segment in row["segments"]) == row["text"]
    assert any(row["operator"] != "initial" for row in pools), "no operator made anything of any reply"
