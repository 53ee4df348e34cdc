"""Define the jobs of the stage `rollouts`: one per rollout, found again in earlier results by its key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import orjson

from treadle.agent.contract import HIDDEN_COLUMNS
from treadle.agent.jobs.keys import QuestionJob, job_key, shared_digest
from treadle.agent.trajectory import STATUSES
from treadle.core.runs.stage import EarlierResult, Rows, StageJobs
from treadle.environments.mixture import find_environment
from treadle.environments.registry import traits_of
from treadle.environments.rollouts.rows import question_content_key
from treadle.environments.rollouts.settings import RolloutsSettings, job_columns, selected_questions
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY, ROLLOUTS


@dataclass(frozen=True, slots=True)
class RolloutJob(QuestionJob):
    """Job of one rollout; `content_key` is that of its question, from which its seeds derive."""

    content_key: str = ""


def rollout_jobs(settings: RolloutsSettings, inputs: Mapping[str, Sequence[Rows]]) -> Iterator[RolloutJob]:
    """Yield the jobs of all rollouts that settings and questions define, in the order of their rows.

    Questions with the same content have the same seeds and share their jobs; gold answers that episodes do not read are
    not part of the content. Raises DataError for a question of an environment that the settings do not have.
    """
    digests, environments, shared = settings.environment_digests(), settings.named_environments(), dict[str, str]()
    hiding = {name for name, one in environments.items() if not traits_of(one).reads_payload}
    seen: set[bytes] = set()
    columns = job_columns(reads_payload=len(hiding) < len(environments))
    for question in selected_questions(settings.options, inputs["questions"], columns):
        name = question["environment"]
        if name not in shared:
            find_environment(environments, name)
            shared[name] = shared_digest(settings.alone(name), inputs)
        if name in hiding:
            question = _without_hidden(question)
        content_key = question_content_key(question)
        question_content = [content_key, digests.of(question), question["search"]]
        digest = bytes.fromhex(job_key(*question_content))
        is_copy = digest in seen
        seen.add(digest)
        for sample_index in range(settings.options.samples_per_question):
            key = job_key(shared[name], *question_content, sample_index)
            yield RolloutJob(key, question, sample_index, is_copy, content_key)


def _without_hidden(question: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in question.items() if name not in HIDDEN_COLUMNS}


def _owners(result: EarlierResult) -> Iterator[str]:
    return (row["job"] for row in result.rows(ROLLOUTS.kind, ("job",)) if row["job"] is not None)


def _owners_by_status(result: EarlierResult, statuses: Set[str]) -> Iterator[str]:
    rows = result.rows(ROLLOUTS.kind, ("job", "status"))
    return (row["job"] for row in rows if row["job"] is not None and row["status"] in statuses)


def _gaps(result: EarlierResult) -> Iterator[tuple[int, str, bytes]]:
    for position, row in enumerate(result.rows(ROLLOUTS.kind)):
        if row.pop("job") is None:
            yield position, row["status"], orjson.dumps({"row": row, "telemetry": None})


def _records(result: EarlierResult) -> Iterator[tuple[str, bytes]]:
    """Yield job key and journal record of each rollout of an earlier result, rebuilt from rows and telemetry.

    The result's telemetry is in the order of its rows.
    """
    row_telemetry = result.telemetry(ROLLOUT_TELEMETRY.kind)
    next_measured = next(row_telemetry, None)
    for row in result.rows(ROLLOUTS.kind):
        telemetry = None
        if next_measured is not None and next_measured["rollout_key"] == row["rollout_key"]:
            telemetry, next_measured = next_measured, next(row_telemetry, None)
        if (key := row.pop("job")) is not None:
            yield key, orjson.dumps({"row": row, "telemetry": telemetry})


ROLLOUT_JOBS = StageJobs(
    noun="rollouts",
    of=rollout_jobs,
    owners=_owners,
    records=_records,
    statuses=frozenset(STATUSES),
    with_status=_owners_by_status,
    gaps=_gaps,
)
