"""Build the rows of the tables of the stage `pools` from a question's evolution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from treadle.agent.contract import DEFAULT_ENVIRONMENT
from treadle.datagen.pools.events import INITIAL, PoolEvent
from treadle.environments.rollouts.rows import row_of, telemetry_of

if TYPE_CHECKING:
    from treadle.datagen.pools.evolution import Evolution
    from treadle.datagen.pools.pool import PoolEntry
    from treadle.datagen.pools.role_usage import RoleUsage

Usage = Mapping[str, Mapping[str, int]]
"""Calls, prompt_tokens and completion_tokens by role."""


def rows_of(
    question: Mapping[str, Any],
    evolution: Evolution,
    models: Mapping[str, str],
    digests: tuple[str, str],
    *,
    attempt: int,
) -> dict[str, Any]:
    """Return all rows of a question: its own, and lists of those of its pool, events and telemetry.

    `models`: role -> name of its model. `digests`: of the environment and the tokenizer.
    """
    return {
        "pool": pool_rows(question, evolution.pool, models, *digests),
        "events": event_rows(question["question_key"], evolution.events),
        "question": question_row(question, evolution),
        "telemetry": [
            telemetry_of(
                entry.key,
                attempt,
                entry.trajectory.usage.model_seconds + entry.trajectory.usage.tool_seconds,
                entry.trajectory,
            )
            for entry in evolution.pool
        ],
    }


def pool_rows(
    question: Mapping[str, Any],
    pool: Sequence[PoolEntry],
    models: Mapping[str, str],
    environment_digest: str,
    tokenizer_digest: str,
) -> list[dict[str, Any]]:
    """Return the rows of `pools`; `models` maps a role to the name of its model."""
    rows = []
    for entry in pool:
        head = {
            "rollout_key": entry.key,
            "question_key": question["question_key"],
            "dataset": question["dataset"],
            "environment": question.get("environment", DEFAULT_ENVIRONMENT),
            "domain": question["domain"],
            "model": models["policy"],
            "sample_index": entry.index,
            "operator": entry.operator,
            "parents": [entry.parent] if entry.parent else [],
            "round": entry.round,
            "seed": entry.seed,
        }
        verdict = entry.verdict
        judge = {"method": verdict.method, "raw": verdict.raw, "error": verdict.error}
        rows.append(
            {
                **row_of(head, entry.trajectory, environment_digest, tokenizer_digest),
                "prediction": entry.prediction,
                "correct": verdict.correct,
                "score": verdict.score,
                "judge": _json(judge),
                "edit_step": entry.edit_step,
                "edit_text": entry.edit_text,
                "prompts": _json(entry.prompts),
                "models": _json({role: models[role] for role in sorted(entry.usage) if role in models}),
                "usage": _json(_plain(entry.usage)),
            }
        )
    return rows


def event_rows(question_key: str, events: Sequence[PoolEvent]) -> list[dict[str, Any]]:
    """Return the rows of `pool_events`."""
    return [
        {
            "question_key": question_key,
            "event_index": index,
            "round": event.round,
            "operator": event.operator,
            "parent": event.parent.key if event.parent else "",
            "parent_correct": event.parent is not None and event.parent.correct,
            "outcome": event.outcome,
            "reason": event.reason,
            "reply": event.reply,
            "error": event.error,
            "rollout_key": event.rollout_key,
            "usage": _json(_plain(event.usage)),
        }
        for index, event in enumerate(events)
    ]


def question_row(question: Mapping[str, Any], evolution: Evolution) -> dict[str, Any]:
    """Return the row of `pool_questions`."""
    pool = evolution.pool
    spent = total_usage(
        [
            *(_plain(entry.usage) for entry in pool if entry.operator == INITIAL),
            *(_plain(event.usage) for event in evolution.events),
        ]
    )
    return {
        **_head(question),
        "status": evolution.status,
        "error": evolution.error,
        "num_rounds": evolution.num_rounds,
        "num_trajectories": len(pool),
        "num_correct": sum(entry.correct for entry in pool),
        "initial_correct": any(entry.correct for entry in pool if entry.operator == INITIAL),
        "usage": _json(spent),
    }


def failed_question_row(question: Mapping[str, Any], error: str) -> dict[str, Any]:
    """Return the row of a question that infrastructure errors kept from starting."""
    return {
        **_head(question),
        "status": "failed",
        "error": error,
        "num_rounds": 0,
        "num_trajectories": 0,
        "num_correct": 0,
        "initial_correct": False,
        "usage": _json({}),
    }


def total_usage(parts: Iterable[Usage]) -> dict[str, dict[str, int]]:
    """Return the sum by role, with roles in alphabetical order."""
    totals: dict[str, Counter[str]] = {}
    for part in parts:
        for role, usage in part.items():
            totals.setdefault(role, Counter()).update(usage)
    return {role: dict(totals[role]) for role in sorted(totals)}


def tokens_of(usage: Usage) -> int:
    """Return the number of tokens of all roles."""
    return sum(role["prompt_tokens"] + role["completion_tokens"] for role in usage.values())


def _head(question: Mapping[str, Any]) -> dict[str, Any]:
    return {name: question[name] for name in ("question_key", "dataset", "domain")}


def _plain(usage: Mapping[str, RoleUsage]) -> dict[str, dict[str, int]]:
    return {role: asdict(usage[role]) for role in sorted(usage)}


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
