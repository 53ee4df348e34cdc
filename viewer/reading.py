"""Read one trajectory on demand, with the rows of other tables that belong to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from treadle.eval.tables import SCORES
from treadle.viewer.catalogue import Snapshot
from treadle.viewer.plans.chart import PlanChart
from treadle.viewer.plans.reading import chart_of
from treadle.viewer.preferences.stored import preference_results
from treadle.viewer.tables import collect_problem
from treadle.viewer.trajectories import InstancePart

_IGNORE_INDEX = -100
_AGENT = (
    "first_messages", "segments", "tool_calls", "error", "truncated", "turn_rewards", "reward", "outcome", "num_turns",
    "calls_requested", "calls_executed", "tools", "failed_calls", "prompt_tokens", "completion_tokens", "seed",
    "environment_digest", "samples.list.element.turn_starts",
)  # fmt: skip
_FLYWHEEL = (
    "prediction", "correct", "score", "judge", "edit_step", "edit_text", "prompts", "models", "usage",
)  # fmt: skip
_TRAINING = (
    "domain", "input", "segments", "reward", "turn_rewards", "num_turns", "truncated",
    "score", "parts", "notes", "prediction", "total_tokens", "branch_depth", "seed",
)  # fmt: skip
_COLUMNS = {"rollouts": _AGENT, "pools": (*_AGENT, *_FLYWHEEL), "rl_rollouts": _TRAINING}
_JUDGEMENT = ("kind", "judge", "rollout_key", "prediction", "replies", "error")
_ROW = ("labels", "num_prompt_tokens", "num_tokens", "num_target_tokens", "repaired")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTrajectory:
    """A stored trajectory, joined with the other tables that refer to it."""

    number: int
    """Row number of the trajectory in the viewer's `Index`."""
    kind: str
    """Name of the table that holds it."""
    environment: str
    """Type of the trajectory's environment."""
    facts: dict[str, Any]
    """The trajectory's row in the table `FACTS` of the viewer."""
    row: dict[str, Any]
    """The trajectory's row in the stored table, without the column `samples`."""
    samples: Sequence[Mapping[str, Any]]
    """Its samples, each with `turn_starts`; empty for `rl_rollouts`."""
    segments: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    """Ledger of tool calls; empty for `rl_rollouts`, which stores none."""
    question: dict[str, Any] | None
    has_preferences: bool
    """Whether there are candidates for turns of its instance's rollouts, or pairs of these rollouts."""
    hides: bool
    """Whether its task has information that is hidden from the agent."""
    score: dict[str, Any] | None
    """The trajectory's row in the stored table `scores`; None if it has none."""
    sft_row: dict[str, Any] | None
    """Fine-tuning row that was made from the trajectory; None if there is none."""
    problems: list[str]
    """Error messages of related data that cannot be read."""
    judgements: Sequence[Mapping[str, Any]] = ()
    """Rows of `judgements` about its answer and its calls."""
    plan: PlanChart | None = None
    """Calls of a planning agent over time; None for other agents."""

    @property
    def targets(self) -> np.ndarray | None:
        """Mask over the token ids that fine-tuning trains on.

        None if there is no fine-tuning row, if it has no ids, if the row was repaired, which shifts the ids, or if
        there are several samples.
        """
        if len(self.samples) > 1 or self.sft_row is None or self.sft_row["repaired"] or not self.sft_row["labels"]:
            return None
        mask: np.ndarray = np.array(self.sft_row["labels"][self.sft_row["num_prompt_tokens"] :]) != _IGNORE_INDEX
        return mask


def read_trajectory(snapshot: Snapshot, instance: str, key: str) -> LoadedTrajectory | None:
    """Return a trajectory of an instance, or None if there is none.

    Raise ArtifactError if it cannot be read. Related data that cannot be read is left out and listed in `problems`.
    """
    number = snapshot.index.number(instance, key)
    if number is None:
        return None
    part, joined = snapshot.parts[instance], snapshot.parts[instance].joined
    facts = snapshot.index.rows([number])[0]
    row = part.table.row(number - snapshot.index.starts[instance], _COLUMNS[part.kind_name])
    question = score = sft_row = None
    problems: list[str] = []
    with collect_problem(problems):
        question = snapshot.questions.row(facts["question_key"])
    hides = False
    with collect_problem(problems):
        hides = bool(snapshot.questions.payload(facts["question_key"]))
    with collect_problem(problems):
        score = joined.scores.row(key, SCORES.schema.names) if joined.scores else None
    with collect_problem(problems):
        sft_row = joined.sft_rows.row(key, _ROW) if joined.sft_rows else None
    one = LoadedTrajectory(
        number=number,
        kind=part.kind_name,
        environment=part.environment_type(facts["environment"]),
        facts=facts,
        row=row,
        samples=row.pop("samples", None) or (),
        segments=orjson.loads(row["segments"]),
        calls=orjson.loads(row["tool_calls"]) if "tool_calls" in row else [],
        question=question,
        has_preferences=bool(preference_results(snapshot.run, instance)),
        hides=hides,
        score=score,
        sft_row=sft_row,
        problems=problems,
    )
    with collect_problem(problems):
        one = replace(one, judgements=_judgements(snapshot, part, one))
    if one.kind == "rollouts" and one.calls:
        with collect_problem(problems):
            places = (instance, facts["environment"], key)
            one = replace(one, plan=chart_of(snapshot.run, *places, (one.segments, one.calls)))
    return one


def _judgements(snapshot: Snapshot, part: InstancePart, one: LoadedTrajectory) -> list[dict[str, Any]]:
    """Return the judgements of a trajectory, or of the first identical one of the same question.

    A judge is asked once per distinct input (an answer, or all segments); the row names the first trajectory with it.
    """
    if part.joined.judgements is None or one.score is None:
        return []
    rows = part.joined.judgements.rows(one.facts["question_key"], _JUDGEMENT)
    of_answer = [row for row in rows if row["prediction"] and row["prediction"] == one.score["prediction"]]
    has_votes = one.score["votes_abstained"] is not None
    left_out = ("best_of",) if has_votes else ("best_of", "redundancy")
    of_trajectory = [row for row in rows if not row["prediction"] and row["kind"] not in left_out]
    own = [row for row in of_trajectory if row["rollout_key"] == one.facts["key"]]
    own = own or [row for row in of_trajectory if _has_same_input(snapshot, one, row["rollout_key"])]
    # A question has one choice, which all its attempts share.
    choices = [row for row in rows if row["kind"] == "best_of"] if one.score["best_of"] is not None else []
    return of_answer + own + choices


def _has_same_input(snapshot: Snapshot, one: LoadedTrajectory, key: str) -> bool:
    """Return whether a judge gets the same input from `one` and from the trajectory `key` of the same instance."""
    other = read_segments(snapshot, one.facts["instance"], key)
    return other is not None and _shown(other) == _shown(one.segments)


def _shown(segments: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the segments as a judge sees them."""
    return [(segment["kind"], segment["text"]) for segment in segments]


def read_segments(snapshot: Snapshot, instance: str, key: str) -> list[dict[str, Any]] | None:
    """Return the segments only, for example of a parent; None if there is no such trajectory. Raise ArtifactError."""
    number = snapshot.index.number(instance, key)
    if number is None:
        return None
    part = snapshot.parts[instance]
    # Read all columns of the page, so that the same cached row group serves both.
    row = part.table.row(number - snapshot.index.starts[instance], _COLUMNS[part.kind_name])
    segments: list[dict[str, Any]] = orjson.loads(row["segments"])
    return segments
