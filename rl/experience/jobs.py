"""Define the jobs of the stage `experience`: batches of rollouts of one task of the split `train`."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.jobs.keys import job_key
from treadle.agent.role_settings import RoleSettings
from treadle.core.config import semantic_dump
from treadle.core.runs.stage import Rows
from treadle.environments.rollouts.rows import FAILED
from treadle.rl.experience.prompts import PlayedRollout
from treadle.rl.experience.settings import AuthorOptions, ExperienceSettings
from treadle.rl.preferences.conversations import conversation_before

CONTENT_VERSION = 1
"""Version in the key of each job; increment it if the prompts change, or how replies are read."""
_AFTERWARDS = ("similarity",)
"""Options that are applied after records have been written, so they are not part of a job's key."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """Rollouts of one task that are summarised together.

    Attributes:
        key: Key of the job, under which the journal stores its replies and result.
        question_key: Key of the task.
        played: The rollouts.
    """

    key: str
    question_key: str
    played: Sequence[PlayedRollout]


class BatchJobs:
    """Iterable of the batches of all rollouts; each iteration reads the tables again."""

    def __init__(self, settings: ExperienceSettings, inputs: Mapping[str, tuple[Rows, ...]]) -> None:
        self._size = settings.options.batch_size
        self._rollouts = inputs.get("rollouts", ()) if settings.options.initialise else ()
        self._splits = {
            row["question_key"]: row["split"]
            for table in inputs.get("questions", ())
            for row in table.rows(("question_key", "split"))
        }
        self._scores = {
            row["rollout_key"]: row["score"]
            for table in inputs.get("scores", ())
            for row in table.rows(("rollout_key", "score"))
        }
        self._shared = _shared(settings, inputs)
        self.left_out: Counter[str] = Counter()
        """Reason -> number of rollouts that are not summarised; complete after an iteration over all jobs."""

    @property
    def held_out(self) -> frozenset[str]:
        """Keys of the tasks that may not be trained on."""
        return frozenset(key for key, split in self._splits.items() if split != "train")

    def __iter__(self) -> Iterator[BatchJob]:
        self.left_out.clear()
        seen: set[str] = set()
        rows = (
            row
            for table in self._rollouts
            for row in table.rows(("rollout_key", "question_key", "status", "first_messages", "segments"))
            if self._is_used(row)
        )
        for question_key, own in itertools.groupby(rows, lambda row: str(row["question_key"])):
            for batch in _batches(map(self._played, own), self._size):
                told = [[one.messages, one.score] for one in batch]
                key = job_key(self._shared, question_key, told)
                if key in seen:
                    self.left_out["repeated"] += len(batch)
                    continue
                seen.add(key)
                yield BatchJob(key, question_key, batch)

    def _is_used(self, row: Mapping[str, Any]) -> bool:
        """Return whether a rollout is summarised: its task is in the split `train`, it has a score and did not fail."""
        reason = ""
        if self._splits.get(row["question_key"]) != "train":
            reason = "held_out"
        elif row["status"] == FAILED:
            reason = "failed"
        elif self._scores.get(row["rollout_key"]) is None:
            reason = "no_score"
        if reason:
            self.left_out[reason] += 1
        return not reason

    def _played(self, row: Mapping[str, Any]) -> PlayedRollout:
        messages, segments = orjson.loads(row["first_messages"]), orjson.loads(row["segments"])
        return PlayedRollout(conversation_before(messages, segments, sys.maxsize), self._scores[row["rollout_key"]])


def _batches(played: Iterator[PlayedRollout], size: int) -> Iterator[tuple[PlayedRollout, ...]]:
    """Yield the rollouts in batches of at most `size`."""
    while batch := tuple(itertools.islice(played, size)):
        yield batch


def _shared(settings: ExperienceSettings, inputs: Mapping[str, tuple[Rows, ...]]) -> str:
    """Return a digest of what all jobs have in common."""
    author = author_digest((settings.summariser, settings.validator), settings.options, settings.seed)
    return job_key(author, settings.options.workspace, [table.digest for table in inputs.get("checkpoint", ())])


def author_digest(roles: Iterable[RoleSettings | None], options: AuthorOptions, seed: int) -> str:
    """Return a digest of what decides which experience is written from rollouts, besides the rollouts."""
    dumped = semantic_dump(options)
    deciding = {name: dumped[name] for name in AuthorOptions.model_fields if name not in _AFTERWARDS}
    models = [None if role is None else semantic_dump(role) for role in roles]
    return job_key(CONTENT_VERSION, models, deciding, seed)
