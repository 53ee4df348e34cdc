"""Choose how verl computes advantages: from rewards within a group, with a critic, or from the credit of turns."""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue

from treadle.rl.config import RlOptions

ESTIMATOR = "treadle_turns"
"""Name of Treadle's estimator in verl's registry; see `treadle.rl.engine.verl.turn_credit`."""
OUTCOME_REWARD = "outcome_reward"
"""Name under which verl finds the reward of a trajectory if the token scores hold the credit of turns."""
_MODULES = "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES"
"""Environment variable of verl's processes with modules that they import."""


def advantage_overrides(options: RlOptions, start: Path) -> dict[str, JsonValue]:
    """Return verl's settings for advantages; a critic starts from the policy in the folder `start`."""
    if options.engine.has_critic:
        engine = options.engine.model_dump()
        return {
            "algorithm.adv_estimator": "gae",
            "algorithm.gamma": 1.0,
            "algorithm.lam": 1.0,
            "critic.model.path": str(start),
            "critic.model.enable_gradient_checkpointing": options.gradient_checkpointing is not False,
            "critic.optim.lr": engine["critic_learning_rate"],
            "critic.optim.lr_warmup_steps_ratio": engine["critic_warmup_ratio"],
            "critic.optim.weight_decay": options.weight_decay,
        }
    if options.credits_turns:
        return {"algorithm.adv_estimator": ESTIMATOR, _MODULES: "treadle.rl.engine.verl.turn_credit"}
    return {"algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": True}
