"""Build the rows of the stage `conversion`, and count them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from treadle.core.config import digest_json
from treadle.core.errors import ConfigError
from treadle.datagen.conversion.rewrites import Rewrite
from treadle.datagen.conversion.settings import ConversionSettings
from treadle.datagen.conversion.sources import ConversionSource
from treadle.datagen.texts.spans import OBSERVATION
from treadle.environments.planning.dialect import PlanningDialect

NO_REWRITE: Mapping[str, Any] = {
    "status": "rejected", "reason": "", "reasons": [], "detail": "", "text": "", "tag": OBSERVATION, "plan": "[]",
    "num_searches": 0, "num_batches": 0, "widest": 0, "num_tokens": 0, "reply": "", "num_attempts": 0,
    "prompt_tokens": 0, "completion_tokens": 0,
}  # fmt: skip
"""Columns that a job stores, with their values for a trajectory without a rewrite."""


def accepted(made: Rewrite, num_tokens: int, usage: Mapping[str, int]) -> dict[str, Any]:
    """Return the columns that a job stores for a rewrite that follows all rules."""
    plan = [{"id": one.id, "description": one.description, "depends_on": list(one.depends_on)} for one in made.nodes]
    return {
        **NO_REWRITE,
        "status": "converted",
        "text": made.text,
        "plan": orjson.dumps(plan).decode(),
        "num_searches": made.num_searches,
        "num_batches": len(made.widths),
        "widest": max(made.widths),
        "num_tokens": num_tokens,
        **usage,
    }


def refused(stored: Mapping[str, Any], reason: str, detail: str, usage: Mapping[str, int]) -> dict[str, Any]:
    """Return the columns of a trajectory without an accepted rewrite; `stored` has further values of columns."""
    return {**NO_REWRITE, **stored, "reason": reason, "reasons": [reason], "detail": detail, **usage}


def row_of(
    source: ConversionSource,
    stored: Mapping[str, Any],
    settings: ConversionSettings,
    dialect: PlanningDialect,
    *,
    job: str | None,
) -> dict[str, Any]:
    """Return the row of a trajectory.

    Raises ConfigError if the prompt of the rewrites cannot be built from the question alone.
    """
    whole = source.whole
    messages = settings.target.first_messages(replace(source.task, environment=settings.options.environment))
    if messages is None:
        raise ConfigError(
            f"conversion.environment = {settings.options.environment!r}: its prompts are known only when its tools are "
            "open; name one without `tools`"
        )
    return {
        **stored,
        "rollout_key": digest_json([whole.key, "conversion"])[:16],
        "source_key": whole.key,
        "question_key": whole.question_key,
        "dataset": whole.dataset,
        "domain": whole.domain,
        "model": settings.teacher.name,
        "source_model": whole.model,
        "first_messages": _json(messages),
        "source_messages": _json(whole.messages),
        "source_text": whole.text,
        "source_tag": whole.tag,
        "job": job,
    }


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def metrics_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return counts by status and reason, of searches, and of the teacher's tokens."""
    statuses, reasons, sums = Counter[str](), Counter[str](), Counter[str]()
    for row in rows:
        statuses[row["status"]] += 1
        if row["reason"]:
            reasons[row["reason"]] += 1
        if row["status"] == "converted":
            sums.update(searches=row["num_searches"], parallel=row["widest"] > 1, sequential=row["widest"] <= 1)
        for name in ("num_attempts", "prompt_tokens", "completion_tokens"):
            sums[name] += row[name]
    return {
        "trajectories": statuses.total(),
        **{name: sums[name] for name in ("searches", "parallel", "sequential", "num_attempts")},
        "prompt_tokens": sums["prompt_tokens"],
        "completion_tokens": sums["completion_tokens"],
        **{f"status_{name}": statuses[name] for name in ("converted", "rejected", "not_asked", "left_out", "failed")},
        **{f"reason.{name}": count for name, count in sorted(reasons.items())},
    }
