"""Compute mean usage per unit from earlier results of the same stage, finished or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from treadle.core.errors import TreadleError
from treadle.core.runs.address import Address, phase_of
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.pools.rows import total_usage
from treadle.datagen.pools.settings import PoolsSettings
from treadle.eval.config import ScoresSettings
from treadle.rl.curriculum import MAX_PHASES
from treadle.tasks.estimate.cost_model import ExpectedUsage

_MAX_SAMPLED = 500
"""Maximum number of finished units of an unfinished stage that the mean is taken of."""


@dataclass(frozen=True, slots=True)
class MeanUsage:
    """Calls and tokens of a unit by role, averaged, and their basis."""

    roles: Mapping[str, Mapping[str, float]]
    basis: str
    measured: bool = True


def measured(item: Instance, run: Run | None) -> MeanUsage | None:
    """Return the means of the same stage in this run: from a record, else from the finished part of an attempt."""
    if run is None:
        return None
    try:
        return mean_of_records(item, run) or _mean_of_journal(item, run)
    except (TreadleError, KeyError, TypeError, ValueError):
        return None  # Written by another version: use the cost model instead.


def mean_of_records(item: Instance, run: Run) -> MeanUsage | None:
    """Return the mean usage in the most similar result of the stage; for `rl`, in rollouts of a phase."""
    stage = "rollouts" if item.stage.name == "rl" else item.stage.name
    same = [record for record in run.records() if record.stage == stage and record.imported_from is None]
    if item.stage.name == "rl":
        # Rollouts of an evaluated model differ: other questions, or greedy sampling.
        same = [record for record in same if phase_of(Address.parse(record.address).qualifier)]
    like = replace(item.address, stage=stage)
    for record in sorted(same, key=lambda record: _dissimilarity(Address.parse(record.address), like)):
        metrics = record.metrics
        if record.stage == "pools" and metrics["num_questions"]:
            return _mean(metrics["usage"], metrics["num_questions"], f"measured in {record.address}", "questions")
        if record.stage == "scores" and metrics.get("usage") and not metrics["num_judgements_missing"]:
            return _mean(metrics["usage"], metrics["num_rollouts"], f"measured in {record.address}", "rollouts")
        if record.stage == "rollouts" and metrics["num_rollouts"]:
            return _mean(_usage_of(metrics), metrics["num_rollouts"], f"measured in {record.address}", "rollouts")
    return None


def _dissimilarity(address: Address, like: Address) -> tuple[bool, int]:
    """Return a sort key of how dissimilar two instances are: equal addresses first, then near phases."""
    phase, wanted = phase_of(address.qualifier), phase_of(like.qualifier)
    if phase is None or wanted is None:
        return address != like, 0 if phase == wanted else MAX_PHASES
    return address != like, abs(phase - wanted)


def _mean_of_journal(item: Instance, run: Run) -> MeanUsage | None:
    attempts = run.attempts(item.address)
    if not attempts:
        return None
    if isinstance(item.settings, ScoresSettings):
        return None  # Finished units are judgements; they do not show how many a rollout needs.
    rows = [
        orjson.loads(row) for row in run.shards(item.address, attempts[-1].journal_name).finished_rows(_MAX_SAMPLED)
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
    """Return the usage of a rollout, or of a whole stage, from its row or its metrics."""
    from treadle.agent.tools.search import SearchTool

    own = {"calls": counts["num_turns"], **{name: counts[name] for name in ("prompt_tokens", "completion_tokens")}}
    if not counts.get("summarizer_prompt_tokens"):
        return {"policy": own}
    tokens = {name: counts[f"summarizer_{name}"] for name in ("prompt_tokens", "completion_tokens")}
    tools = counts["tools"]
    executed = {one["tool"]: one for one in tools} if isinstance(tools, list) else tools
    return {"policy": own, "summarizer": {"calls": executed[SearchTool.name]["executed"], **tokens}}


def _mean(usage: Mapping[str, Mapping[str, int]], count: int, where: str, units: str) -> MeanUsage:
    roles = {role: {name: value / count for name, value in used.items()} for role, used in usage.items()}
    return MeanUsage(roles, f"{where} ({count:,} {units})")


def mean_usage(item: Instance, run: Run | None, modelled: ExpectedUsage, what: str) -> MeanUsage:
    """Return the measured mean usage of a unit, else the usage by the cost model, `modelled`; `what` names the unit."""
    basis = f"nothing measured yet: the cost model of {what}"
    return measured(item, run) or MeanUsage(modelled.roles, basis, measured=False)
