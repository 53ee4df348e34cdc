"""Looks at rollouts with hints in TRL's batch and loss, from inside the engine's environment; prints a line of JSON.

`python hint_checks.py POLICY JOB`: POLICY is the folder of a small policy, JOB a job with a plan.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from support.training.rewards import group_rewards
from support.training.scripted_groups import ALONE, CONTRACT_JOBS, contract_generator, contract_rollouts
from trl import GRPOConfig

from treadle.agent.contract import Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.trajectory import Trajectory
from treadle.core.chat import ChatTokenizer
from treadle.core.engines.events import EventFile
from treadle.rl.engine.group_source import ScoredGroup
from treadle.rl.engine.trl import rollout_function
from treadle.rl.engine.trl import trainer as trl_trainer
from treadle.rl.engine.trl.events import TrlReporter
from treadle.rl.experience.hints import HintedRuntime, Hints
from treadle.rl.experience.pool import ExperiencePool
from treadle.rl.experience.record import Experience
from treadle.rl.experience.settings import ExperienceUse
from treadle.rl.groups.attempts import require_groups
from treadle.rl.groups.group import Group, GroupTrajectory
from treadle.rl.groups.samples import GroupSample
from treadle.rl.training.plan import RlPlan
from treadle.rl.trl.config import trl_arguments

ADVICE = "count the number twice"
USE = ExperienceUse(rollout_mode="mixed", rollout_ratio=0.5)
KEPT = "key-1"

# Rows of the golden batch: whether its hint was cut, advantage, mask, ratio of each token to its old probability.
GOLDEN: tuple[tuple[bool, float, list[int], list[float]], ...] = (
    (True, 1.0, [1, 0, 1], [1.5, 9.0, 0.7]),
    (False, 1.0, [1, 1], [1.5, 0.7]),
    (True, 1.0, [1], [1.8]),
    (False, 1.0, [1], [1.8]),
    (True, -1.0, [1, 1], [5.0, 0.5]),
    (False, -1.0, [1, 1], [5.0, 0.5]),
    (True, -1.0, [1], [1.5]),
    (False, -1.0, [1], [1.5]),
)


def main(policy: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Everything."""
    plan = RlPlan.from_json(json.dumps(job["plan"]))
    return {"golden": golden(policy, plan), "batch": batch(policy, plan)}


def golden(policy: Path, plan: RlPlan) -> dict[str, Any]:
    """Return the loss of the golden batch, and the same if no hint was cut."""
    found = {}
    for name, cuts in (("hinted", True), ("plain", False)):
        trainer = _trainer(policy, _plan(plan, 1, clip_high=0.28), _GoldenSource(cuts))
        trainer._step = 0
        inputs = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
        ratios = torch.ones(inputs["completion_ids"].shape)
        for row, (_, _, _, values) in zip(ratios, GOLDEN, strict=True):
            row[: len(values)] = torch.tensor(values)
        inputs["old_per_token_logps"] = torch.full(ratios.shape, -2.0)
        trainer._get_per_token_logps_and_entropies = _scores(inputs["old_per_token_logps"] + ratios.log())
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        found[name] = float(trainer._compute_loss(trainer.model, inputs))
        found[f"{name}_clipped"] = trainer._metrics["train"]["clip_ratio/high_mean"][-1]
        found[f"{name}_ranges"] = [trainer.epsilon_low, trainer.epsilon_high]
    return found


def _scores(logprobs: torch.Tensor) -> Any:
    return lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None)


class _GoldenSource:
    """One group with the golden rows."""

    def __init__(self, cuts: bool) -> None:
        self._cuts = cuts

    def credited(self, groups: list[ScoredGroup], step: int) -> list[ScoredGroup]:
        return groups

    def step(self, step: int, rows: list[Task], first: int) -> list[ScoredGroup]:
        """Return the group, whatever is asked."""
        trajectories = [
            GroupTrajectory(
                session=number,
                samples=[
                    GroupSample([65], [66] * len(mask), mask, [-2.0] * len(mask), [0], hint_cut=cut and self._cuts)
                ],
                trajectory=Trajectory("answered", "", [], [], [], 1),
                branch_parent=None,
                branch_depth=0,
                seed=0,
            )
            for number, (cut, _, mask, _) in enumerate(GOLDEN)
        ]
        group = Group("g", rows[0], trajectories)
        rewards = group_rewards(group.items, ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)
        return [ScoredGroup(group, rewards, [[advantage] for _, advantage, _, _ in GOLDEN])]


