"""Jobs of rollouts: what they were before runs had several environments, and each by its own environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from treadle.agent.dialects.base import Segment
from treadle.agent.jobs.keys import job_key, shared_digest
from treadle.agent.trajectory import Trajectory
from treadle.core.errors import DataError
from treadle.core.runs.stage import WorkResult
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.rollouts.jobs import RolloutJob, rollout_jobs
from treadle.environments.rollouts.rows import row_of
from treadle.environments.rollouts.settings import RolloutsSettings, selected_environments
from treadle.environments.rollouts.writing import RowWriter

GUESS = "support.rollouts.dialogues:Guess"
ROW: dict[str, Any] = {
    "dataset": "d", "domain": "qa", "question": "Who?", "choices": [], "format": None, "scorer": None, "search": None,
    "environment": "default", "split": "train", "source_file": "f", "source_row": 1, "answers": ["a"],
    "payload": '{"secret":3}',
}  # fmt: skip
QUESTIONS = [
    {**ROW, "question_key": "1"},
    {**ROW, "question_key": "2", "question": "Why?", "choices": ["x", "y"], "search": "local"},
    {**ROW, "question_key": "3"},
]
GAME = {**ROW, "question_key": "4", "environment": "guess", "dataset": "games"}


class Table:
    """A table of questions that notes which columns were read."""

    digest = "d"

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = rows
        self.read: set[str] = set()

    def rows(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        self.read |= set(columns)
        return ({name: row[name] for name in columns} for row in self._rows)


def settings(**more: Any) -> RolloutsSettings:
    model = {"model": "m", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]}
    base = {"model_name": "base", "model": model, "options": {"samples_per_question": 2}, "seed": 7}
    return RolloutsSettings.model_validate({**base, **more})


def jobs_of(asked: RolloutsSettings, table: Table) -> list[RolloutJob]:
    inputs: Any = {"questions": [table]}
    return list(rollout_jobs(asked, inputs))


def test_keys_of_a_run_with_one_environment_stay_the_same() -> None:
    shared = "e6e61cd3dca3a101f3b54cb2fa01bed0dc23283779e9913481a56e3a7584cf31"
    assert shared_digest(settings(), {}) == shared
    table = Table(QUESTIONS)
    jobs = jobs_of(settings(), table)
    contents = ["458f67130a008794", "471e3a3323cdf678", "458f67130a008794"]
    assert [job.content_key for job in jobs[::2]] == contents
    digest = QuestionSettings().digest()
    asked = [
        job_key(shared, content, digest, question["search"], index)
        for content, question in zip(contents, QUESTIONS, strict=True)
        for index in (0, 1)
    ]
    assert [job.key for job in jobs] == asked and [job.is_copy for job in jobs] == [False] * 4 + [True] * 2
    assert not table.read & {"answers", "payload"}, "nothing hidden is read for episodes that do not read it"


def test_other_environment_changes_no_job_and_shows_no_payload_to_those_that_do_not_read_it() -> None:
    alone = jobs_of(settings(), Table(QUESTIONS))
    role = {"name": "h", "model": {"model": "m", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]}, "sampling": {}}
    mixture = settings(environments={"guess": {"type": GUESS}}, roles={"human": role}, summarizer=role["model"])
    jobs = jobs_of(mixture, Table([*QUESTIONS, GAME]))
    assert jobs[: len(alone)] == alone
    game = jobs[-1]
    assert game.question["payload"] == ROW["payload"] and game.key not in {job.key for job in alone}
    only = jobs_of(settings(environments={"guess": {"type": GUESS}}), Table([GAME]))
    assert [job.key for job in only] == [job.key for job in jobs[len(alone) :]]


def test_environments_of_selected_questions_are_found_by_name() -> None:
    asked = settings(environments={"guess": {"type": GUESS}}, options={"datasets": ["games"]})
    tables: Any = [Table([*QUESTIONS, GAME])]
    assert list(selected_environments(asked, asked.options, tables)) == ["guess"]
    everything = settings(environments={"guess": {"type": GUESS}})
    assert list(selected_environments(everything, everything.options, tables)) == ["default", "guess"]


def test_question_of_an_unknown_environment_is_refused() -> None:
    tables: Any = [Table([GAME])]
    for refused in (
        lambda: jobs_of(settings(), tables[0]),
        lambda: selected_environments(settings(), settings().options, tables),
    ):
        with pytest.raises(DataError, match=r"'guess', which this run does not have; there are default; add"):
            refused()


class Journal:
    """Journal of finished rollouts with these numbers of contexts."""

    def __init__(self, numbers: Sequence[int]) -> None:
        empty = row_of({}, Trajectory("answered", "x", [Segment("text", "x", 0, 0)], [], [], 1), "e", "")
        samples = {"prompt_ids": [], "training_prompt_ids": None, "ids": [], "origins": [], "turn_starts": []}
        self._rows = [empty | {"samples": [samples] * number} for number in numbers]

    def is_finished(self, key: str) -> bool:
        return True

    def finished(self, key: str) -> bytes:
        return orjson.dumps({"row": self._rows.pop(0), "telemetry": None})


@pytest.mark.parametrize(("numbers", "num_trimmed"), [([1, 1, 1], None), ([1, 3, 2], 2)])
def test_rollouts_with_trimmed_contexts_are_counted(numbers: list[int], num_trimmed: int | None) -> None:
    asked = settings(options={"samples_per_question": 1})
    context: Any = SimpleNamespace(
        journal=Journal(numbers),
        work_result=WorkResult(),
        accept_failures=False,
        address="1/rollouts@base",
        write=lambda *_: None,
        write_telemetry=lambda *_: None,
    )
    metrics = RowWriter(context, asked).write(jobs_of(asked, Table(QUESTIONS)))
    assert (metrics["num_rollouts"], metrics.get("num_trimmed")) == (3, num_trimmed)
