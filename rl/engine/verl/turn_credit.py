"""Pass the advantages of turns to verl as token scores: the scores from a token to the end add up to its advantage.

verl 0.9 has one reward per trajectory in its agent loop's output, and puts it on the last token to make token scores.
`CreditedOutput` makes the token scores itself. The advantage estimator, which verl's trainer finds by name because its
processes import this module, adds the scores up and normalises nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.core_algos import register_adv_est

from treadle.rl.verl.advantages import ESTIMATOR


class CreditedOutput(AgentLoopOutput):  # type: ignore[misc]
    """Output of an agent loop with a score for each response token."""

    token_scores: list[float]
    """Score of each response token."""

    def as_dict(self) -> dict[str, Any]:
        """Return verl's fields, with the token scores in place of the reward on the last token."""
        fields: dict[str, Any] = super().as_dict()
        fields["rm_scores"] = torch.tensor(fields.pop("token_scores"), dtype=torch.float32)
        return fields


@register_adv_est(ESTIMATOR)  # type: ignore[untyped-decorator]
def advantages_of_turns(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, **_: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each sampled token the sum of the scores from it to the end, twice: as advantages and as returns.

    Both arguments have shape (trajectories, tokens); other arguments of verl are ignored.
    """
    with torch.no_grad():
        scores = token_level_rewards * response_mask
        sums = scores.flip(-1).cumsum(-1).flip(-1) * response_mask
    return sums, sums
