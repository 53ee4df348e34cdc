"""Rows of the `rollouts` table: what identifies a rollout, and how a trajectory is written down."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from treadle.agent.environment import CallRecord, Ledger
from treadle.agent.protocol import Segment
from treadle.agent.rollout import Trajectory, derive_seed
from treadle.core.config import digest_json

FRESH = "rollout"
"""Operator of a trajectory that was sampled from the start."""


def rollout_key(question_key: str, model: str, sample_index: int, operator: str = FRESH) -> str:
    """16 hex digits that name a rollout within a run."""
    return digest_json([question_key, model, sample_index, operator])[:16]


def rollout_seed(seed: int, question_key: str, model: str, sample_index: int) -> int:
    """Seed of one rollout, from the run's seed and what the rollout is."""
    return derive_seed(seed, question_key, model, sample_index)


def head_of_row(question: Mapping[str, Any], model: str, sample_index: int, seed: int) -> dict[str, Any]:
    """The columns that are known before a rollout is made."""
    question_key = question["question_key"]
    return {
        "rollout_key": rollout_key(question_key, model, sample_index),
        "question_key": question_key,
        "dataset": question["dataset"],
        "domain": question["domain"],
        "model": model,
        "sample_index": sample_index,
        "operator": FRESH,
        "parents": [],
        "round": 0,
        "seed": rollout_seed(seed, question_key, model, sample_index),
    }


def row_of(
    head: Mapping[str, Any], trajectory: Trajectory, environment_digest: str, tokenizer_digest: str
) -> dict[str, Any]:
    """A row of the `rollouts` table. Counts of calls come from the ledger alone."""
    ledger = Ledger(trajectory.calls)
    return {
        **head,
        "status": trajectory.status,
        "error": None,
        "text": trajectory.text,
        "segments": orjson.dumps(trajectory.segments).decode(),
        "prompt_ids": trajectory.prompt_ids,
        "output_ids": trajectory.output_ids,
        "token_origin": trajectory.token_origin,
        "tool_calls": _calls_json(trajectory.calls),
        "num_turns": trajectory.num_turns,
        "calls_requested": ledger.requested.total(),
        "calls_executed": ledger.executed.total(),
        "python_calls": ledger.requested["python"],
        "search_calls": ledger.requested["search"],
        "failed_calls": ledger.failed,
        "prompt_tokens": trajectory.usage.prompt_tokens,
        "completion_tokens": trajectory.usage.completion_tokens,
        "environment_digest": environment_digest,
        "tokenizer_digest": tokenizer_digest,
    }


def failed_row(head: Mapping[str, Any], error: str, environment_digest: str, tokenizer_digest: str) -> dict[str, Any]:
    """The row that keeps the slot of a rollout which infrastructure kept from finishing."""
    empty = Trajectory("failed", "", [], [], [], [], [], 0)
    return {**row_of(head, empty, environment_digest, tokenizer_digest), "error": error}


def telemetry_of(key: str, attempt: int, seconds: float, trajectory: Trajectory) -> dict[str, Any]:
    """A row of the `rollout_telemetry` table."""
    usage = trajectory.usage
    return {
        "rollout_key": key,
        "attempt": attempt,
        "finished_at": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        "seconds": seconds,
        "model_seconds": usage.model_seconds,
        "tool_seconds": usage.tool_seconds,
        "num_requests": usage.num_requests,
        "num_retries": usage.num_retries,
        "endpoint": usage.endpoint,
        "summarizer_prompt_tokens": sum(call.prompt_tokens for call in trajectory.calls),
        "summarizer_completion_tokens": sum(call.completion_tokens for call in trajectory.calls),
    }


def calls_of(row: Mapping[str, Any]) -> list[CallRecord]:
    """The ledger of a stored rollout; the results' text stands in its segments."""
    return [
        CallRecord(call["tool"], call["argument"], call["status"], call["turn"])
        for call in orjson.loads(row["tool_calls"])
    ]


def trajectory_of(row: Mapping[str, Any]) -> Trajectory:
    """The trajectory of a stored rollout, to be shown or continued."""
    return Trajectory(
        status=row["status"],
        text=row["text"],
        segments=[Segment(**segment) for segment in orjson.loads(row["segments"])],
        prompt_ids=list(row["prompt_ids"]),
        output_ids=list(row["output_ids"]),
        token_origin=list(row["token_origin"]),
        calls=calls_of(row),
        num_turns=row["num_turns"],
    )


def _calls_json(calls: Sequence[CallRecord]) -> str:
    return orjson.dumps(
        [
            {
                "tool": call.tool,
                "argument": call.argument,
                "status": call.status,
                "turn": call.turn,
                "result_chars": len(call.text),
                **({"note": call.note} if call.note else {}),
                **({"sources": call.sources} if call.sources else {}),
            }
            for call in calls
        ]
    ).decode()
