"""Build the pool of one question as a tree of JSON-able data: initial rollouts, their edits, and the results.

A node is a trajectory: its `key`, columns of its row, the `method` that decided the verdict, the `usage` of all roles,
its result in `sft_rows` (`sft`: whether it is a `row`, and the reasons why not; None if it was not read), whether it is
the `chosen` one, and what was tried on it: `edits` are nodes, `without_result` are applications without a trajectory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.datagen.pools.rows import tokens_of
from treadle.environments.settings import DEFAULT_TYPE
from treadle.environments.stored_settings import environment_label
from treadle.tasks.inspection.rows import environment_type_of, rows_with

_TRAJECTORY = (
    "rollout_key", "sample_index", "operator", "round", "parents", "edit_step", "edit_text", "status", "correct",
    "score", "prediction", "judge", "calls_requested", "num_turns", "model", "models", "seed", "usage",
)  # fmt: skip
Tree = dict[str, Any]

_EVENT = ("event_index", "round", "operator", "parent", "outcome", "reason", "reply", "error", "rollout_key", "usage")
_COPIED = (
    "round", "operator", "edit_step", "edit_text", "status", "correct", "score", "prediction", "calls_requested",
    "num_turns", "model", "seed",
)  # fmt: skip


def pool_trees(run: Run, question: Mapping[str, Any], chosen: str | None = None) -> Iterator[tuple[Address, str, Tree]]:
    """Yield the pool of a question in each instance of `pools` that has one, with a one-line summary.

    A pool is its row of `pool_questions` with parsed usage; `trajectories` are the nodes of initial rollouts, and
    `without_result` lists those that produced no trajectory. `chosen`: key of a trajectory to mark.
    """
    question_key = question["question_key"]
    outcomes = dict(rows_with(run, "pool_questions", "question_key", question_key))
    if not outcomes:
        return
    trajectories = _by_address(rows_with(run, "pools", "question_key", question_key, _TRAJECTORY))
    events = _by_address(rows_with(run, "pool_events", "question_key", question_key, _EVENT))
    for address, row in outcomes.items():
        usage = orjson.loads(row["usage"])
        sft_outcomes = _sft_outcomes(run, question_key, address.iteration)
        tree = _build_tree(trajectories.get(address, []), events.get(address, []), sft_outcomes, chosen)
        kind = _kind(run, address, question["environment"])
        error = f" ({row['error']})" if row["error"] else ""
        label = (
            f"pool by {address}{kind}: {row['status']}{error}; {row['num_rounds']} rounds, "
            f"{row['num_trajectories']} trajectories, {row['num_correct']} right; {tokens_of(usage):,} tokens"
        )
        yield address, label, {**row, "usage": usage, **tree}


def _kind(run: Run, address: Address, environment: str) -> str:
    label = environment_label(environment, environment_type_of(run, address, environment))
    return "" if label == DEFAULT_TYPE else f" in {label}"


def _build_tree(
    rows: list[Tree], events: list[Tree], sft_outcomes: Mapping[str, Tree], chosen: str | None
) -> dict[str, list[Tree]]:
    nodes: dict[str, Tree] = {}
    roots: list[Tree] = []
    without_result: list[Tree] = []
    for row in sorted(rows, key=lambda row: row["sample_index"]):
        key = row["rollout_key"]
        nodes[key] = node = {
            "key": key,
            **{name: row[name] for name in _COPIED},
            "models": orjson.loads(row["models"]),
            "method": orjson.loads(row["judge"])["method"],
            "usage": orjson.loads(row["usage"]),
            "sft": sft_outcomes.get(key),
            "chosen": key == chosen,
            "edits": [],
            "without_result": [],
        }
        parent = next((nodes[one] for one in row["parents"] if one in nodes), None)
        (parent["edits"] if parent else roots).append(node)
    for event in sorted(events, key=lambda event: event["event_index"]):
        if event["outcome"] != "produced":
            parent = nodes.get(event["parent"])
            (parent["without_result"] if parent else without_result).append(_event_without_result(event))
    return {"trajectories": roots, "without_result": without_result}


def _event_without_result(event: Tree) -> Tree:
    """Return an operator application, or a finding shared by several operators, that produced no trajectory.

    `outcome` is `found`, `duplicate`, `rejected` or `failed`, `reply` the rejected reply of the model, and
    `duplicate_of` the key of the trajectory that it duplicates.
    """
    names = ("round", "operator", "outcome", "reason", "reply", "error")
    return {
        **{name: event[name] for name in names},
        "duplicate_of": event["rollout_key"],
        "num_tokens": tokens_of(orjson.loads(event["usage"])),
    }


def _sft_outcomes(run: Run, question_key: str, iteration: int) -> dict[str, Tree]:
    """Return the result of each trajectory in `sft_rows` of the iteration, by trajectory key."""
    columns = ("rollout_key", "reason", "reasons")
    rejected = rows_with(run, "sft_rejections", "question_key", question_key, columns, iteration=iteration)
    sft_outcomes = {
        row["rollout_key"]: {"row": False, "reasons": row["reasons"] or [row["reason"]]} for _, row in rejected
    }
    taken = rows_with(run, "sft_rows", "question_key", question_key, ("rollout_key",), iteration=iteration)
    return sft_outcomes | {row["rollout_key"]: {"row": True, "reasons": []} for _, row in taken}


def _by_address(rows: Iterator[tuple[Address, dict[str, Any]]]) -> dict[Address, list[dict[str, Any]]]:
    found: dict[Address, list[dict[str, Any]]] = {}
    for address, row in rows:
        found.setdefault(address, []).append(row)
    return found
