"""Describe the judgements, scores and rewards of a trajectory for its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from treadle.viewer.dialogue.outcomes import ShownTest, shown_tests
from treadle.viewer.reading import LoadedTrajectory
from treadle.viewer.trajectories import NO_VERDICT, NOT_JUDGED, PARTLY, RIGHT, WRONG

STYLES = {RIGHT: "right", WRONG: "wrong", PARTLY: "partly", NO_VERDICT: "unknown", NOT_JUDGED: "unknown"}
_JUDGED = {True: RIGHT, False: WRONG, None: NO_VERDICT}


class JudgeReply(NamedTuple):
    """Reply of one judge."""

    judge: str
    verdict: str
    status: str
    replies: list[str]
    """Raw replies."""
    error: str | None = None
    """Reason for a missing verdict."""
    grade: float | None = None
    """Grade, of a judge that gives grades."""
    parts: Mapping[str, float] = {}
    """Further numbers that the judge gave in its reply, by name."""


class ShownVotes(NamedTuple):
    """Counts of votes on whether the trajectory has redundant calls."""

    yes: int
    no: int
    abstained: int
    judge: str
    """Name of the voting judge; empty if unknown."""
    replies: list[str]
    """Raw reply to each requested vote."""
    error: str | None
    """Reason if fewer votes were requested than configured."""


class ShownChoice(NamedTuple):
    """Whether a judge picked the trajectory among the attempts at its question."""

    state: str
    judge: str
    """Name of the judge; empty if the choice needed no judge."""
    replies: list[str]
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownVerdict:
    """The verdict on a trajectory."""

    word: str
    by: str
    """Scorer, judge or environment that decided; empty if there is no verdict."""
    prediction: str
    """Predicted answer; empty if there is none."""
    predicted_as: str = "prediction"
    """Label of the prediction: if an environment scores, there is no prediction, so the last turn is shown."""
    measures: Mapping[str, float | None]
    """Figures by name; None without a value."""
    said: list[JudgeReply] = field(default_factory=list)
    votes: ShownVotes | None = None
    choice: ShownChoice | None = None
    error: str | None = None
    tests: Sequence[ShownTest] = ()

    @property
    def style(self) -> str:
        """CSS class of the verdict."""
        return STYLES[self.word]


def verdict_of(one: LoadedTrajectory) -> ShownVerdict:
    """Return the verdict from `scores`, from the row of a pool, or from the reward."""
    word = one.facts["verdict"]
    if one.kind == "rl_rollouts":
        measures = {"score": one.row["score"]}
        return ShownVerdict(word=word, by="reward", prediction=one.row["prediction"], measures=measures)
    if one.kind == "pools":
        judge = orjson.loads(one.row["judge"])
        said = [JudgeReply("judge", word, judge.get("method", ""), _replies(judge))] if judge.get("raw") else []
        return ShownVerdict(
            word=word,
            by=judge.get("method", ""),
            prediction=one.row["prediction"],
            measures={"score": one.row["score"]},
            said=said,
            error=judge.get("error"),
        )
    if one.score is None:
        return ShownVerdict(word=word, by="", prediction="", measures={})
    return _scored(word, one.score, one.judgements)


def _scored(word: str, row: Mapping[str, Any], judgements: Sequence[Mapping[str, Any]]) -> ShownVerdict:
    judges = orjson.loads(row.get("judges") or "{}")
    errors = {one["judge"]: one["error"] for one in judgements if one["kind"] not in ("redundancy", "best_of")}
    parts = {part["name"]: part["value"] for part in row["parts"]}
    measures = {"score": row["score"], **parts} | ({} if row["is_reward"] else {"efficiency": row["efficiency"]})
    return ShownVerdict(
        word=word,
        by=row["scorer"],
        prediction=row["prediction"],
        predicted_as="last turn" if row["is_reward"] else "prediction",
        measures=measures,
        said=[
            JudgeReply(
                name,
                _JUDGED[said.get("verdict")],
                said.get("status") or "",
                _replies(said),
                errors.get(name),
                said.get("grade"),
                said.get("parts") or {},
            )
            for name, said in judges.items()
        ],
        votes=_votes(row, judgements),
        choice=_choice(row, judgements),
        error=row["error"],
        tests=shown_tests(row),
    )


def _votes(row: Mapping[str, Any], judgements: Sequence[Mapping[str, Any]]) -> ShownVotes | None:
    """Return the votes, or None if no model voted."""
    yes, no, abstained = (row.get(name) for name in ("votes_yes", "votes_no", "votes_abstained"))
    if yes is None or no is None or abstained is None:
        return None
    cast: Mapping[str, Any] = next((one for one in judgements if one["kind"] == "redundancy"), {})
    return ShownVotes(yes, no, abstained, cast.get("judge", ""), cast.get("replies", []), cast.get("error"))


def _choice(row: Mapping[str, Any], judgements: Sequence[Mapping[str, Any]]) -> ShownChoice | None:
    """Return the choice among attempts, or None if this trajectory was not compared."""
    if row["best_of"] is None:
        return None
    made: Mapping[str, Any] = next((one for one in judgements if one["kind"] == "best_of"), {})
    return ShownChoice(
        row["best_of"].replace("_", " "), made.get("judge", ""), made.get("replies", []), made.get("error")
    )


def _replies(said: Mapping[str, Any]) -> list[str]:
    return [str(reply) for reply in said.get("raw") or ()]


def reward_of(one: LoadedTrajectory) -> list[tuple[str, float | None, str]]:
    """Return the parts of a reward as (name, value, explanation); empty without a reward."""
    if one.kind != "rl_rollouts":
        return _environment_reward(one.row)
    row = one.row
    notes = ", ".join(row["notes"].split()).replace("_", " ")
    total = [("reward", row["reward"], notes), ("score", row["score"], "of the verdict")]
    return total + [(part["name"].replace("_", " "), part["value"], "") for part in row["parts"]]


def _environment_reward(row: Mapping[str, Any]) -> list[tuple[str, float | None, str]]:
    """Return the reward and its parts that the environment reported during the rollout, before the stage `scores`."""
    outcome: Mapping[str, Any] = orjson.loads(row["outcome"]) if row.get("outcome") else {}
    rewards = [reward for reward in row.get("turn_rewards") or () if reward is not None]
    if row.get("reward") is None and not outcome:
        return []
    is_sum = outcome.get("reward") is None
    meaning = f"sum of {len(rewards):,} turn{'' if len(rewards) == 1 else 's'}" if is_sum and rewards else "at its end"
    has_reward = row.get("reward") is not None or outcome.get("success") is not None
    parts = [("reward", row.get("reward"), f"from the environment, {meaning}")] if has_reward else []
    if outcome.get("success") is not None:
        parts.append(("success", float(outcome["success"]), "1: the task is solved"))
    of = "part of the reward" if has_reward else ""
    return parts + [(name.replace("_", " "), value, of) for name, value in (outcome.get("parts") or {}).items()]
