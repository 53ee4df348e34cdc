"""Build and read rows of the `rollouts` table: keys, seeds and trajectories."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import orjson

from treadle.agent.contract import DEFAULT_ENVIRONMENT, HIDDEN_COLUMNS, CallRecord, Ledger, Outcome
from treadle.agent.dialects.base import Segment
from treadle.agent.tools.schema import ToolSchema
from treadle.agent.trajectory import Sample, Trajectory, by_sample, spans_of
from treadle.core.config import digest_json
from treadle.core.seeds import derive_seed
from treadle.environments.rollouts.tool_counts import seconds_by_tool, tool_counts

FRESH = "rollout"
"""Operator of a trajectory that was sampled from the start."""
FAILED = "failed"
"""Status of a row that was accepted without a trajectory, because infrastructure kept the rollout from finishing."""


def rollout_key(question_key: str, model: str, sample_index: int, operator: str = FRESH) -> str:
    """Return the key of a rollout within a run (16 hex digits)."""
    return digest_json([question_key, model, sample_index, operator])[:16]


def question_content_key(question: Mapping[str, Any]) -> str:
    """Return a key (16 hex digits) of the content of a row of `questions` that its rollouts depend on.

    That is text and choices; gold answers and payload only if they are in the row because episodes read them.
    """
    hidden = [question[name] for name in HIDDEN_COLUMNS if name in question]
    return digest_json([question["question"], list(question["choices"]), *hidden])[:16]


def rollout_seed(seed: int, content_key: str, model: str, sample_index: int) -> int:
    """Return the seed of one rollout: from the run's seed, the question's content, the model and the sample index.

    Gold answers that no episode reads are excluded: if they change, a rollout is scored again but not sampled again.
    """
    return derive_seed(seed, content_key, model, sample_index)


def group_seed(seed: int, content_key: str) -> int:
    """Return the seed that all rollouts of a question share."""
    return derive_seed(seed, content_key, "", -1)


def head_of_row(question: Mapping[str, Any], model: str, sample_index: int, seed: int) -> dict[str, Any]:
    """Return the columns that are known before a rollout starts; `seed` is that of the rollout."""
    question_key = question["question_key"]
    return {
        "rollout_key": rollout_key(question_key, model, sample_index),
        "question_key": question_key,
        "dataset": question["dataset"],
        "domain": question["domain"],
        "environment": question.get("environment", DEFAULT_ENVIRONMENT),
        "model": model,
        "sample_index": sample_index,
        "operator": FRESH,
        "parents": [],
        "round": 0,
        "seed": seed,
    }


def row_of(
    head: Mapping[str, Any], trajectory: Trajectory, environment_digest: str, tokenizer_digest: str
) -> dict[str, Any]:
    """Return a row of the `rollouts` table. Calls are counted from the trajectory's call records only."""
    ledger = Ledger(trajectory.calls)
    return {
        **head,
        "status": trajectory.status,
        "truncated": trajectory.truncated,
        "error": None,
        "first_messages": _messages_json(trajectory.first_messages),
        "tool_schemas": _schemas_json(trajectory),
        "text": trajectory.text,
        "segments": orjson.dumps(trajectory.segments).decode(),
        "samples": _sample_rows(trajectory),
        "turn_rewards": trajectory.turn_rewards,
        "reward": trajectory.reward,
        "outcome": None if trajectory.outcome is None else orjson.dumps(trajectory.outcome).decode(),
        "tool_calls": _calls_json(trajectory.calls),
        "num_turns": trajectory.num_turns,
        "calls_requested": ledger.requested.total(),
        "calls_executed": ledger.executed.total(),
        "tools": tool_counts(ledger),
        "failed_calls": ledger.failed.total(),
        "prompt_tokens": trajectory.usage.prompt_tokens,
        "completion_tokens": trajectory.usage.completion_tokens,
        "environment_digest": environment_digest,
        "tokenizer_digest": tokenizer_digest,
    }


def failed_row(head: Mapping[str, Any], error: str, environment_digest: str, tokenizer_digest: str) -> dict[str, Any]:
    """Return the row of a rollout that infrastructure kept from finishing: status `failed`, and no text."""
    empty = Trajectory(FAILED, "", [], [], [], 0)
    return {**row_of(head, empty, environment_digest, tokenizer_digest), "error": error}


