"""Whether training moved weights; runs in the environment of an engine."""

from __future__ import annotations

from typing import Any

import torch

_SAMPLED_VALUES = 4096
"""Of each tensor. All tensors are looked at: of an adapter's two matrices one does not move at first."""
LEAST_MOTION = 1e-8
"""Below it weights count as unmoved; the smallest useful training moves them thousands of times as far."""


class Motion:
    """A sample of a model's trained weights, as they were.

    Attributes:
        num_parameters: Weights that are trained, all of them.
    """

    def __init__(self, model: Any) -> None:
        trained = [weights for weights in model.parameters() if weights.requires_grad and weights.numel()]
        self.num_parameters = sum(weights.numel() for weights in trained)
        self._before = [(weights, _sample(weights)) for weights in trained]

    def length(self) -> float:
        """Length of the way that the sample went since, as a share of its own length; 0 where nothing is trained."""
        if not self._before:
            return 0.0
        before = torch.cat([values for _, values in self._before]).double()
        now = torch.cat([_sample(weights) for weights, _ in self._before]).double()
        return float((now - before).norm() / before.norm().clamp_min(1e-30))


def _sample(weights: Any) -> torch.Tensor:
    return weights.detach().flatten()[:_SAMPLED_VALUES].to("cpu", copy=True)
