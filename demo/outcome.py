"""What the demo's models came to on the held-out questions, side by side, and what training did in between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from treadle.core.figures import Figures
from treadle.core.runs import Run
from treadle.core.stage import Address
from treadle.eval.statistics import wilson_interval

_WHAT = {
    "tutor": "tutor (rules, no language model)",
    "base": "base (SmolLM2-135M)",
    "tuned": "tuned (the same, fine-tuned)",
    "reinforced": "reinforced (tuned, then GRPO)",
}


@dataclass
class Tally:
    """Counts over the scored rollouts of one model."""

    num_rollouts: int = 0
    num_right: int = 0
    num_valid: int = 0
    """Ended with an answer in the form that was asked for."""
    num_calls: int = 0
    """Calls of tools that ran."""
    num_failed_calls: int = 0
    """Of these, those that gave an error or nothing."""

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Tally:
        """Count rows of the table `scores`."""
        tally = cls()
        for row in rows:
            tally.num_rollouts += 1
            tally.num_right += bool(row["correct"])
            tally.num_valid += row["is_valid_answer"]
            tally.num_calls += row["calls_executed"]
            tally.num_failed_calls += row["failed_calls"]
        return tally

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            num_rollouts=self.num_rollouts + other.num_rollouts,
            num_right=self.num_right + other.num_right,
            num_valid=self.num_valid + other.num_valid,
            num_calls=self.num_calls + other.num_calls,
            num_failed_calls=self.num_failed_calls + other.num_failed_calls,
        )

    def cells(self) -> tuple[str, str, str]:
        """Right answers with their interval, valid answers, calls without an error."""
        low, high = wilson_interval(self.num_right / max(1, self.num_rollouts), self.num_rollouts)
        right = f"{self.num_right} of {self.num_rollouts} ({low:.0%} to {high:.0%})"
        calls = f"{self.num_calls - self.num_failed_calls} of {self.num_calls}" if self.num_calls else "none made"
        return right, f"{self.num_valid} of {self.num_rollouts}", calls


def tallies(run: Run, models: Iterable[str]) -> dict[str, Tally]:
    """Model -> its counts, for the models that have scores."""
    found = {}
    for model in models:
        record = run.record(Address(1, "scores", model))
        if record is not None:
            found[model] = Tally.of(run.rows(record.outputs["scores"]).rows())
    return found


def outcome(run: Run, models: Iterable[str]) -> Figures:
    """A table with one row per model."""
    header = ("held-out questions", "right answers (95 %)", "ended with an answer", "calls without an error")
    rows = tuple((_WHAT.get(model, model), *tally.cells()) for model, tally in tallies(run, models).items())
    sentences = " ".join(filter(None, (training_sentence(run), reinforcement_sentence(run))))
    return Figures("What it came to", header, rows, sentences)


def training_sentence(run: Run) -> str:
    """What fine-tuning did to the weights; empty where there was none."""
    record = run.record(Address(1, "sft"))
    if record is None:
        return ""
    metrics = record.metrics
    return (
        f"Fine-tuning: {metrics['steps']:,} steps over {metrics['rows']:,} rows ({metrics['target_tokens']:,} target "
        f"tokens) in {metrics['seconds']:.0f} s; loss {metrics['first_loss']:.2f} at first, "
        f"{metrics['last_loss']:.2f} at last."
    )


def reinforcement_sentence(run: Run) -> str:
    """What reinforcement did to the weights; empty where there was none."""
    record = run.record(Address(1, "rl", "phase-1"))
    if record is None:
        return ""
    metrics = record.metrics
    return (
        f"Reinforcement: {metrics['steps']:,} steps with {metrics['rollouts']:,} rollouts of {metrics['rows']:,} "
        f"training questions in {metrics['seconds']:.0f} s."
    )
