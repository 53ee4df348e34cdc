"""Compare the demo's models on held-out questions, and test whether each training changed them significantly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from operator import add
from statistics import fmean
from typing import Any

from treadle.core.figures import Cell, Figures
from treadle.core.runs.address import Address
from treadle.core.runs.reused import result_origin
from treadle.core.runs.run import Run
from treadle.eval.averages import ALL
from treadle.report.comparison import Comparison, Pairs, compare_pairs
from treadle.report.layout import average_sentences, by_model, figure_cell, figure_heading, main_line, summary_lines

_MODEL_LABELS = {
    "tutor": "tutor (rules, no language model)",
    "base": "base (SmolLM2-135M)",
    "tuned": "tuned (the same, fine-tuned)",
    "reinforced": "reinforced (tuned, then GRPO)",
}
_SHOWN = ("accuracy", "ended", "call_success")
"""Figures of the table of results."""
_WEIGHTS = ("base", "tuned", "reinforced")
"""Models, each trained from the one before it."""


@dataclass
class ModelCounts:
    """Counts over the scored rollouts of one model."""

    num_rollouts: int = 0
    num_right: int = 0
    num_valid: int = 0
    """Rollouts that ended with an answer in the requested format."""
    num_calls: int = 0
    """Tool calls that ran."""
    num_failed_calls: int = 0
    """Tool calls that ran and gave an error or nothing."""

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> ModelCounts:
        """Count rows of the table `scores`."""
        columns = ("is_valid_answer", "calls_executed", "failed_calls")
        counts = (cls(1, bool(row["correct"]), *(row[column] for column in columns)) for row in rows)
        return sum(counts, cls())

    def __add__(self, other: ModelCounts) -> ModelCounts:
        return ModelCounts(*map(add, astuple(self), astuple(other)))


def counts_by_model(run: Run, models: Iterable[str], iteration: int = 1) -> dict[str, ModelCounts]:
    """Return the counts of each model in an iteration; models without scores of their own there are left out."""
    return {model: ModelCounts.of(rows) for model, rows in _scores(run, models, iteration).items()}


def outcome(run: Run, models: Iterable[str]) -> Figures:
    """Return a table with one row per model and iteration, with figures from the report of the last iteration.

    They are those of the report's main line on the model (see `main_line`): an average, or its only data set.
    """
    report = max(
        (record for record in run.records() if record.stage == "report"),
        key=lambda record: Address.parse(record.address).iteration,
        default=None,
    )
    given = [] if report is None else summary_lines(run.rows(report.outputs["summary"]).rows())
    rows: list[tuple[Cell, ...]] = []
    for model, lines in by_model(given).items():
        number, name = _split(model)
        if name in set(models):
            line = main_line(lines)
            cells = (figure_cell(line, one, in_percent=True, with_interval=one == "accuracy") for one in _SHOWN)
            rows.append((_named(_MODEL_LABELS.get(name, name), number), line.num_rollouts, *cells))
    header = ("held-out questions", "rollouts", *(figure_heading(figure, in_percent=True) for figure in _SHOWN))
    sentences = [f"{sentence}." for sentence in average_sentences(given) if sentence.startswith(f"{ALL}:")]
    sentences += filter(None, (training_sentence(run), reinforcement_sentence(run)))
    return Figures("Results", header, tuple(rows), " ".join(["In brackets: 95 % intervals.", *sentences]))


def _split(label: str) -> tuple[int, str]:
    """Return the iteration and the name of a model in a report, such as `2/tuned`; 1 if it names no iteration."""
    number, _, name = label.rpartition("/")
    return int(number) if number.isdecimal() else 1, name


def differences(run: Run, models: Iterable[str], order: Sequence[str] = _WEIGHTS) -> Figures:
    """Return a table with one row per training: the change in right answers to questions asked before and after it.

    `order`: models, each trained from the one before it.
    """
    names = [model for model in order if model in set(models)]
    answers = [
        (_named(model, number), _right_by_question(rows))
        for number in range(1, _num_iterations(run) + 1)
        for model, rows in _scores(run, names, number).items()
    ]
    rows = tuple(
        (f"{before} to {after}", *_cells(compared(first, second)))
        for (before, first), (after, second) in pairwise(answers)
        if first.keys() & second.keys()
    )
    header = ("question by question", "difference in points (95 %)", "newly right", "no longer right", "p")
    note = "If the interval includes 0, the change may be chance; more questions or other seeds would tell."
    return Figures("What each training changed", header, rows, note if rows else "")


def training_sentence(run: Run) -> str:
    """Return the steps, rows and loss of fine-tuning in a sentence; empty without fine-tuning."""
    record = run.record(Address(1, "sft"))
    if record is None:
        return ""
    metrics = record.metrics
    return (
        f"Fine-tuning: {metrics['steps']:,} steps over {metrics['rows']:,} rows ({metrics['target_tokens']:,} target "
        f"tokens) in {metrics['seconds']:.0f} s; loss from {metrics['first_loss']:.2f} "
        f"to {metrics['last_loss']:.2f}."
    )


def reinforcement_sentence(run: Run) -> str:
    """Return the steps, rollouts and rewards of reinforcement learning in a sentence; empty without it."""
    record = run.record(Address(1, "rl", "phase-1"))
    if record is None:
        return ""
    metrics = record.metrics
    said = (
        f"Reinforcement: {metrics['steps']:,} steps with {metrics['rollouts']:,} rollouts of {metrics['rows']:,} "
        f"training questions in {metrics['seconds']:.0f} s"
    )
    if not (ends := first_and_last_rewards(run.rows(record.outputs["rl_rollouts"]).rows())):
        return f"{said}."
    first, last = (fmean(rewards) for rewards in zip(*ends, strict=True))
    return f"{said}; mean reward per question {first:.2f} at its first training step, {last:.2f} at its last."


def first_and_last_rewards(rows: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return the mean rewards of the first and the last group of each question trained on in several steps.

    Unlike means of single steps, these do not depend on which questions a step had. `rows` are rows of `rl_rollouts`.
    """
    steps: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["reward"] is not None:
            steps[row["question_key"]][row["step"]].append(row["reward"])
    return [
        (fmean(rewards[min(rewards)]), fmean(rewards[max(rewards)])) for rewards in steps.values() if len(rewards) > 1
    ]


