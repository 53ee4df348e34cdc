"""Compute job keys, so that finished work is recognised after questions or settings change.

The key of a job is a digest of its stage's settings (without keys that only select jobs), of the checkpoints it uses,
and of the parts of the question that affect it. Rules: `docs/behaviour/runs.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from treadle.core.config import Section, differing_keys, digest_json, semantic_dump
from treadle.core.runs.stage import Rows

_SELECTION_KEYS = frozenset(
    {"samples_per_question", "max_questions", "max_questions_per_dataset", "datasets", "split", "max_error_rate"}
)
"""Keys of a stage's section that decide which jobs exist, but not the result of any job."""


@dataclass(frozen=True, slots=True)
class QuestionJob:
    """Job of a stage that works on questions. Its journal records are stored under `key` (32 hex digits)."""

    key: str
    question: Mapping[str, Any]
    sample_index: int = 0
    is_copy: bool = False
    """Whether an earlier job has the same key. Only that earlier job is run; its row is copied for this question."""


def shared_digest(settings: Section, inputs: Mapping[str, Sequence[Rows]]) -> str:
    """Return a digest of what all jobs of a stage have in common: its settings and the checkpoints it reads.

    Keys that only select jobs are left out. Environments are, too: the key of each job includes the digest of its
    environment, which does not depend on whether search results are from a web record or a live provider.
    """
    dumped = semantic_dump(settings)
    dumped.pop("environment", None)
    dumped.pop("environments", None)
    dumped["options"] = {name: value for name, value in dumped["options"].items() if name not in _SELECTION_KEYS}
    return digest_json([dumped, [table.digest for table in inputs.get("checkpoint", ())]])


T_QuestionJob = TypeVar("T_QuestionJob", bound=QuestionJob)


def unique_jobs(jobs: Iterable[T_QuestionJob]) -> Iterator[T_QuestionJob]:
    """Yield the jobs to run: the first one of each key."""
    return (job for job in jobs if not job.is_copy)


def job_key(*parts: Any) -> str:
    """Return the key of a job: a digest of `parts`, JSON-able data that must cover all that its result depends on."""
    return digest_json(list(parts))[:32]


def changed_settings(before: Any, settings: Section) -> list[str]:
    """Return the keys in which `settings` differ from `before`, the dumped settings of an earlier result.

    Keys that only select jobs are left out.
    """
    keys = (line.split(": ", 1)[0] for line in differing_keys(before, semantic_dump(settings)))
    return [key for key in keys if key.removeprefix("options.").split("[")[0] not in _SELECTION_KEYS]
