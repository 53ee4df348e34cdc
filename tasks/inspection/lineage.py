"""Trace the lineage of a row: from a trajectory back to the row of the user's file, and on to its verdicts.

For the trajectories that the data flywheel derived from a question, see `tasks/inspection/pool_tree.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from treadle.core.errors import ArtifactError, DataError
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.store.text_arrays import one_of
from treadle.core.untrusted.sanitize import one_line
from treadle.datagen.exploration.rows import seed_of
from treadle.environments.settings import DEFAULT_TYPE
from treadle.environments.stored_settings import environment_label
from treadle.stages.registry import other_names, stage_entry
from treadle.tasks.inspection.pool_tree import pool_trees
from treadle.tasks.inspection.rows import environment_type_of, full_key, rows_with
from treadle.viewer.changes.trajectory_changes import TrajectoryChanges, changes_between

_KEY_OF_ITERATION = re.compile(r"([1-9]\d{0,3})/(.*)")
_ROLLOUTS = ("rollouts", "rollout_key")
_POOLS = ("pools", "rollout_key")
_QUESTIONS = ("questions", "question_key")
_MOST_FACTS_CHARS = 200


@dataclass(frozen=True, slots=True)
class FoundRollout:
    """A trajectory with everything that belongs to it."""

    address: Address
    rollout: dict[str, Any]
    question: dict[str, Any]
    score: dict[str, Any] | None
    """Row of `scores`. None if there is none, and for trajectories of a pool, which contain their own verdict."""
    segments: list[dict[str, Any]]
    tool_calls: list[dict[str, Any]]
    environment: str = DEFAULT_TYPE
    """Type of its environment."""
    parent: dict[str, Any] | None = None
    """Row of the trajectory that it was edited from, with parsed segments."""
    score_errors: tuple[str, ...] = ()
    """Errors of tables that may hold its score: damaged, or written by another version."""

    @property
    def is_of_pool(self) -> bool:
        """True if the trajectory comes from `pools`."""
        return "edit_step" in self.rollout

    @property
    def environment_label(self) -> str:
        """Type of its environment, with its name if it is not the default one."""
        return environment_label(self.rollout["environment"], self.environment)

    @property
    def changes(self) -> TrajectoryChanges | None:
        """Differences from the parent trajectory; None without a parent."""
        return changes_between(self.parent["segments"], self.segments) if self.parent else None

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        rollout = {**self.rollout, "segments": self.segments, "tool_calls": self.tool_calls}
        for name in ("judge", "prompts", "models", "usage"):
            if self.is_of_pool:
                rollout[name] = orjson.loads(rollout[name])
        changes = self.changes
        more = {"parent": self.parent, "changes": changes and changes.as_dict()} if self.is_of_pool else {}
        return {
            "instance": str(self.address),
            "environment": self.environment,
            "rollout": rollout,
            "question": self.question,
            "score": self.score,
        } | more


@dataclass(frozen=True, slots=True)
class LineageStep:
    """One step of a lineage; `facts` name a row, the artifacts that hold it, or a question's pool (under `pool`)."""

    label: str
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return {"label": self.label, **self.facts}


def find_rollout(run: Run, key: str) -> FoundRollout:
    """Return a rollout, or a trajectory of a pool, by its key or a unique prefix; raise DataError.

    Iterations with equal seeds produce equal keys. `2/<key>` selects the trajectory of the second iteration; a key
    alone selects that of the last iteration that has it.
    """
    iteration, key = _split_key(key)
    kind, whole = full_key(run, (_ROLLOUTS, _POOLS), key, "trajectory", iteration)
    return _found(run, kind, whole, iteration)


def _split_key(text: str) -> tuple[int | None, str]:
    """Split `2/<key>` into iteration and key; the iteration is None if the text names none."""
    match = _KEY_OF_ITERATION.fullmatch(text)
    return (int(match[1]), match[2]) if match else (None, text)


def _found(run: Run, kind: str, key: str, iteration: int | None) -> FoundRollout:
    made = rows_with(run, kind, "rollout_key", key, iteration=iteration)
    # The last iteration that has the key.
    address, row = max(made, key=lambda found: found[0].iteration)
    score, score_errors = _score(run, key, address.iteration) if kind == "rollouts" else (None, ())
    parent = None
    if kind == "pools" and row["parents"]:
        parents = rows_with(run, kind, "rollout_key", row["parents"][0], _PARENT, iteration=address.iteration)
        found = (row for _, row in parents)
        parent = next(({**one, "segments": orjson.loads(one["segments"])} for one in found), None)
    return FoundRollout(
        address=address,
        rollout=row,
        question=_question(run, row["question_key"]),
        score=score,
        segments=orjson.loads(row["segments"]),
        tool_calls=orjson.loads(row["tool_calls"]),
        environment=environment_type_of(run, address, row["environment"]),
        parent=parent,
        score_errors=score_errors,
    )