def _scores(run: Run, models: Iterable[str], iteration: int) -> dict[str, Iterable[dict[str, Any]]]:
    """Return the `scores` rows of each model that has scores of its own in an iteration, by model."""
    records = ((model, run.record(Address(iteration, "scores", model))) for model in models)
    return {
        model: run.rows(record.outputs["scores"]).rows()
        for model, record in records
        if record is not None and not result_origin(record, run.record)
    }


def _right_by_question(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    right: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        right[row["question_key"]].append(float(bool(row["correct"])))
    return right


def compared(first: Mapping[str, Sequence[float]], second: Mapping[str, Sequence[float]]) -> Comparison:
    """Compare right answers to the questions that two models have in common, question by question.

    Each question has one value per answer: 1 if it is right, else 0. With one answer per question, the comparison is
    by Tango and McNemar.
    """
    keys = sorted(first.keys() & second.keys())
    before, after = ({key: fmean(given[key]) for key in keys} for given in (first, second))
    pairs = Pairs(
        figure="accuracy",
        first=before,
        second=after,
        is_binary=all(len(given[key]) == 1 for given in (first, second) for key in keys),
        num_dropped=len(first.keys() ^ second.keys()),
        num_dropped_rollouts=0,
        gained=tuple(key for key in keys if before[key] <= 0.5 < after[key]),
        lost=tuple(key for key in keys if after[key] <= 0.5 < before[key]),
    )
    return compare_pairs(pairs)


def _cells(comparison: Comparison) -> tuple[str | int, ...]:
    low, high = ("?" if end is None else f"{100 * end:+.0f}" for end in comparison.difference.ends)
    points = f"{100 * comparison.difference.mean:+.0f} ({low} to {high})"
    p_value = "< 0.001" if comparison.p_value < 0.001 else f"{comparison.p_value:.3f}"
    return points, len(comparison.gained), len(comparison.lost), p_value


def _named(model: str, iteration: int) -> str:
    return model + (f", iteration {iteration}" if iteration > 1 else "")


def _num_iterations(run: Run) -> int:
    return max((Address.parse(record.address).iteration for record in run.records()), default=1)
