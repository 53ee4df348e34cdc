"""Scored rollouts of questions, and the stage `selection` over them, on real artifacts of a real run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.tables.score_tables import new_run, put_rows, question, rollout, score

from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES
from treadle.rl.selection.entry import SELECTION_STAGE
from treadle.rl.selection.settings import SelectionOptions, SelectionSettings

ENVIRONMENT = QuestionSettings()

EXAMPLE: Mapping[str, tuple[str, tuple[float, ...], tuple[int, ...]]] = {
    "A": ("math", (1, 1, 1, 1, 0, 0, 0, 0), (1,) * 8),
    "B": ("math", (1, 1, 1, 1, 1, 1, 0, 0), (1, 2, 3, 4, 1, 2, 3, 4)),
    "C": ("math", (1, 1, 1, 1, 1, 1, 1, 0), (0, 6, 0, 6, 0, 6, 0, 6)),
    "D": ("math", (1, 1, 1, 0, 0, 0, 0, 0), (2, 2, 2, 2, 4, 4, 4, 4)),
    "E": ("math", (1,) * 8, (0, 0, 0, 0, 8, 8, 8, 8)),
    "F": ("qa", (1, 0.5, 0, 1, 0.5, 0, 1, 0), (2, 3, 2, 3, 2, 3, 2, 3)),
    "G": ("qa", (0,) * 8, (3,) * 8),
    "H": ("qa", (1, 0.8, 0.9, 1, 1, 0.8, 0.9, 1), (1, 1, 1, 1, 2, 2, 2, 2)),
}
"""Questions with domain, correctness and executed calls of eight rollouts each."""


class Asked(NamedTuple):
    """A question with the outcomes of its rollouts. None as a score: no verdict; as calls: lost."""

    key: str
    correctness: Sequence[float | None]
    calls: Sequence[int | None]
    domain: str = "math"
    split: str = "train"
    dataset: str = "world"


def example() -> list[Asked]:
    return [Asked(key, correct, calls, domain) for key, (domain, correct, calls) in EXAMPLE.items()]


def question_rows(asked: Sequence[Asked]) -> list[dict[str, Any]]:
    return [question(one.key, ["1"], one.domain) | {"split": one.split, "dataset": one.dataset} for one in asked]


def rollout_rows(asked: Sequence[Asked], **columns: Any) -> list[dict[str, Any]]:
    rows = []
    for one in asked:
        for index, calls in enumerate(one.calls):
            made = rollout(f"{one.key}-{index}", one.key, [], sample_index=index, dataset=one.dataset)
            made |= {
                "domain": one.domain,
                "calls_executed": calls or 0,
                "status": "failed" if calls is None else "answered",
            }
            rows.append(made | {"environment_digest": ENVIRONMENT.digest()} | columns)
    return rows


def score_rows(asked: Sequence[Asked], **columns: Any) -> list[dict[str, Any]]:
    rows = []
    for one in asked:
        for index, (value, calls) in enumerate(zip(one.correctness, one.calls, strict=True)):
            row = score(f"{one.key}-{index}", one.key, None if value is None else value >= 0.75, domain=one.domain)
            row |= {"score": value, "calls_executed": calls or 0, "dataset": one.dataset}
            rows.append(row | ({"status": "failed", "score": 0.0} if calls is None else {}) | columns)
    return rows


class Made(NamedTuple):
    """The outputs of the stage."""

    rows: list[dict[str, Any]]
    rejections: list[dict[str, Any]]
    metrics: dict[str, Any]
    report: str
    picture: str
    digest: str
    run: Run
    folder: Path

    @property
    def keys(self) -> list[str]:
        """Keys of the rows, in alphabetical order."""
        return sorted(row["question_key"] for row in self.rows)

    @property
    def reasons(self) -> dict[str, str]:
        """Return question -> why it is not a row."""
        return {row["question_key"]: row["reason"] for row in self.rejections}


def select(
    tmp_path: Path,
    asked: Sequence[Asked],
    options: SelectionOptions | None = None,
    *,
    run: Run | None = None,
    phase: int = 1,
    previous: Sequence[str] = (),
    questions: Sequence[dict[str, Any]] | None = None,
    rollouts: Sequence[dict[str, Any]] | None = None,
    scores: Sequence[dict[str, Any]] | None = None,
    **settings: Any,
) -> Made:
    """Run the stage; raises what the stage raises. `previous`: addresses of earlier selections of the run."""
    run = run or new_run(tmp_path)
    bound = {
        "questions": put_rows(run, "1/questions", QUESTIONS, question_rows(asked) if questions is None else questions),
        "rollouts": put_rows(
            run, f"1/rollouts@phase-{phase}", ROLLOUTS, rollout_rows(asked) if rollouts is None else rollouts
        ),
        "scores": put_rows(run, f"1/scores@phase-{phase}", SCORES, score_rows(asked) if scores is None else scores),
    }
    made = {"environment": ENVIRONMENT, "options": options or SelectionOptions(), "phase": phase, **settings}
    record = execute(
        Instance(
            address=Address.parse(f"1/selection@phase-{phase}"),
            stage=SELECTION_STAGE,
            settings=SelectionSettings(**made),
            inputs={
                **{name: (address,) for name, address in bound.items()},
                "previous": tuple(Address.parse(text) for text in previous),
            },
        ),
        run,
    )
    rows = run.rows(record.outputs["rl_rows"])
    return Made(
        list(rows.rows()),
        list(run.rows(record.outputs["rl_rejections"]).rows()),
        dict(record.metrics),
        rows.read_file("report.md").decode(),
        rows.read_file("selection.svg").decode(),
        record.outputs["rl_rows"].digest,
        run,
        tmp_path / record.outputs["rl_rows"].folder,
    )
