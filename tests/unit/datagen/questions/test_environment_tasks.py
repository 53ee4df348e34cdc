"""Tasks that the type of the environment brings, in place of a file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.tables.questions_bench import Bench, Result

from treadle.core.config import validate
from treadle.core.errors import ConfigError, DataError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute, fingerprint_of
from treadle.core.runs.stage import Instance, Stage
from treadle.datagen.questions.entry import QUESTIONS_STAGE
from treadle.datagen.questions.environment_tasks import FindTasks, task_rows
from treadle.datagen.questions.source_rows import with_digests
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings
from treadle.datagen.questions.stage import run_questions
from treadle.datagen.questions.task_environment import TaskEnvironment

TEXT = "I think of a number. Which one?"
SOURCE = {"from": "environment"}


def stage_with(find: FindTasks) -> Stage:
    """Return the stage with tasks that `find` finds."""
    return replace(QUESTIONS_STAGE, run=partial(run_questions, find_tasks=find))


class Tasks:
    """Tasks with a secret each; notes what it was asked, how far it was read, and whether it was closed."""

    def __init__(self, *rows: Any, asynchronous: bool = False) -> None:
        self.rows, self.asynchronous = rows, asynchronous
        self.asked: list[tuple[str | None, int]] = []
        self.num_read = 0
        self.closed = False

    def __call__(self, split: str | None, seed: int) -> Any:
        self.asked.append((split, seed))
        return self._later() if self.asynchronous else self._now()

    def _now(self) -> Iterator[Any]:
        try:
            for row in self.rows:
                self.num_read += 1
                yield row
        finally:
            self.closed = True

    async def _later(self) -> AsyncIterator[Any]:
        try:
            for row in self.rows:
                self.num_read += 1
                yield row
        finally:
            self.closed = True


def secrets(number: int) -> list[dict[str, Any]]:
    return [{"question": TEXT, "payload": {"secret": secret}} for secret in range(number)]


def instance(
    find: FindTasks,
    *sources: Mapping[str, Any],
    kind: str = "guess",
    seed: int = 5,
    digest: str = "d",
    brings_tasks: bool = True,
    **keys: Any,
) -> Instance:
    tree = {"sources": list(sources), "max_error_rate": 1.0, **keys}
    known = TaskEnvironment(kind=kind, needs_answers=False, brings_tasks=brings_tasks, tasks_digest=digest)
    settings = validate(QuestionsSettings, tree).for_environments({"default": known}, seed=seed)
    return Instance(address=Address(1, "questions"), stage=stage_with(find), settings=with_digests(settings))


def taken(bench: Bench, tasks: Tasks, *sources: Mapping[str, Any], **keys: Any) -> Result:
    execute(instance(lambda settings: tasks if settings.kind == "guess" else None, *sources, **keys), bench.run)
    return Result(bench.run)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_tasks_of_the_environment_become_questions_in_their_order(bench: Bench, asynchronous: bool) -> None:
    tasks = Tasks(*secrets(500), asynchronous=asynchronous)
    result = taken(bench, tasks, {**SOURCE, "split": "train"})
    assert [row["payload"] for row in result.questions] == [f'{{"secret":{number}}}' for number in range(500)]
    (row, *_) = result.questions
    assert (row["question"], row["answers"], row["domain"], row["dataset"]) == (TEXT, [], "task", "guess")
    assert (row["source_file"], row["source_row"], row["split"], row["meta"]) == ("environment", 1, "train", "{}")
    assert tasks.asked == [("train", 5)]
    assert tasks.closed


@pytest.mark.parametrize("asynchronous", [False, True])
def test_limit_ends_the_reading_of_tasks(bench: Bench, asynchronous: bool) -> None:
    tasks = Tasks(*secrets(9), asynchronous=asynchronous)
    assert len(taken(bench, tasks, {**SOURCE, "limit": 3}).questions) == 3
    assert (tasks.num_read, tasks.closed) == (3, True)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_tasks_are_not_read_ahead(asynchronous: bool) -> None:
    tasks = Tasks(*secrets(9), asynchronous=asynchronous)
    settings = QuestionsSettings(sources=(SourceSettings(**SOURCE),))
    rows = task_rows(settings.sources[0], settings, lambda _: tasks)
    assert [next(rows).number for _ in range(2)] == [1, 2]
    assert (tasks.num_read, tasks.closed) == (2, False)
    rows.close()
    assert tasks.closed


def test_task_says_its_answers_choices_domain_dataset_and_split(bench: Bench) -> None:
    full = {
        "question": "Which?", "answers": ["B"], "choices": ["x", "y"], "dataset": "mine", "split": "test", "level": 2,
        "payload": {},
    }  # fmt: skip
    sum_ = {"question": "1 + 1?", "answers": ["2", "two"], "domain": "math", "choices": None}
    rows = taken(bench, Tasks(full, sum_), SOURCE).questions
    names = ("domain", "answers", "choices", "dataset", "split", "meta", "payload")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("choice", ["B"], ["x", "y"], "mine", "heldout", '{"level": 2}', "{}"),
        ("math", ["2", "two"], [], "guess", "train", "{}", "{}"),
    ]


def test_bad_tasks_are_quarantined_without_their_payload(bench: Bench) -> None:
    bad: list[Any] = [
        {"question": "", "payload": {"a": "canary"}},
        {"question": "Why?", "payload": ["canary"]},
        {"question": "Why?", "payload": {"a": {"canary"}}},
        {"question": "Why?", "payload": {"a": "canary"}, "domain": "Cooking!"},
        ["canary"],
    ]
    result = taken(bench, Tasks(*secrets(1), *bad), SOURCE)
    assert [reason for _, reason in result.reasons] == [
        "empty_question", "bad_payload", "bad_payload", "unknown_source", "not_an_object",
    ]  # fmt: skip
    assert "canary" not in repr(result.quarantine)


def test_type_without_tasks_is_refused_when_the_run_is_planned_and_when_it_runs(bench: Bench) -> None:
    match = r"questions.sources\[0\]: environments of the type 'guess', such as \[environment\], provide no tasks; give"
    with pytest.raises(ConfigError, match=match):
        instance(lambda settings: None, SOURCE, brings_tasks=False)
    with pytest.raises(ConfigError, match=match):
        execute(instance(lambda settings: None, SOURCE), bench.run)


def test_source_and_table_without_tasks_are_named(tmp_path: Path) -> None:
    plain = {"path": tmp_path / "q.jsonl", "domain": "math"}
    for name, table in (("default", "environment"), ("py", "environments.py")):
        settings = validate(QuestionsSettings, {"sources": [plain, {**SOURCE, "environment": name}]})
        with pytest.raises(ConfigError, match=rf"^questions.sources\[1\]: .* such as \[{table}\], provide no tasks"):
            settings.for_environments({"default": TaskEnvironment(), "py": TaskEnvironment()}, seed=5)


def test_shipped_stage_knows_no_tasks(bench: Bench) -> None:
    made = instance(lambda settings: None, SOURCE)
    with pytest.raises(ConfigError, match="provide no tasks"):
        execute(Instance(address=made.address, stage=QUESTIONS_STAGE, settings=made.settings), bench.run)


def test_split_without_tasks_is_refused(bench: Bench) -> None:
    with pytest.raises(DataError, match="environment 'guess' has no tasks in its split 'heldout'; give another split"):
        taken(bench, Tasks(), {**SOURCE, "split": "heldout"})


def test_tasks_are_made_again_if_seed_type_or_what_they_depend_on_changes(bench: Bench, tmp_path: Path) -> None:
    def fingerprint(*sources: Mapping[str, Any], **changes: Any) -> str:
        return fingerprint_of(instance(lambda settings: None, *sources, **changes), {})

    changes: list[dict[str, Any]] = [{}, {"seed": 6}, {"digest": "e"}, {"kind": "other"}]
    assert len({fingerprint(SOURCE, **change) for change in changes}) == 4
    (tmp_path / "q.jsonl").write_text('{"question": "Why?"}\n')
    file = {"path": tmp_path / "q.jsonl"}
    assert fingerprint(file) == fingerprint(file, seed=6, digest="e")


def test_tasks_of_a_named_environment_stand_under_its_name(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    sources = ({"path": tmp_path / "q.jsonl", "domain": "math"}, {**SOURCE, "environment": "guess"})
    known = {
        "default": TaskEnvironment(),
        "guess": TaskEnvironment(kind="my_envs.py:Guess", needs_answers=False, brings_tasks=True, tasks_digest="d"),
    }
    settings = validate(QuestionsSettings, {"sources": list(sources)}).for_environments(known, seed=5)
    asked: list[str] = []

    def find(environment: TaskEnvironment) -> Tasks:
        asked.append(environment.kind)
        return Tasks(*secrets(2))

    stage = stage_with(find)
    execute(Instance(address=Address(1, "questions"), stage=stage, settings=with_digests(settings)), bench.run)
    rows = Result(bench.run).questions
    assert [(row["environment"], row["dataset"], row["domain"]) for row in rows] == [
        ("default", "q", "math"), ("guess", "guess", "task"), ("guess", "guess", "task"),
    ]  # fmt: skip
    assert asked == ["my_envs.py:Guess"]
    assert {row["source_file"] for row in rows if row["environment"] == "guess"} == {"environment guess"}


def of_two_environments(*tasks: Mapping[str, Any]) -> Instance:
    """Return an instance that reads these tasks from `[environment]` and from another one of the same type."""
    one = TaskEnvironment(kind="my_envs.py:Guess", needs_answers=False, brings_tasks=True, tasks_digest="d")
    tree = {"sources": [SOURCE, {**SOURCE, "environment": "hard"}]}
    settings = validate(QuestionsSettings, tree).for_environments({"default": one, "hard": one}, seed=5)
    stage = stage_with(lambda _: Tasks(*tasks))
    return Instance(address=Address(1, "questions"), stage=stage, settings=with_digests(settings))


def test_two_environments_of_a_type_have_data_sets_of_their_own(bench: Bench) -> None:
    execute(of_two_environments(*secrets(1)), bench.run)
    rows = Result(bench.run).questions
    assert [(row["environment"], row["dataset"]) for row in rows] == [("default", "Guess"), ("hard", "hard")]


def test_data_set_of_two_environments_is_refused_before_anything_is_sampled(bench: Bench) -> None:
    match = "data set 'mine' has tasks of the environments default and hard, .* rows of environment hard another name"
    with pytest.raises(DataError, match=match):
        execute(of_two_environments(*(task | {"dataset": "mine"} for task in secrets(1))), bench.run)
