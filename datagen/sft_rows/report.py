"""Count the results of the stage `sft_rows`, as metrics and as a page."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from treadle.core.figures import Cell, Figures, render_table
from treadle.core.untrusted.sanitize import one_line
from treadle.datagen.sft_rows.quality import REASONS
from treadle.datagen.sft_rows.selection import DECISIONS, ROW


class ParentFacts(NamedTuple):
    """Facts about a trajectory that are kept for the trajectories made from it."""

    correct: bool
    calls: int


class ParentIndex:
    """Trajectories of the question that is being read; a parent precedes its children, in the same table."""

    def __init__(self) -> None:
        self._question = ""
        self._known: dict[str, ParentFacts] = {}

    def of(self, row: Mapping[str, Any]) -> ParentFacts | None:
        """Return the trajectory that a row was made from; None for an initial one."""
        if row["question_key"] != self._question:
            return None
        return next((self._known[key] for key in row["parents"] if key in self._known), None)

    def remember(self, row: Mapping[str, Any]) -> None:
        """Remember a row as a possible parent, and drop the trajectories of other questions."""
        if row["question_key"] != self._question:
            self._question, self._known = row["question_key"], {}
        self._known[row["rollout_key"]] = ParentFacts(row["correct"] is True, row["calls_requested"])


@dataclass(slots=True)
class OperatorTally:
    """Counts of one operator's trajectories."""

    trajectories: int = 0
    accepted: int = 0
    corrected: int = 0
    rows: int = 0
    edited: int = 0
    """Number of accepted trajectories with a parent; `calls_before` and `calls_after` sum over these."""
    calls_before: int = 0
    calls_after: int = 0


@dataclass(slots=True)
class SftRowsTally:
    """All counts of the stage."""

    num_read: int = 0
    num_accepted: int = 0
    num_rows: int = 0
    num_repaired: int = 0
    num_text_mode: int = 0
    num_tokens: int = 0
    num_result_tokens: int = 0
    num_message_tokens: int = 0
    num_target_tokens: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Rejected trajectories by their first reason."""
    rules: Counter[str] = field(default_factory=Counter)
    """Rejected trajectories by each reason that applies."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Accepted trajectories that are not rows, by decision."""
    operators: dict[str, OperatorTally] = field(default_factory=dict)
    datasets: Counter[str] = field(default_factory=Counter)
    masked_parts: array[float] = field(default_factory=lambda: array("d"))
    """For each row with token ids, the share of its tokens that are tool results without a loss."""
    calls_initial: Counter[int] = field(default_factory=Counter)
    calls_rows: Counter[int] = field(default_factory=Counter)

    def count_judged(self, row: Mapping[str, Any], reasons: Sequence[str], parent: ParentFacts | None) -> None:
        """Count a trajectory after the quality gate."""
        self.num_read += 1
        operator = self.operators.setdefault(row["operator"], OperatorTally())
        operator.trajectories += 1
        if not row["round"]:
            self.calls_initial[row["calls_requested"]] += 1
        if reasons:
            self.reasons[reasons[0]] += 1
            self.rules.update(reasons)
            return
        self.num_accepted += 1
        operator.accepted += 1
        if parent is not None:
            operator.edited += 1
            operator.corrected += not parent.correct
            operator.calls_before += parent.calls
            operator.calls_after += row["calls_requested"]

    def count_row(self, row: Mapping[str, Any]) -> None:
        """Count a row that is written."""
        self.num_rows += 1
        self.num_repaired += row["repaired"]
        self.num_text_mode += not row["input_ids"]
        self.num_tokens += row["num_tokens"]
        self.num_result_tokens += row["num_result_tokens"]
        self.num_message_tokens += row["num_message_tokens"]
        self.num_target_tokens += row["num_target_tokens"]
        if row["num_tokens"]:
            others = ("num_prompt_tokens", "num_message_tokens", "num_target_tokens")
            masked = row["num_tokens"] - sum(row[name] for name in others)
            self.masked_parts.append(masked / row["num_tokens"])
        self.operators[row["operator"]].rows += 1
        self.datasets[row["dataset"]] += 1
        self.calls_rows[row["calls_requested"]] += 1

    def reasons_in_words(self) -> str:
        """Return the counts of first reasons as text, the most frequent one first."""
        return ", ".join(f"{code} {count:,}" for code, count in _ranked(self.reasons))

    def masked_shares(self) -> dict[str, float]:
        """Return the least, mean and largest share of a row that is masked as results; empty without token ids."""
        shares = self.masked_parts
        if not shares:
            return {}
        found = {"min": min(shares), "mean": sum(shares) / len(shares), "max": max(shares)}
        return {name: round(value, 4) for name, value in found.items()}

    def metrics(self) -> dict[str, Any]:
        """Return flat counts for the stage's record."""
        return {
            "trajectories": self.num_read,
            "accepted": self.num_accepted,
            "rows": self.num_rows,
            "repaired_rows": self.num_repaired,
            "text_mode_rows": self.num_text_mode,
            "tokens": self.num_tokens,
            "result_tokens": self.num_result_tokens,
            "message_tokens": self.num_message_tokens,
            "target_tokens": self.num_target_tokens,
            **{f"masked_share_{name}": value for name, value in self.masked_shares().items()},
            **_prefixed("reason", self.reasons),
            **_prefixed("rule", self.rules),
            **_prefixed("left_out", self.left_out),
            **_prefixed("accepted", {name: one.accepted for name, one in self.operators.items()}),
            **_prefixed("corrected", {name: one.corrected for name, one in self.operators.items() if one.edited}),
            **_prefixed("dataset", self.datasets),
            **_prefixed("calls.initial", self.calls_initial),
            **_prefixed("calls.rows", self.calls_rows),
        }


