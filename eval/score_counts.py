"""Count rows of `scores` and of `judgements` for the metrics of the stage, and check how many have no verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from treadle.core.answers.math_equal import UNDECIDED_RULES
from treadle.core.errors import StageFailed
from treadle.eval.asking.choices import PASSED_OVER
from treadle.eval.figures.attempts import PICKED, UNDECIDED
from treadle.eval.verdicts import FAILED as UNREADABLE
from treadle.eval.verdicts import (
    FALLBACK_RULE,
    JUDGE,
    agreement,
    joint_verdicts,
)

_JUDGE_REMEDY = (
    "; raise scores.judges.sampling.max_tokens, set scores.judges.on_failed = 'rule' to fall back to the rule, or use "
    "another judge, then run the stage again: only new requests are made"
)


_VOTES = ("votes_yes", "votes_no", "votes_abstained")


@dataclass(slots=True)
class ScoreCounts:
    """Counters for the metrics of the stage."""

    judges: tuple[str, ...]
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    judge_errors: set[str] = field(default_factory=set)
    usage: dict[str, Counter[str]] = field(default_factory=dict)
    joint: list[list[bool]] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    """Judge -> number of answers about which it replied, parsably or not."""
    num_unreadable: Counter[str] = field(default_factory=Counter)
    """Judge -> number of answers for which no reply could be parsed."""
    votes: Counter[str] = field(default_factory=Counter)
    """Column of votes (`votes_yes`, `votes_no`, `votes_abstained`) -> number of votes."""

    def count(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Count rows of `scores`."""
        counts = self.counts
        for row in rows:
            counts["num_rollouts"] += 1
            counts["num_correct"] += row["correct"] is True
            counts["num_scorer_failed"] += row["error"] is not None
            counts[f"status_{row['status']}"] += 1
            counts[f"scorer_{row['scorer']}"] += 1
            counts["num_symbolic_undecided"] += row["scorer"] in UNDECIDED_RULES
            if row["judge_status"] is not None:
                counts[f"judge_{row['judge_status']}"] += 1
                for judge, judge_verdict in orjson.loads(row["judges"]).items():
                    self.asked[judge] += judge_verdict["status"] != FALLBACK_RULE
                    self.num_unreadable[judge] += judge_verdict["status"] == UNREADABLE
            self.votes.update({name: row[name] or 0 for name in _VOTES})
            if row["best_of"] is not None:
                counts[f"best_of_{row['best_of']}"] += 1
            if row["error"] is not None:
                self.errors[row["error"]] += 1
                self.judge_errors |= {row["error"]} if row["scorer"] == JUDGE else set()
            if len(self.judges) > 1 and (joint := joint_verdicts(orjson.loads(row["judges"]), self.judges)):
                self.joint.append(joint)

    def count_judgement(self, row: Mapping[str, Any]) -> None:
        """Count a row of `judgements` and its token usage, even if an earlier attempt paid for it."""
        self.counts["num_judgements"] += 1
        used = {"calls": len(row["replies"])}
        used |= {name: row[name] for name in ("prompt_tokens", "completion_tokens")}
        self.usage.setdefault(f"{row['kind']}:{row['judge']}", Counter()).update(used)

    def check(self, max_error_rate: float) -> None:
        """Raise StageFailed if too many rows have no verdict."""
        failed, total = self.counts["num_scorer_failed"], self.counts["num_rollouts"]
        if failed > max_error_rate * total:
            cause, times = self.errors.most_common(1)[0]
            remedy = _JUDGE_REMEDY if cause in self.judge_errors else ""
            raise StageFailed(
                f"{failed} of {total} rollouts have no verdict, more than scores.max_error_rate = {max_error_rate:g} "
                f"allows; most often ({times} times): {cause}{remedy}"
            )

    def check_judges(self) -> None:
        """Raise StageFailed if more than half of one judge's replies, of the votes, or of the choices cannot be parsed.

        A single judge is covered by `check` and `on_failed` instead.
        """
        for judge, failed in self.num_unreadable.items():
            if len(self.judges) > 1 and 2 * failed > self.asked[judge]:
                raise StageFailed(
                    f"judge {judge} gave no parsable reply for {failed:,} of {self.asked[judge]:,} answers; "
                    f"remove it from scores.judges.models{_JUDGE_REMEDY}"
                )
        compared = {name: self.counts[f"best_of_{name}"] for name in (PICKED, PASSED_OVER, UNDECIDED)}
        if 2 * compared[UNDECIDED] > sum(compared.values()):
            raise StageFailed(
                f"the choices among {compared[UNDECIDED]:,} of {sum(compared.values()):,} attempts cannot be parsed; "
                "set another scores.best_of.model or raise scores.best_of.sampling.max_tokens, then run the stage "
                "again: only new requests are made"
            )
        votes, abstained = self.votes.total(), self.votes["votes_abstained"]
        if 2 * abstained > votes:
            raise StageFailed(
                f"{abstained:,} of {votes:,} votes on wasted calls cannot be parsed; set another "
                "scores.redundancy.model or raise scores.redundancy.sampling.max_tokens, then run the stage again: "
                "only new requests are made"
            )

    def progress(self) -> dict[str, int]:
        """Return the counts shown next to the progress bar."""
        return {"correct": self.counts["num_correct"], "unscored": self.counts["num_scorer_failed"]}

    def metrics(self, num_missing: int | None) -> dict[str, Any]:
        """Return flat counts. `num_missing` is None if no judge is configured."""
        num_scored = self.counts["num_rollouts"] - self.counts["num_scorer_failed"]
        found: dict[str, Any] = {
            **dict(sorted(self.counts.items())),
            "accuracy": self.counts["num_correct"] / num_scored if num_scored else None,
        }
        if num_missing is None:
            return found
        found |= {"num_judgements_missing": num_missing}
        found |= {"usage": {role: dict(self.usage[role]) for role in sorted(self.usage)}}
        if len(self.judges) > 1:
            joint = agreement(self.joint)
            found |= {
                "num_judged_jointly": joint.num_answers,
                "judge_agreement": joint.share,
                "judge_kappa": joint.kappa,
            }
        return found
