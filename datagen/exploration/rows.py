"""Build the rows of the stage `exploration`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from treadle.core.config import canonical_json
from treadle.datagen.exploration.drafts import Draft
from treadle.datagen.exploration.jobs import domain_of
from treadle.datagen.exploration.settings import BY_ENVIRONMENT, ExplorationSettings
from treadle.datagen.questions.rows import content_key
from treadle.environments.objectives import Objective, with_objective

SOURCE = "exploration"
"""Value of `source_file` of the tasks that the stage makes."""
DATASET_SUFFIX = "-explored"
"""Suffix of the data set of tasks that the stage makes; before it is the name of the seed task's data set."""
SEED_KEY = "seed_key"
"""Field of `meta` of a task that the stage makes, with the key of its seed task."""


def task_row(
    draft: Draft, seed_row: Mapping[str, Any], replayed: Mapping[str, Any], settings: ExplorationSettings
) -> dict[str, Any]:
    """Return the row of a draft that the solver solved; `replayed` is the record of its replay.

    The position in the table is set when it is written.
    """
    evaluator, kind = settings.options.grader, settings.environment_of(seed_row).type
    objective = Objective(evaluator, replayed["reference"])
    payload = canonical_json(with_objective(orjson.loads(seed_row["payload"]), objective)).decode()
    answers = [replayed["prediction"]] if replayed["prediction"] else []
    name = seed_row["environment"]
    return {
        "question_key": content_key(draft.query, answers, (), kind=kind, payload=payload, environment=name),
        "dataset": f"{seed_row['dataset'][: 128 - len(DATASET_SUFFIX)]}{DATASET_SUFFIX}",
        "domain": domain_of(seed_row),
        "question": draft.query,
        "answers": answers,
        "choices": [],
        "split": "train",
        "source_file": SOURCE,
        "source_row": 0,
        "meta": canonical_json({SEED_KEY: draft.seed_key, "objective_key": draft.key}).decode(),
        "format": None,
        "scorer": None if evaluator == BY_ENVIRONMENT else evaluator,
        "search": seed_row["search"],
        "environment": name,
        "payload": payload,
    }


def seed_of(question: Mapping[str, Any]) -> str | None:
    """Return the key of the seed task of a row of `questions` that was made by exploring; None for other rows."""
    if question["source_file"] != SOURCE:
        return None
    found: str | None = orjson.loads(question["meta"]).get(SEED_KEY)
    return found


def objective_row(draft: Draft, status: str, reason: str = "") -> dict[str, Any]:
    """Return the row of a draft in `objectives`, without the columns of a replay."""
    return {
        "objective_key": draft.key,
        "seed_key": draft.seed_key,
        "exploration": draft.exploration,
        "query": draft.query,
        "confidence": draft.confidence,
        "status": status,
        "reason": reason,
        "drafted_reference": orjson.dumps(draft.reference).decode(),
        "reference": "[]",
        "score": None,
        "replay_status": None,
        "question_key": None,
    }
