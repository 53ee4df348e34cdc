"""What a unit used on average where the same stage was run already, finished or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from treadle.core.errors import TreadleError
from treadle.core.runs import Run
from treadle.core.stage import Address, Instance
from treadle.datagen.pool_rows import total_usage
from treadle.datagen.pools_settings import PoolsSettings
from treadle.eval.config import ScoresSettings
from treadle.rl.curriculum import MAX_PHASES, phase_of

_MOST_SAMPLED = 500
"""Finished units that are read of an unfinished stage to take their mean."""


@dataclass(frozen=True, slots=True)
class Mean:
    """Role -> mean calls and tokens of a unit, and what they are the mean of."""

    roles: Mapping[str, Mapping[str, float]]
    basis: str
    measured: bool = True


def measured(item: Instance, run: Run | None) -> Mean | None:
    """Means of the same stage in this run: of its record, else of what is finished of it."""
    if run is None:
        return None
    try:
        return mean_of_records(item, run) or _mean_of_journal(item, run)
    except (TreadleError, KeyError, TypeError, ValueError):
        return None  # Left by another version: then it is reckoned.


def mean_of_records(item: Instance, run: Run) -> Mean | None:
    """Of the result that is most like what the instance will make; a training's are rollouts of phases."""
    stage = "rollouts" if item.stage.name == "rl" else item.stage.name
    same = [record for record in run.records() if record.stage == stage and record.imported_from is None]
    if item.stage.name == "rl":
        # Those of a model that is measured, greedily or on other questions, are of another kind.
        same = [record for record in same if phase_of(Address.parse(record.address).qualifier)]
    like = replace(item.address, stage=stage)
    for record in sorted(same, key=lambda record: _unlike(Address.parse(record.address), like)):
        metrics = record.metrics
        if record.stage == "pools" and metrics["num_questions"]:
            return _mean(metrics["usage"], metrics["num_questions"], f"measured in {record.address}", "questions")
        if record.stage == "scores" and metrics.get("usage") and _is_of_all(metrics):
            return _mean(metrics["usage"], metrics["num_rollouts"], f"measured in {record.address}", "rollouts")
        if record.stage == "rollouts" and metrics["num_rollouts"]:
            return _mean(_usage_of(metrics), metrics["num_rollouts"], f"measured in {record.address}", "rollouts")
    return None


def _is_of_all(metrics: Mapping[str, Any]) -> bool:
    """Whether the usage is that of all judgements; an older version counted only what was not taken over."""
    return not metrics["num_judgements_missing"] and not metrics.get("num_judgements_reused")


def _unlike(address: Address, like: Address) -> tuple[bool, int]:
    """How little the rollouts of one instance say of another's: its own first, then those of near phases."""
    phase, wanted = phase_of(address.qualifier), phase_of(like.qualifier)
    if phase is None or wanted is None:
        return address != like, 0 if phase == wanted else MAX_PHASES
    return address != like, abs(phase - wanted)


def _mean_of_journal(item: Instance, run: Run) -> Mean | None:
    attempts = run.attempts(item.address)
    if not attempts:
        return None
    if isinstance(item.settings, ScoresSettings):
        return None  # What is finished are judgements; how many a rollout has is not known from them.
    rows = [
        orjson.loads(row) for row in run.shards(item.address, attempts[-1].journal_name).finished_rows(_MOST_SAMPLED)
    ]
    if not rows:
        return None
    where = f"measured in what is finished of {item.address}"
    if isinstance(item.settings, PoolsSettings):
        usage = total_usage(orjson.loads(row["question"]["usage"]) for row in rows)
        return _mean(usage, len(rows), where, "questions")
    usage = total_usage(_usage_of({**row["telemetry"], **row["row"]}) for row in rows)
    return _mean(usage, len(rows), where, "rollouts")


def _usage_of(counts: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Usage of a rollout, or of all of a stage, from its row or its metrics."""
    own = {"calls": counts["num_turns"], **{name: counts[name] for name in ("prompt_tokens", "completion_tokens")}}
    if not counts.get("summarizer_prompt_tokens"):
        return {"policy": own}
    tokens = {name: counts[f"summarizer_{name}"] for name in ("prompt_tokens", "completion_tokens")}
    return {"policy": own, "summarizer": {"calls": counts["calls_executed"], **tokens}}


def _mean(usage: Mapping[str, Mapping[str, int]], count: int, where: str, units: str) -> Mean:
    roles = {role: {name: value / count for name, value in used.items()} for role, used in usage.items()}
    return Mean(roles, f"{where} ({count:,} {units})")