def _score(run: Run, key: str, iteration: int) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Return the `scores` row of a rollout or None, and without a row the errors of unreadable score tables."""
    score_errors = []
    for record in run.records():
        if "scores" in record.outputs and Address.parse(record.address).iteration == iteration:
            try:
                table = run.rows(record.outputs["scores"])
                for batch in table.matching("rollout_key", one_of([key])):
                    for row in batch.to_pylist():
                        return row, ()
            except ArtifactError as error:
                score_errors.append(f"{record.address}: {error}")
    return None, tuple(score_errors)


_PARENT = ("rollout_key", "operator", "round", "status", "correct", "prediction", "calls_requested", "text", "segments")


def _question(run: Run, key: str) -> dict[str, Any]:
    row = next((row for _, row in rows_with(run, "questions", "question_key", key)), None)
    if row is None:
        raise DataError(
            f"question {key} is in no table of questions of run {run.run_id}, so its source is unknown; "
            "`treadle verify` shows what else is missing"
        )
    return row


def trace_back(run: Run, key: str) -> list[LineageStep]:
    """Return the lineage of a trajectory or a question, from its source on; raise DataError for an unknown key."""
    iteration, key = _split_key(key)
    kind, whole = full_key(run, (_ROLLOUTS, _POOLS, _QUESTIONS), key, "trajectory or question", iteration)
    if kind == "rollouts":
        found = _found(run, kind, whole, iteration)
        steps = [*_question_steps(run, found.question), *_rollout_steps(run, found)]
        rows = _fine_tuning(run, whole, found.address.iteration)
        selections = _selections(run, found.question["question_key"], of_rollout=found)
        return [*steps, *rows, *selections, *_other_steps(run, whole, "rollout_key", found.address.iteration)]
    if kind == "pools":
        columns = ("rollout_key", "question_key")
        _, row = next(rows_with(run, "pools", "rollout_key", whole, columns))
        question = _question(run, row["question_key"])
        return [*_question_steps(run, question), *_pool_steps(run, question, chosen=whole)]
    question = _question(run, whole)
    rollouts = rows_with(run, "rollouts", "question_key", whole, ("rollout_key", "status"))
    return [
        *_question_steps(run, question),
        *(
            LineageStep(f"rollout {row['rollout_key']} by {address}: {row['status']}", {"rollout": row["rollout_key"]})
            for address, row in rollouts
        ),
        *_selections(run, whole),
        *_trainings(run, whole),
        *_pool_steps(run, question, chosen=None),
        *_other_steps(run, whole, "question_key"),
    ]


def _question_steps(run: Run, question: dict[str, Any]) -> list[LineageStep]:
    source = {"file": question["source_file"], "row": question["source_row"]}
    seed = seed_of(question)
    return [
        *(_question_steps(run, _question(run, seed)) if seed is not None else ()),
        LineageStep(f"source {source['file']}, row {source['row']}", source),
        LineageStep(
            f"question {question['question_key']} ({question['dataset']}, {question['split']}): {question['question']}",
            {"question": question["question_key"], "artifacts": _artifacts(run, "questions")},
        ),
    ]


def _pool_steps(run: Run, question: dict[str, Any], chosen: str | None) -> list[LineageStep]:
    return [
        LineageStep(
            label,
            {
                "instance": str(address),
                "environment": environment_type_of(run, address, question["environment"]),
                "artifacts": _artifacts(run, "pools", address),
                "pool": tree,
            },
        )
        for address, label, tree in pool_trees(run, question, chosen)
    ]


def _rollout_steps(run: Run, found: FoundRollout) -> list[LineageStep]:
    row = found.rollout
    steps = [LineageStep(f"parent {parent}", {"parent": parent}) for parent in row["parents"]]
    made = f"operator {row['operator']}, round {row['round']}, model {row['model']}, seed {row['seed']}"
    made += "" if found.environment_label == DEFAULT_TYPE else f", environment {found.environment_label}"
    steps.append(
        LineageStep(
            f"rollout {row['rollout_key']} by {found.address} ({made}): {row['status']}",
            {
                "rollout": row["rollout_key"],
                "environment": found.environment,
                "artifacts": _artifacts(run, "rollouts", found.address),
            },
        )
    )
    if found.score is not None:
        verdict = {True: "correct", False: "wrong", None: "no verdict"}[found.score["correct"]]
        steps.append(LineageStep(f"verdict by {found.score['scorer']}: {verdict}", {"score": found.score}))
    steps += [LineageStep(f"verdict not read: {problem}") for problem in found.score_errors]
    return steps


def _fine_tuning(run: Run, key: str, iteration: int) -> list[LineageStep]:
    """Return whether rows were made from a rollout: its row of `sft_rows`, or why it has none."""
    rows = rows_with(run, "sft_rows", "rollout_key", key, ("rollout_key",), iteration=iteration)
    rejections = rows_with(run, "sft_rejections", "rollout_key", key, ("rollout_key", "reasons"), iteration=iteration)
    return [
        *(
            LineageStep(
                f"fine-tuning row of {address}", {"row": key, "artifacts": _artifacts(run, "sft_rows", address)}
            )
            for address, _ in rows
        ),
        *(
            LineageStep(
                f"no fine-tuning row of {address}: {', '.join(row['reasons'])}", {"reasons": list(row["reasons"])}
            )
            for address, row in rejections
        ),
    ]


def _selections(run: Run, question_key: str, *, of_rollout: FoundRollout | None = None) -> list[LineageStep]:
    """Return a step per phase that selected a question; with `of_rollout`, only phases that used this rollout."""
    columns = ("question_key", "method", "rank", "parts", "score_tool", "score_corr", "parents")
    iteration, key = (of_rollout.address.iteration, of_rollout.rollout["rollout_key"]) if of_rollout else (None, "")
    return [
        LineageStep(
            f"selected by {address}: {_place(row)}, spread of calls {row['score_tool']:.3g}, of scores "
            f"{row['score_corr']:.3g}",
            {"question": question_key, "artifacts": _artifacts(run, "rl_rows", address)},
        )
        for address, row in rows_with(run, "rl_rows", "question_key", question_key, columns, iteration=iteration)
        if of_rollout is None or key in row["parents"]
    ]


def _place(row: Mapping[str, Any]) -> str:
    """Return the method that selected a question, the question's rank, and the values that the method computed."""
    rank = [] if row["rank"] is None else [f"rank {row['rank']}"]
    return ", ".join([row["method"], *rank, *(f"{part['name']} {part['value']:.3g}" for part in row["parts"])])


