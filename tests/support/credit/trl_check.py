"""The worked example of attribution through TRL's real batch and loss; runs in the engine environment `trl`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from support.credit.worked_example import FLAGS, REWARDS, attribution, group_of, label_actions, rewarded_item
from support.model_servers.threaded_server import serving

from treadle.core.chat import ChatTokenizer
from treadle.rl.engine.group_source import GroupSource, ScoredGroup
from treadle.rl.engine.scorer import GroupScorer
from treadle.rl.training.plan import RlPlan


class _Source(GroupSource):
    """The example's group, whatever is asked; credit is that of every source."""

    def __init__(self, plan: RlPlan, codec: ChatTokenizer) -> None:
        nothing: Any = None
        super().__init__(plan, nothing, nothing, GroupScorer(plan, nothing, {}))
        self._group = group_of(codec)

    def step(self, step: int, rows: Any, first: int = 0) -> list[ScoredGroup]:
        """Return the group with its rewards."""
        rewards = [rewarded_item(reward, len(own)) for reward, own in zip(REWARDS, FLAGS, strict=True)]
        return [ScoredGroup(self._group, rewards)]


def attributed(
    plan_with: Callable[..., RlPlan],
    trainer_of: Callable[[RlPlan, Path, Any], Any],
    codec: ChatTokenizer,
    folder: Path,
    **keys: Any,
) -> dict[str, Any]:
    """Return the advantages of the turns in TRL's batch, its loss and the loss by hand, and the number of requests."""
    sizes = {"mini_batch_prompts": 1, "prompts_per_step": 1, "group_size": len(FLAGS)}
    with serving(label_actions) as server, (rule := attribution(server.url, **keys)).open(folder / "credit"):
        plan = plan_with(**sizes, credit=rule)
        trainer = trainer_of(plan, folder, _Source(plan, codec))
        batch = next(iter(trainer.get_train_dataloader()))
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        turns: list[list[float]] = []
        loss = by_hand = 0.0
        for part in range(trainer.args.steps_per_generation):
            trainer._step = part
            inputs = trainer._prepare_inputs(batch)
            turns += _advantages_of_turns(inputs)
            # Of a step with one update TRL keeps none, and compares the policy with itself.
            known = inputs.get("old_per_token_logps")
            known = torch.zeros(inputs["completion_ids"].shape) if known is None else known
            trainer._get_per_token_logps_and_entropies = lambda *_, known=known, **__: (
                known, torch.zeros_like(known), None,
            )  # fmt: skip
            loss += float(trainer._compute_loss(trainer.model, inputs))
            counted = inputs["completion_mask"] * inputs["tool_mask"]
            by_hand -= float((counted * inputs["advantages"]).sum() / counted.sum())
            del trainer._get_per_token_logps_and_entropies
        return {"turns": turns, "loss": loss, "by_hand": by_hand, "num_requests": len(server.requests)}


def _advantages_of_turns(inputs: dict[str, Any]) -> list[list[float]]:
    """Return the advantage of each run of sampled ids of each row; raise if one has several."""
    counted = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
    found = []
    for advantages, mask in zip(inputs["advantages"], counted, strict=True):
        turns: list[float] = []
        before = False
        for value, sampled in zip(advantages.tolist(), mask.tolist(), strict=True):
            if sampled and not before:
                turns.append(value)
            assert not sampled or value == turns[-1], "the tokens of a turn differ"
            before = sampled
        found.append(turns)
    return found
