"""Dump rollouts to one JSON Lines file per step; the engine's process writes them and the stage reads them.

A line has the columns of the table `rl_rollouts`. Only the standard library is imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.rl.groups.group import Group, GroupTrajectory
    from treadle.rl.rewards.rewarded import RewardedItem

_PART = re.compile(r"step-(\d+)\.jsonl")
_DRAWS = "draws"
_STARTED = "started"
_QUESTION = ("question_key", "dataset", "environment")


def write_step(folder: Path, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the rows of one step (counted from 1) in the order given; overwrite those of a step that was killed."""
    write_lines(folder / f"step-{step:06d}.jsonl", rows)


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines; the file is replaced atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    unfinished.replace(path)


def rollout_row(step: int, group: Group, made: GroupTrajectory, reward: RewardedItem) -> dict[str, Any]:
    """Return one row of `rl_rollouts`."""
    question = group.question
    return {
        "step": step,
        "group": group.group_id,
        "session": made.session,
        "question_key": question.key,
        "dataset": question.dataset,
        "domain": question.domain,
        "environment": question.environment,
        "input": question.user_message,
        "output": made.trajectory.text,
        "segments": json.dumps([asdict(segment) for segment in made.trajectory.segments]),
        "reward": reward.reward if reward.scored else None,
        "num_turns": made.trajectory.num_turns,
        "turn_rewards": made.trajectory.turn_rewards,
        "score": reward.score,
        "parts": [{"name": name, "value": value} for name, value in reward.parts.items()],
        "notes": " ".join([*reward.notes, *_notes(made)]),
        "prediction": reward.answer,
        "tool_calls": reward.tool_calls,
        "tool_failures": reward.tool_failures,
        "model_tokens": sum(made.env_mask),
        "total_tokens": made.total_tokens,
        "finish": reward.status,
        "truncated": made.trajectory.truncated,
        "branch_parent": made.branch_parent,
        "branch_depth": made.branch_depth,
        "seed": made.seed,
    }


def _notes(made: GroupTrajectory) -> Iterator[str]:
    """Yield codes for the cause of a lost rollout, and for whether its hint was cut from the training prompt."""
    if made.lost_to:
        yield f"lost:{made.lost_to}"
    if made.hint:
        yield "hint:cut" if made.hint_cut else "hint:kept"


def write_draws(folder: Path, step: int, drawn: Iterable[tuple[Mapping[str, str], Sequence[RewardedItem]]]) -> None:
    """Write the groups of all draws of one step, given as (columns of the question, rewards of the group).

    `folder` is the one of `write_step`. Groups that dynamic sampling drops are included, unlike in `write_step`.
    """
    lines = (
        {
            **{name: question[name] for name in _QUESTION},
            "rewards": [one.reward if one.scored else None for one in rewards],
            "scores": [one.score for one in rewards],
        }
        for question, rewards in drawn
    )
    write_step(folder / _DRAWS, step, lines)


def write_started(folder: Path, step: int, groups: Iterable[Group]) -> None:
    """Write all rollouts that the over-sampled groups of a step started; `folder` is the one of `write_step`."""
    lines = (
        {"step": step, "group": group.group_id, "question_key": group.question.key, "audited": group.is_audit}
        | asdict(one)
        for group in groups
        for one in group.started
    )
    write_step(folder / _STARTED, step, lines)


def started_rollouts(folder: Path, num_steps: int) -> Iterator[dict[str, Any]]:
    """Yield the started rollouts that `write_started` wrote in the steps up to `num_steps`."""
    for lines in read_steps(folder / _STARTED, num_steps):
        yield from lines


def drawn_questions(folder: Path, num_steps: int) -> list[dict[str, Any]]:
    """Return the questions drawn in the steps up to `num_steps`, sorted by key, each with the rewards of its draws.

    `kind` is `easy` if every score of every draw is 1, `hard` if every score is 0, else `mixed`; missing scores do not
    count, and without any score it is `unknown`.
    """
    found: dict[str, dict[str, Any]] = {}
    for lines in read_steps(folder / _DRAWS, num_steps):
        for line in lines:
            of_question = found.setdefault(
                line["question_key"], {**{name: line[name] for name in _QUESTION}, "rewards": [], "scores": []}
            )
            of_question["rewards"].append(line["rewards"])
            of_question["scores"] += [score for score in line["scores"] if score is not None]
    return [
        {**one, "num_draws": len(one["rewards"]), "kind": _kind(one.pop("scores"))} for _, one in sorted(found.items())
    ]


def _kind(scores: Sequence[float]) -> str:
    if not scores:
        return "unknown"
    return "easy" if min(scores) >= 1.0 else "hard" if max(scores) <= 0.0 else "mixed"


def read_steps(folder: Path, num_steps: int) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each dumped step up to `num_steps`, in the order of the steps."""
    if not folder.is_dir():
        return
    parts = {int(match[1]): path for path in folder.iterdir() if (match := _PART.fullmatch(path.name))}
    for step in sorted(step for step in parts if step <= num_steps):
        with parts[step].open(encoding="utf-8") as file:
            yield [json.loads(line) for line in file]
