"""Credit of turns from the outputs of our agent loop to verl's batch; runs in the engine environment `verl`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from treadle.rl.engine.verl.compose import compose_config


def credited_facts(lines: list[str], outputs: list[Any]) -> dict[str, Any]:
    """Return what verl's trainer makes of the outputs of one group, whose turns have their numbers as advantages.

    The fields are those that verl's worker puts into its queue, padded and estimated as its trainer does.
    """
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    algorithm, size = compose_config(lines).algorithm, len(outputs)
    tensors = ("responses", "response_mask", "rm_scores")
    fields = [{name: one.as_dict()[name] for name in tensors} for one in outputs]
    uids = np.array(["u"] * size, dtype=object)
    padded = list_of_dict_to_tensordict(fields).to_padded_tensor()
    data = DataProto(batch=padded, non_tensor_batch={"uid": uids})
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    data = compute_advantage_for_multi_trajectories(
        data,
        batch_keys=[f"u_{at}_0" for at in range(size)],
        adv_estimator=algorithm.adv_estimator,
        num_repeat=size,
        config=algorithm,
    )
    mask = data.batch["response_mask"]
    # Results separate the turns, so each run of sampled ids is one.
    turns = (mask.diff(dim=1, prepend=torch.zeros_like(mask[:, :1])) > 0).cumsum(dim=1) * mask
    return {
        "estimator": str(algorithm.adv_estimator),
        "modules": [line for line in lines if "VERL_USE_EXTERNAL_MODULES" in line],
        "most_turns": int(turns.max()),
        "error": float((data.batch["advantages"] - turns).abs().max()),
        "rewards": [one.extra_fields["reward_extra_info"]["outcome_reward"] for one in outputs],
    }