def render_report(tally: SftRowsTally) -> str:
    """Return the page `report.md`."""
    share = tally.num_target_tokens / tally.num_tokens if tally.num_tokens else 0.0
    parts = [
        "# Fine-tuning rows",
        f"{tally.num_rows:,} rows from {tally.num_read:,} trajectories, of which {tally.num_accepted:,} passed the "
        f"quality gate. {tally.num_tokens:,} tokens, {tally.num_target_tokens:,} of them targets ({share:.1%}), "
        f"{tally.num_result_tokens:,} in results of tools, {tally.num_message_tokens:,} in messages of the environment "
        f"and around turns. Repaired: {tally.num_repaired:,}. Without token ids: {tally.num_text_mode:,}."
        + _masked_words(tally),
        "## Why trajectories were rejected",
        _table(
            ("reason", "first", "applies", "meaning"),
            [
                (code, tally.reasons[code], tally.rules[code], meaning)
                for code, meaning in REASONS.items()
                if tally.rules[code]
            ],
        ),
        "`first`: trajectories counted under this reason; `applies`: all to which it applies.",
        "## Accepted but not selected",
        _table(("why", "trajectories"), [(code, tally.left_out[code]) for code in DECISIONS[ROW + 1 :]]),
        "## Operators",
        _table(
            ("operator", "trajectories", "accepted", "wrong to right", "rows", "calls of parents", "calls"),
            [_operator_cells(name, one) for name, one in sorted(tally.operators.items())],
        ),
        "Calls are means over accepted trajectories that were made from another one.",
        "## Tool calls",
        _table(
            ("calls", "initial rollouts", "rows"),
            [
                (str(calls), tally.calls_initial[calls], tally.calls_rows[calls])
                for calls in sorted({*tally.calls_initial, *tally.calls_rows})
            ],
        ),
        "## Data sets",
        _table(("data set", "rows"), [(one_line(name), count) for name, count in sorted(tally.datasets.items())]),
    ]
    return "\n\n".join(parts) + "\n"


def _masked_words(tally: SftRowsTally) -> str:
    shares = tally.masked_shares()
    if not shares:
        return ""
    least, mean, most = (f"{shares[name]:.1%}" for name in ("min", "mean", "max"))
    return f" Share of a row that is masked as results: {least} to {most}, {mean} on average."


def _operator_cells(name: str, one: OperatorTally) -> tuple[Cell, ...]:
    before, after = (
        f"{calls / one.edited:.2f}" if one.edited else "-" for calls in (one.calls_before, one.calls_after)
    )
    turned = one.corrected if one.edited else "-"
    return (one_line(name), one.trajectories, one.accepted, turned, one.rows, before, after)


def _table(header: tuple[str, ...], rows: Iterable[tuple[Cell, ...]]) -> str:
    return render_table(Figures("", header, tuple(rows)))


def _ranked(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _prefixed(prefix: str, counts: Mapping[Any, int]) -> dict[str, int]:
    return {f"{prefix}.{name}": count for name, count in sorted(counts.items())}
