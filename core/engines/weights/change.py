"""Measure whether training moved a model's weights; runs in the environment of an engine.

Under ZeRO-3 a tensor is empty between steps: DeepSpeed keeps this process's part of it in `ds_tensor`, and its number
of values in `ds_numel`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_SAMPLED_VALUES = 4096
"""Maximum number of values sampled per tensor. All tensors are sampled, because one of the two matrices of a LoRA
adapter does not change at first."""
MIN_WEIGHT_CHANGE = 1e-8
"""Change below which nothing was learned; the smallest useful training moves weights thousands of times as far."""


class WeightChange:
    """Sample of a model's trained weights, with their values when the sample was taken.

    Attributes:
        num_parameters: Number of trained weights.
    """

    def __init__(self, model: Any) -> None:
        trained = [weights for weights in model.parameters() if weights.requires_grad]
        self.num_parameters = sum(int(getattr(weights, "ds_numel", weights.numel())) for weights in trained)
        samples = [(weights, _sample(weights)) for weights in trained]
        self._before = [(weights, values) for weights, values in samples if values.numel()]

    def length(self) -> float:
        """Return the distance that the sample has moved since, relative to its own norm.

        NaN (unknown) if nothing could be sampled, or if weights have become NaN.
        """
        if not self._before:
            return math.nan
        import torch

        before = torch.cat([values for _, values in self._before]).double()
        now = torch.cat([_sample(weights) for weights, _ in self._before]).double()
        return float((now - before).norm() / before.norm().clamp_min(1e-30))

    def is_finite(self) -> bool:
        """Return whether all sampled weights are finite now."""
        return all(bool(_sample(weights).isfinite().all()) for weights, _ in self._before)


def _sample(weights: Any) -> torch.Tensor:
    held = getattr(weights, "ds_tensor", weights)
    return held.detach().flatten()[:_SAMPLED_VALUES].to("cpu", copy=True)


def had_no_gradient(events: Path) -> bool:
    """Return whether every logged step of a training had a gradient of norm 0, so that nothing was learnt.

    Weight decay may have moved the weights nevertheless. All attempts count, up to the step that the next one resumed
    from; an unknown norm counts as a gradient. `grad_norm` of a `step` event must cover all its updates.
    """
    norms: dict[int, float | None] = {}
    for line in events.read_bytes().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            # Torn by a kill.
            continue
        if event["event"] == "begin":
            norms = {step: norm for step, norm in norms.items() if step <= event["resumed_step"]}
        elif event["event"] == "step":
            norms[event["step"]] = event.get("grad_norm")
    return bool(norms) and all(norm == 0.0 for norm in norms.values())
