"""Define the jobs of the stage `pools`: one per question, found again in earlier results by its key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import orjson

from treadle.agent.jobs.keys import QuestionJob, job_key, shared_digest
from treadle.core.errors import StageFailed
from treadle.core.runs.stage import EarlierResult, Rows, StageJobs
from treadle.datagen.pools.settings import PoolsSettings
from treadle.datagen.pools.tables import POOL_EVENTS, POOL_QUESTIONS, POOLS
from treadle.environments.rollouts.settings import JOB_COLUMNS, selected_questions
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY
from treadle.environments.scorers.registry import compares_answers

CONTENT_VERSION = 2
"""Version in the key of each job; increment it for a change in how pools are made that raises no version of the
environment or of an operator. Earlier pools are then not reused."""
_COLUMNS = (*JOB_COLUMNS, "answers")
_DEPENDS_ON = ("question_key", "question", "choices", "answers", "domain", "scorer", "format", "search")
"""Columns of a question that its pool depends on."""


def pool_jobs(settings: PoolsSettings, inputs: Mapping[str, Sequence[Rows]]) -> Iterator[QuestionJob]:
    """Yield a job for each selected question, in order.

    A job's key includes the gold answers, because the processing of a trajectory depends on whether it is right. Raises
    DataError for a question of an environment that the settings do not have.
    """
    digests, shared = settings.environment_digests(), dict[str, str]()
    for question in selected_questions(settings.options, inputs["questions"], _COLUMNS):
        if question["scorer"] is not None and not compares_answers(question["scorer"]):
            raise StageFailed(
                f"pools judges answers, but the scorer {question['scorer']} decides about the tasks of "
                f"{question['dataset']}; leave it out of pools.datasets, or make rows from rollouts: "
                "sft_rows.trajectories = 'rollouts'"
            )
        digest, name = digests.of(question), question["environment"]
        if name not in shared:
            shared[name] = shared_digest(settings.alone(name), inputs)
        asked = [question[column] for column in _DEPENDS_ON]
        yield QuestionJob(job_key(shared[name], CONTENT_VERSION, digest, *asked), question)


def _owners(result: EarlierResult) -> Iterator[str]:
    return (row["job"] for row in result.rows(POOL_QUESTIONS.kind, ("job",)) if row["job"] is not None)


def _records(result: EarlierResult) -> Iterator[tuple[str, bytes]]:
    """Yield the journal records from which a result's rows were made.

    All tables of a result are in the order of its questions.
    """
    pools = groupby(result.rows(POOLS.kind), itemgetter("question_key"))
    events = groupby(result.rows(POOL_EVENTS.kind), itemgetter("question_key"))
    measured = result.telemetry(ROLLOUT_TELEMETRY.kind)
    of_pools, of_events, next_measured = next(pools, None), next(events, None), next(measured, None)
    for question in result.rows(POOL_QUESTIONS.kind):
        key, parts = question.pop("job"), {"pool": list[Any](), "events": list[Any](), "telemetry": list[Any]()}
        if of_pools is not None and of_pools[0] == question["question_key"]:
            parts["pool"] = list(of_pools[1])
            of_pools = next(pools, None)
        if of_events is not None and of_events[0] == question["question_key"]:
            parts["events"] = list(of_events[1])
            of_events = next(events, None)
        for row in parts["pool"]:
            if next_measured is not None and next_measured["rollout_key"] == row["rollout_key"]:
                parts["telemetry"].append(next_measured)
                next_measured = next(measured, None)
        if key is not None:
            yield key, orjson.dumps({**parts, "question": question})


POOL_JOBS = StageJobs(noun="questions", of=pool_jobs, owners=_owners, records=_records)
