"""Choose how many of the tasks that were made by exploring are mixed with those of the sources."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import orjson

from treadle.core.config import canonical_json
from treadle.core.errors import DataError
from treadle.core.store.buckets import draw
from treadle.datagen.exploration.rows import seed_of
from treadle.datagen.questions.sources import MixtureSettings
from treadle.environments.objectives import OBJECTIVE


def chosen_tasks(
    rows: Sequence[Mapping[str, Any]], num_originals: int, settings: MixtureSettings
) -> list[Mapping[str, Any]]:
    """Return the tasks that are mixed in, drawn and ordered by the seed of the mixture.

    `num_originals` is the number of training tasks of the sources, whether or not they are kept.
    """
    ranked = sorted(rows, key=lambda row: (draw(settings.seed, "mixture", row["question_key"]), row["question_key"]))
    share = settings.synthetic
    return ranked if isinstance(share, str) else ranked[: int(num_originals * share)]


def state_of(row: Mapping[str, Any]) -> str:
    """Return a task's payload without its objective: the state by which duplicates are found."""
    payload = orjson.loads(row["payload"])
    payload.pop(OBJECTIVE, None)
    return canonical_json(payload).decode()


def check_not_held_out(row: Mapping[str, Any], held_out: Collection[str]) -> None:
    """Raise DataError for a task that was made on the state of a held-out task."""
    seed_key = seed_of(row)
    if seed_key in held_out:
        raise DataError(
            f"the task {row['question_key']} was made by exploring the held-out task {seed_key}; the seed tasks and "
            "these questions have other splits: run questions@seed and exploration again"
        )