def batch(policy: Path, plan: RlPlan) -> dict[str, Any]:
    """Return what two groups with hints look like in TRL's batch: that of one task keeps its hints."""
    codec = ChatTokenizer.load(policy)
    source = _HintedSource(codec)
    trainer = _trainer(policy, _plan(plan, 2), source)
    inputs = trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
    rows = []
    for number in range(len(inputs["prompt_ids"])):
        prompt = inputs["prompt_ids"][number][inputs["prompt_mask"][number].bool()].tolist()
        attended = inputs["completion_mask"][number].bool()
        ids = inputs["completion_ids"][number][attended].tolist()
        with torch.no_grad():
            logits = trainer.model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        own = (logits / trainer.temperature).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        old = inputs["old_per_token_logps"][number][attended]
        sampled = inputs["tool_mask"][number][attended].bool()
        text = codec.decode(prompt)
        rows.append(
            {
                "task": KEPT if "Question 1?" in text else "key-0",
                "shows": ADVICE in text,
                "hint_cut": bool(inputs["hint_cut"][number]),
                "ids": ids,
                "logprob_error": float((own - old)[sampled].abs().max()),
            }
        )
    made = {
        group.question.key: [{"hinted": ADVICE in one.hint, "ids": [*one.completion_ids]} for one in group.trajectories]
        for group in source.made
    }
    return {"rows": rows, "groups": made}


class _HintedSource:
    """Two groups of the scenario that every engine plays alike, without branches and with hints."""

    def __init__(self, codec: ChatTokenizer) -> None:
        rollouts = replace(contract_rollouts(contract_generator(codec), codec), branching=ALONE)
        pool = ExperiencePool("default", 0.8, [Experience("strategy", "a question", ADVICE)])
        hints = Hints(USE, pool, frozenset({KEPT}))
        rollouts = replace(rollouts, runtime=HintedRuntime(rollouts.runtime, hints))
        self.made = asyncio.run(require_groups(rollouts, CONTRACT_JOBS[:2]))

    def credited(self, groups: list[ScoredGroup], step: int) -> list[ScoredGroup]:
        return groups

    def step(self, step: int, rows: list[Task], first: int) -> list[ScoredGroup]:
        """Return both, in the order that is asked for."""
        by_key = {group.question.key: group for group in self.made}
        return [
            ScoredGroup(
                by_key[row.key],
                group_rewards(by_key[row.key].items, ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT),
            )
            for row in rows
        ]


class _Marks:
    """Stand-in for the experience of a training, which has its rows marked."""

    hinted = None

    def figures(self, step: int, made: list[ScoredGroup]) -> dict[str, float]:
        """None."""
        return {}

    def begin_update(self, step: int, made: list[ScoredGroup]) -> None:
        """Nothing is updated."""


def _plan(plan: RlPlan, prompts: int, **keys: Any) -> RlPlan:
    """Return a plan of steps of so many questions with 8 rollouts each, and an update for each question."""
    changes: dict[str, Any] = {"group_size": 8, "prompts_per_step": prompts, "mini_batch_prompts": 1, **keys}
    changes |= {"finetuning_type": "full", "max_response_tokens": 512, "experience": USE}
    options = plan.options.model_copy(update=changes)
    return plan.model_copy(update={"options": options, "num_rows": prompts, "num_validation_rows": 0})


def _trainer(policy: Path, plan: RlPlan, source: Any) -> Any:
    folder = Path(tempfile.mkdtemp())
    rows = [
        Task(f"key-{index}", f"Question {index}?", domain="math", answers=("12",)) for index in range(plan.num_rows)
    ]
    reporter = TrlReporter(plan, EventFile(folder / "events.jsonl"), is_first=True)
    trainer, slot = trl_trainer._trainer(plan, policy, rows, GRPOConfig(**trl_arguments(plan, folder)), reporter)
    marks: Any = _Marks()
    dump = folder / "rollouts"
    slot.rollouts = rollout_function.RolloutFunction(plan, rows, source, lambda: None, reporter, dump, marks)
    # TRL takes it for an evaluation otherwise.
    trainer.model.train()
    return trainer


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))))
