"""Make pairs of whole trajectories from scored rollouts, for a critic or for a policy.

Rewards are read first, then the token ids of the rollouts in pairs. If rollouts are in the order of their tasks, as the
stage `rollouts` writes them, the token ids of only one task are in memory at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from treadle.core.config import digest_json
from treadle.core.errors import ArtifactError, StageFailed
from treadle.core.runs.stage import StageContext
from treadle.environments.rollouts.rows import FAILED
from treadle.rl.preferences.critic_prompts import (
    HiddenStatements,
    PromptRenderer,
    tokenizer_of,
    told_messages,
    train_questions,
)
from treadle.rl.preferences.pairs import Pair, pairs_by_gap, pairs_with_best
from treadle.rl.preferences.settings import PreferencesOptions, PreferencesSettings
from treadle.rl.preferences.tables import PREFERENCES
from treadle.rl.preferences.token_spans import only_sample, spans_of_sample

_SCORED = ("rollout_key", "question_key", "sample_index", "status", "score")
_READ = (
    "rollout_key", "question_key", "dataset", "environment", "first_messages", "tool_schemas", "text", "samples",
    "tokenizer_digest",
)  # fmt: skip


@dataclass(slots=True)
class _TaskPairs:
    """Pairs of one task, as (chosen key, rejected key, margin), with the rows of rollouts that have been read."""

    pairs: list[tuple[str, str, float]]
    rows: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def missing(self) -> set[str]:
        """Keys of the rollouts that have not been read."""
        return {key for *keys, _ in self.pairs for key in keys} - self.rows.keys()


def task_pairs(options: PreferencesOptions, rewards: list[float | None]) -> list[Pair]:
    """Return the pairs of one task by the configured rule."""
    if options.rule == "gap":
        return pairs_by_gap(rewards, options.min_gap)
    return pairs_with_best(rewards, options.min_best)


class TrajectoryPairs:
    """State of one attempt of the stage, for pairs of trajectories."""

    def __init__(self, context: StageContext) -> None:
        self._context = context
        self._settings: PreferencesSettings = context.settings
        self._options = self._settings.options
        checkpoints = context.inputs.get("checkpoint", ())
        tokenizer = tokenizer_of(self._settings.tokenizer, self._settings.tokenizer_digest, checkpoints)
        self._prompts = PromptRenderer(self._settings, tokenizer)
        self._is_hidden = self._settings.kind == "trajectory" and self._options.hidden_information
        self._counts: Counter[str] = Counter()
        self._longest = 0

    def run(self) -> dict[str, Any]:
        """Write the pairs and return the metrics; raise StageFailed if there is no pair."""
        waiting = self._choose()
        statements = None
        if self._is_hidden:
            statements = HiddenStatements(
                self._settings, self._context.inputs["questions"], frozenset(waiting), self._options.hidden_chars
            )
        self._context.progress.start(len(waiting), 0, "tasks")
        for key, task in self._read(waiting):
            rows = list(self._rows(task, statements.of(key) if statements is not None else ""))
            self._context.write(PREFERENCES.kind, rows)
            self._counts["pairs"] += len(rows)
            self._context.progress.advance(1, pairs=self._counts["pairs"])
        return self._metrics()

    def _choose(self) -> dict[str, _TaskPairs]:
        """Return task key -> pairs, for the tasks of the split `train` that have any pairs."""
        train = train_questions(self._context.inputs["questions"])
        samples: dict[str, list[tuple[int, str, float | None]]] = {}
        for table in self._context.inputs["scores"]:
            for row in table.rows(_SCORED):
                if row["question_key"] in train:
                    reward = None if row["status"] == FAILED else row["score"]
                    samples.setdefault(row["question_key"], []).append(
                        (row["sample_index"], row["rollout_key"], reward)
                    )
        self._counts["tasks"] = len(samples)
        found = {}
        for key, scored in samples.items():
            scored.sort()
            rewards = [reward for _, _, reward in scored]
            pairs = [
                (scored[chosen][1], scored[rejected][1], (rewards[chosen] or 0.0) - (rewards[rejected] or 0.0))
                for chosen, rejected in task_pairs(self._options, rewards)
            ]
            if pairs:
                found[key] = _TaskPairs(pairs)
        self._counts["tasks_with_pairs"] = len(found)
        return found

    def _read(self, waiting: Mapping[str, _TaskPairs]) -> Iterator[tuple[str, _TaskPairs]]:
        """Yield each task when all rollouts of its pairs have been read; raise ArtifactError if one is missing."""
        open_tasks = dict(waiting)
        for table in self._context.inputs["rollouts"]:
            for row in table.rows(_READ):
                task = open_tasks.get(row["question_key"])
                if task is None or row["rollout_key"] not in task.missing:
                    continue
                task.rows[row["rollout_key"]] = row
                if not task.missing:
                    yield row["question_key"], open_tasks.pop(row["question_key"])
        if open_tasks:
            key = min(next(iter(open_tasks.values())).missing)
            raise ArtifactError(
                f"the scored rollout {key} is not there; run `scores` on the rollouts that are read here"
            )

    def _rows(self, task: _TaskPairs, statement: str) -> Iterator[dict[str, Any]]:
        for chosen_key, rejected_key, margin in task.pairs:
            chosen, rejected = task.rows[chosen_key], task.rows[rejected_key]
            row = self._row(chosen, rejected, statement)
            if row is not None:
                yield {**row, "margin": margin}

    def _row(self, chosen: Mapping[str, Any], rejected: Mapping[str, Any], statement: str) -> dict[str, Any] | None:
        """Return the row of a pair without its margin; count the reason and return None if it cannot be used."""
        sides = []
        for rollout in (chosen, rejected):
            sample, why = only_sample(rollout)
            if sample is None:
                self._counts[f"left_out.{why}"] += 1
                return None
            self._prompts.check(rollout, sample.prompt_ids_for_training)
            sides.append((sample.prompt_ids_for_training, spans_of_sample(sample)))
        (prompt, better), (other_prompt, worse) = sides
        if prompt != other_prompt or better.ids == worse.ids:
            self._counts["left_out.other_prompt" if prompt != other_prompt else "left_out.same_ids"] += 1
            return None
        prompt_ids = self._prompts.ids(chosen, statement)
        self._longest = max(self._longest, len(prompt_ids) + max(len(better.ids), len(worse.ids)))
        messages = told_messages(orjson.loads(chosen["first_messages"]), statement)
        keys = [chosen["rollout_key"], rejected["rollout_key"]]
        row = {
            "pair_key": digest_json([self._settings.kind, self._is_hidden, *keys])[:16],
            "kind": self._settings.kind,
            **{name: chosen[name] for name in ("question_key", "dataset", "environment", "tokenizer_digest")},
            "hidden": self._is_hidden,
            "messages": orjson.dumps(messages).decode(),
            "prompt_ids": prompt_ids,
        }
        for name, rollout, spans in (("chosen", chosen, better), ("rejected", rejected, worse)):
            row |= {f"{name}_key": rollout["rollout_key"], f"{name}_text": rollout["text"], f"{name}_ids": spans.ids}
            row |= {f"{name}_mask": spans.mask, f"{name}_turns": spans.turns}
        return row

    def _metrics(self) -> dict[str, Any]:
        counts = self._counts
        if not counts["pairs"]:
            left_out = ", ".join(f"{why} {number:,}" for why, number in sorted(counts.items()) if "left_out" in why)
            rule = f"min_best = {self._options.min_best:g}"
            if self._options.rule == "gap":
                rule = f"min_gap = {self._options.min_gap:g}"
            raise StageFailed(
                f"{self._context.address}: no pair among the rollouts of {counts['tasks']:,} tasks of the split train "
                f"with {rule}{f' ({left_out})' if left_out else ''}; roll out more samples per task, or lower it"
            )
        return {**dict(sorted(counts.items())), "longest_row": self._longest}