def _trainings(run: Run, question_key: str) -> list[LineageStep]:
    """Return one lineage step for each curriculum phase that trained on a question."""
    steps: dict[Address, Counter[int]] = {}
    for address, row in rows_with(run, "rl_rollouts", "question_key", question_key, ("question_key", "step")):
        steps.setdefault(address, Counter())[row["step"]] += 1
    return [
        LineageStep(
            f"trained on by {address}: "
            + ", ".join(f"{count:,} trajectories in step {step:,}" for step, count in sorted(counts.items())),
            {"question": question_key, "steps": sorted(counts), "artifacts": _artifacts(run, "rl_rollouts", address)},
        )
        for address, counts in steps.items()
    ]


def _other_steps(run: Run, key: str, column: str, iteration: int | None = None) -> list[LineageStep]:
    """Return one lineage step for each row that stages of other packages made of a trajectory or a question."""
    steps = []
    for name in other_names():
        for table in stage_entry(name).stage.produces:
            if column in table.schema.names:
                for address, row in rows_with(run, table.kind, column, key, iteration=iteration):
                    facts = ", ".join(f"{field} {row[field]}" for field in table.visible if field != column)
                    steps.append(
                        LineageStep(
                            f"row of {table.kind} by {address}: {one_line(facts)[:_MOST_FACTS_CHARS]}",
                            {"row": row, "artifacts": _artifacts(run, table.kind, address)},
                        )
                    )
    return steps


def _artifacts(run: Run, kind: str, address: Address | None = None) -> list[str]:
    """Return the digests of the tables of a kind that one instance made; by default of all instances."""
    records = [record for record in run.records() if address in (None, Address.parse(record.address))]
    return sorted({record.outputs[kind].digest for record in records if kind in record.outputs})
