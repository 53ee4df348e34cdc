"""Compare how a model answers the same questions with calls one after the other, and with several at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import orjson

from treadle.core.errors import RunError
from treadle.core.figures import Figures
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.environments.mixture import Environments
from treadle.environments.planning.figures import batches, call_times
from treadle.environments.planning.settings import PlanningSettings
from treadle.environments.rollouts.tables import ROLLOUT_TELEMETRY
from treadle.eval.statistics import wilson_interval
from treadle.report.comparison import Comparison, Pairs, compare_pairs
from treadle.stages.report import telemetry_rows

SEQUENTIAL, PARALLEL = "sequential", "parallel"
"""Names of the environments that the demo compares: one call after the other, and several at once."""


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """One scored rollout of a planning agent.

    Attributes:
        num_calls: Calls that ran.
        critical_path_s: Seconds of the longest chain of calls that wait for each other, summed over turns; None if the
            log of times is lost.
        seconds: Wall time of the rollout; None if the log of times is lost.
    """

    is_right: bool
    num_turns: int
    num_calls: int
    completion_tokens: int
    prompt_tokens: int
    critical_path_s: float | None
    seconds: float | None


Answers = Mapping[str, Mapping[str, AnsweredQuestion]]
"""Environment -> question -> its rollout."""


def answers_of(run: Run, model: str, environments: Environments, iteration: int = 1) -> Answers:
    """Return the scored rollouts of a model, one per question and environment. Raises RunError without results."""
    scored, rolled = (run.record(Address(iteration, stage, model)) for stage in ("scores", "rollouts"))
    asked = run.record(Address(iteration, "questions"))
    if scored is None or rolled is None or asked is None:
        raise RunError(f"run {run.run_id} lacks questions, rollouts or scores of {model} in iteration {iteration}")
    text_of = {row["question_key"]: row["question"] for row in run.rows(asked.outputs["questions"]).rows()}
    times = {row["rollout_key"]: row for row in telemetry_rows(rolled, run, ROLLOUT_TELEMETRY.kind)}
    rollouts = {row["rollout_key"]: row for row in run.rows(rolled.outputs["rollouts"]).rows()}
    found: dict[str, dict[str, AnsweredQuestion]] = {}
    for row in run.rows(scored.outputs["scores"]).rows():
        key, settings = row["rollout_key"], environments[row["environment"]]
        assert isinstance(settings, PlanningSettings)
        stored, taken = rollouts[key], times.get(key)
        made = batches(orjson.loads(stored["segments"]), orjson.loads(stored["tool_calls"]), settings.turn_dialect)
        found.setdefault(row["environment"], {})[text_of[row["question_key"]]] = AnsweredQuestion(
            is_right=bool(row["correct"]),
            num_turns=row["num_turns"],
            num_calls=row["calls_executed"],
            completion_tokens=row["completion_tokens"],
            prompt_tokens=row["prompt_tokens"],
            critical_path_s=None if taken is None else call_times(made, taken["call_times"]).critical_path_s,
            seconds=None if taken is None else taken["seconds"],
        )
    return found


def planning_figures(answers: Answers) -> Figures:
    """Return a table with one row per environment."""
    rows = []
    for name in (SEQUENTIAL, PARALLEL):
        found = list(answers.get(name, {}).values())
        if not found:
            continue
        share = fmean(one.is_right for one in found)
        low, high = wilson_interval(share, len(found))
        critical_paths_s = [one.critical_path_s for one in found if one.critical_path_s is not None]
        rows.append((
            name,
            len(found),
            f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]",
            f"{fmean(one.num_turns for one in found):.2f}",
            f"{fmean(one.num_calls for one in found):.2f}",
            f"{1000 * fmean(critical_paths_s):.1f}" if critical_paths_s else "?",
            f"{fmean(one.completion_tokens for one in found):.0f}",
            f"{fmean(one.prompt_tokens for one in found):.0f}",
        ))  # fmt: skip
    header = (
        "held-out comparisons", "questions", "accuracy % [95 %]", "turns", "calls", "tools ms", "sampled tokens",
        "prompt tokens",
    )  # fmt: skip
    return Figures("Sequential and parallel", header, tuple(rows), " ".join(_sentences(answers)))


def paired_accuracy(answers: Sequence[Answers]) -> Comparison | None:
    """Compare the accuracy question by question, parallel minus sequential, over one or several runs.

    Returns None if no question was answered in both environments.
    """
    first, second = (
        {
            f"{number}/{question}": float(one.is_right)
            for number, found in enumerate(answers)
            for question, one in found.get(name, {}).items()
        }
        for name in (SEQUENTIAL, PARALLEL)
    )
    keys = sorted(first.keys() & second.keys())
    if not keys:
        return None
    return compare_pairs(
        Pairs(
            figure="accuracy",
            first={key: first[key] for key in keys},
            second={key: second[key] for key in keys},
            is_binary=True,
            num_dropped=len(first.keys() ^ second.keys()),
            num_dropped_rollouts=0,
            gained=tuple(key for key in keys if first[key] < second[key]),
            lost=tuple(key for key in keys if first[key] > second[key]),
        )
    )


def change_in_turns(answers: Answers) -> float | None:
    """Return the relative change of the mean number of turns from sequential to parallel calls; None without both."""
    turns = [[one.num_turns for one in answers.get(name, {}).values()] for name in (SEQUENTIAL, PARALLEL)]
    return fmean(turns[1]) / fmean(turns[0]) - 1 if all(turns) else None


def _sentences(answers: Answers) -> list[str]:
    """Return the differences in words. Means are per question; `tools ms` is the critical path of the tool calls."""
    said = ["Means per question; tools ms: critical path of the tool calls."]
    if (change := change_in_turns(answers)) is not None:
        said.append(f"Parallel calls change the number of turns by {100 * change:+.0f} %.")
    if (paired := paired_accuracy([answers])) is not None:
        low, high = ("?" if end is None else f"{100 * end:+.0f}" for end in paired.difference.ends)
        said.append(f"Difference in accuracy: {100 * paired.difference.mean:+.0f} points ({low} to {high}).")
    return said
