"""One trajectory with all that belongs to it, read when it is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from treadle.core.schemas import SCORES
from treadle.eval.viewer.catalogue import Snapshot
from treadle.eval.viewer.parts import Part
from treadle.eval.viewer.segments import segments_of_text
from treadle.eval.viewer.tables import told

_NO_LOSS = -100
_AGENT = (
    "segments", "tool_calls", "error", "num_turns", "calls_requested", "calls_executed", "failed_calls",
    "prompt_tokens", "completion_tokens", "seed", "environment_digest", "tokenizer_digest",
)  # fmt: skip
_FLYWHEEL = (
    "prediction", "correct", "score", "judge", "edit_step", "edit_text", "prompts", "models", "usage",
)  # fmt: skip
_TRAINING = (
    "input", "output", "reward", "correctness", "f_tool", "f_len", "f_format", "format_reason", "prediction",
    "tool_mean", "length_mean", "length_std", "total_tokens", "branch_depth", "seed",
)  # fmt: skip
_COLUMNS = {"rollouts": _AGENT, "pools": (*_AGENT, *_FLYWHEEL), "rl_rollouts": _TRAINING}
_JUDGEMENT = ("kind", "judge", "rollout_key", "prediction", "replies", "error")
_ROW = ("labels", "num_prompt_tokens", "num_tokens", "num_target_tokens", "repaired")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A trajectory as it is stored, and what other tables say of it."""

    number: int
    """Its row in the index."""
    kind: str
    """Table that holds it."""
    facts: dict[str, Any]
    """Its row of `FACTS`."""
    row: dict[str, Any]
    """Columns of its table."""
    segments: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    """Its ledger; empty in `rl_rollouts`, which keeps none."""
    question: dict[str, Any] | None
    score: dict[str, Any] | None
    """Its row of `scores`."""
    sft_row: dict[str, Any] | None
    """The fine-tuning row that it became."""
    problems: list[str]
    """What belongs to it and cannot be read."""
    judgements: Sequence[Mapping[str, Any]] = ()
    """Rows of `judgements` about its answer and its calls."""

    @property
    def targets(self) -> np.ndarray | None:
        """Mask over its token ids: those that fine-tuning learns to write.

        None where it is no row or has no ids, and where the row was repaired, which moves them.
        """
        if self.sft_row is None or self.sft_row["repaired"] or not self.sft_row["labels"]:
            return None
        mask: np.ndarray = np.array(self.sft_row["labels"][self.sft_row["num_prompt_tokens"] :]) != _NO_LOSS
        return mask


def read_trajectory(snapshot: Snapshot, instance: str, key: str) -> Trajectory | None:
    """A trajectory of an instance; None where there is none.

    Raises ArtifactError where it cannot be read; what belongs to it and cannot be read is left out, and told.
    """
    number = snapshot.index.number(instance, key)
    if number is None:
        return None
    part, joined = snapshot.parts[instance], snapshot.parts[instance].joined
    facts = snapshot.index.rows([number])[0]
    row = part.table.row(number - snapshot.index.starts[instance], _COLUMNS[part.kind_name])
    question = score = sft_row = None
    problems: list[str] = []
    with told(problems):
        question = snapshot.questions.row(facts["question_key"])
    with told(problems):
        score = joined.scores.row(key, SCORES.schema.names) if joined.scores else None
    with told(problems):
        sft_row = joined.sft_rows.row(key, _ROW) if joined.sft_rows else None
    one = Trajectory(
        number=number,
        kind=part.kind_name,
        facts=facts,
        row=row,
        segments=segments_in(row),
        calls=orjson.loads(row["tool_calls"]) if "tool_calls" in row else [],
        question=question,
        score=score,
        sft_row=sft_row,
        problems=problems,
    )
    with told(problems):
        one = replace(one, judgements=_judgements(snapshot, part, one))
    return one


def _judgements(snapshot: Snapshot, part: Part, one: Trajectory) -> list[dict[str, Any]]:
    """What judges said of a trajectory, or of the first one of its question that is like it.

    Each is asked once about what it is shown (an answer, all segments); its row names the first trajectory with that.
    """
    if part.joined.judgements is None or one.score is None:
        return []
    rows = part.joined.judgements.rows(one.facts["question_key"], _JUDGEMENT)
    about_answer = [
        row for row in rows if row["kind"] == "correctness" and row["prediction"] == one.score["prediction"]
    ]
    about_calls = (
        [row for row in rows if row["kind"] == "redundancy"] if one.score["votes_abstained"] is not None else []
    )
    own = [row for row in about_calls if row["rollout_key"] == one.facts["key"]]
    return about_answer + (own or [row for row in about_calls if _is_like(snapshot, one, row["rollout_key"])])


def _is_like(snapshot: Snapshot, one: Trajectory, key: str) -> bool:
    """Whether a judge is shown the same of another trajectory of the instance."""
    other = read_segments(snapshot, one.facts["instance"], key)
    return other is not None and _shown(other) == _shown(one.segments)


def _shown(segments: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Segments as a judge is shown them."""
    return [(segment["kind"], segment["text"]) for segment in segments]


def read_segments(snapshot: Snapshot, instance: str, key: str) -> list[dict[str, Any]] | None:
    """Segments alone, as of a parent; None where there is no such trajectory. Raises ArtifactError."""
    number = snapshot.index.number(instance, key)
    if number is None:
        return None
    part = snapshot.parts[instance]
    # All columns of the page: its row group is then there already.
    return segments_in(part.table.row(number - snapshot.index.starts[instance], _COLUMNS[part.kind_name]))


def segments_in(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Segments of a row of any of the tables."""
    segments: list[dict[str, Any]] = (
        orjson.loads(row["segments"]) if "segments" in row else segments_of_text(row["output"])
    )
    return segments