def telemetry_of(key: str, attempt: int, seconds: float, trajectory: Trajectory) -> dict[str, Any]:
    """Return a row of the `rollout_telemetry` table."""
    usage = trajectory.usage
    return {
        "rollout_key": key,
        "attempt": attempt,
        "finished_at": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        "seconds": seconds,
        "model_seconds": usage.model_seconds,
        "tool_seconds": usage.tool_seconds,
        "seconds_by_tool": seconds_by_tool(trajectory.calls),
        "turns": [asdict(turn) for turn in usage.turns],
        "call_times": [
            {"id": call.id, "started_s": call.started_s, "seconds": call.seconds}
            for call in trajectory.calls
            if call.executed and call.id
        ],
        "num_requests": usage.num_requests,
        "num_retries": usage.num_retries,
        "endpoint": usage.endpoint,
        "wasted_tokens": usage.wasted_tokens,
        "summarizer_prompt_tokens": sum(call.prompt_tokens for call in trajectory.calls),
        "summarizer_completion_tokens": sum(call.completion_tokens for call in trajectory.calls),
        "num_restarts": trajectory.usage.num_restarts,
        "voided_tokens": trajectory.usage.voided_tokens,
        "odd_answers": orjson.dumps(usage.notes, option=orjson.OPT_SORT_KEYS).decode() if usage.notes else "{}",
    }


def calls_of(row: Mapping[str, Any]) -> list[CallRecord]:
    """Return the call records of a stored rollout, without result texts, which are in its segments."""
    return [
        CallRecord(
            call["tool"],
            call["argument"],
            call["status"],
            call["turn"],
            note=call.get("note", ""),
            id=call.get("id", ""),
        )
        for call in orjson.loads(row["tool_calls"])
    ]


def trajectory_of(row: Mapping[str, Any]) -> Trajectory:
    """Return the trajectory of a stored rollout, to show it or to continue it."""
    schemas = orjson.loads(row["tool_schemas"])
    return Trajectory(
        status=row["status"],
        text=row["text"],
        segments=[Segment(**segment) for segment in orjson.loads(row["segments"])],
        samples=[Sample.from_row(sample) for sample in row["samples"]],
        calls=calls_of(row),
        num_turns=row["num_turns"],
        truncated=row["truncated"],
        turn_rewards=list(row["turn_rewards"]),
        outcome=None if row["outcome"] is None else Outcome(**orjson.loads(row["outcome"])),
        first_messages=tuple(orjson.loads(row["first_messages"] or "[]")),
        tools=tuple(map(_schema, schemas)),
        num_added_tools=sum(one.get("added", False) for one in schemas),
    )


def first_tools(tool_schemas: str) -> list[ToolSchema]:
    """Return the tools that the model was given before its first turn, from the column `tool_schemas`."""
    return [_schema(one) for one in orjson.loads(tool_schemas) if not one.get("added")]


def plain_schemas(tool_schemas: str) -> str:
    """Return the column `tool_schemas` without the marks of tools that were added during the episode."""
    return _json([_plain_schema(_schema(one)) for one in orjson.loads(tool_schemas)])


def _schema(one: Mapping[str, Any]) -> ToolSchema:
    return ToolSchema(one["name"], one["description"], one["parameters"])


def _plain_schema(tool: ToolSchema) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def _schemas_json(trajectory: Trajectory) -> str:
    num_first = len(trajectory.tools) - trajectory.num_added_tools
    return _json(
        [
            {**_plain_schema(tool), **({"added": True} if place >= num_first else {})}
            for place, tool in enumerate(trajectory.tools)
        ]
    )


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _sample_rows(trajectory: Trajectory) -> list[dict[str, Any]]:
    segments = itertools.chain(by_sample(trajectory.segments), itertools.repeat([]))
    return [
        {
            "prompt_ids": sample.prompt_ids,
            "training_prompt_ids": sample.training_prompt_ids,
            "ids": sample.ids,
            "origins": sample.origins,
            "turn_starts": sample.turn_starts,
            "spans": spans_of(own) if sample.ids else [],
        }
        for sample, own in zip(trajectory.samples, segments, strict=False)
    ]


def _messages_json(messages: Sequence[Mapping[str, str]]) -> str | None:
    kept = [{"role": message["role"], "content": message["content"]} for message in messages]
    return orjson.dumps(kept).decode() if kept else None


def _calls_json(calls: Sequence[CallRecord]) -> str:
    return orjson.dumps(
        [
            {
                **({"id": call.id} if call.id else {}),
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
