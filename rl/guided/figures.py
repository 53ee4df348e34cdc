"""Compare guided rollouts with plain ones of the same tasks, and summarize the comparison."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from treadle.core.figures import Figures
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.rl.preferences.left_out import left_out_sentences
from treadle.stages.report import StageReport

Verdict = tuple[float, bool]
"""Score of a rollout, and whether it is right."""


class TaskVerdicts:
    """Verdicts on rollouts by task; rollouts without a verdict are only counted."""

    def __init__(self) -> None:
        self._by_task: dict[str, list[Verdict]] = defaultdict(list)
        self.num_without = 0
        """Number of rollouts that have no verdict."""

    def add(self, question_key: str, score: float | None, correct: bool | None) -> None:
        """Add one rollout."""
        if score is None or correct is None:
            self.num_without += 1
        else:
            self._by_task[question_key].append((score, correct))

    @property
    def tasks(self) -> list[str]:
        """Keys of the tasks with verdicts."""
        return list(self._by_task)

    def means(self, tasks: Iterable[str]) -> list[tuple[float, float]]:
        """Return the mean score of each task, and the share of its rollouts that are right."""
        found = (self._by_task[task] for task in tasks)
        return [(_mean(score for score, _ in one), _mean(right for _, right in one)) for one in found]


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def comparison(guided: TaskVerdicts, plain: TaskVerdicts) -> dict[str, float]:
    """Return metrics of guided rollouts, and of plain ones of the same policy on the tasks with both.

    Means are over tasks. `gain` is the mean over tasks of the guided less the plain score, `gain_error` its standard
    error.
    """
    metrics: dict[str, float] = {"tasks": len(guided.tasks), **_metrics("", guided.means(guided.tasks))}
    common = [task for task in guided.tasks if task in set(plain.tasks)]
    if not common:
        return metrics
    with_critic, without = guided.means(common), plain.means(common)
    gains = [one[0] - other[0] for one, other in zip(with_critic, without, strict=True)]
    metrics |= {"common.tasks": len(common), **_metrics("common.", with_critic), **_metrics("plain.", without)}
    metrics["gain"] = _mean(gains)
    if len(gains) > 1:
        metrics["gain_error"] = statistics.stdev(gains) / math.sqrt(len(gains))
    return metrics


def _metrics(prefix: str, means: Sequence[tuple[float, float]]) -> dict[str, float]:
    if not means:
        return {}
    return {
        f"{prefix}mean_score": _mean(score for score, _ in means),
        f"{prefix}success": _mean(right for _, right in means),
    }


def guided_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport:
    """Return a report that compares guided with plain rollouts, to show what the critic's choices gain."""
    metrics = record.metrics
    num_candidates = metrics["num_candidates"]
    sentences = [
        f"Each turn is the best of {num_candidates:,} candidates by the critic, which sees hidden information: a "
        "diagnostic of the critic, not a policy."
    ]
    sentences += left_out_sentences(metrics, "rollouts")
    rows = [_row(f"best of {num_candidates:,} per turn", metrics["tasks"], metrics, "")]
    if "gain" in metrics:
        error = f" (standard error {metrics['gain_error']:.4f})" if "gain_error" in metrics else ""
        tasks = int(metrics["common.tasks"])
        sentences.append(
            f"On the {tasks:,} tasks that were also rolled out without the critic, its choices change the score by "
            f"{metrics['gain']:+.4f}{error}."
        )
        if tasks < metrics["tasks"]:
            rows.append(_row("the same, on the tasks below", tasks, metrics, "common."))
        rows.append(_row("plain rollouts", tasks, metrics, "plain."))
    return StageReport(sentences, [Figures("Best candidate per turn", _HEADER, tuple(rows))])


_HEADER = ("turns", "tasks", "score", "right, %")


def _row(name: str, tasks: float, metrics: Mapping[str, float], prefix: str) -> tuple[str, int, str, str]:
    score, success = metrics[f"{prefix}mean_score"], metrics[f"{prefix}success"]
    return name, int(tasks), f"{score:.4f}", f"{100 * success:.1f}"
