"""Whether training moved weights by what it learnt; runs in the environment of an engine.

Under ZeRO-3 a tensor is empty between steps: DeepSpeed keeps this process's part of it in `ds_tensor` and the number of
all its values in `ds_numel`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        trained = [weights for weights in model.parameters() if weights.requires_grad]
        self.num_parameters = sum(int(getattr(weights, "ds_numel", weights.numel())) for weights in trained)
        samples = [(weights, _sample(weights)) for weights in trained]
        self._before = [(weights, values) for weights, values in samples if values.numel()]

    def length(self) -> float:
        """Length of the way that the sample went since, as a share of its own length.

        Not a number where nothing could be sampled, and where weights are none any more: it is not known then.
        """
        if not self._before:
            return math.nan
        import torch

        before = torch.cat([values for _, values in self._before]).double()
        now = torch.cat([_sample(weights) for weights, _ in self._before]).double()
        return float((now - before).norm() / before.norm().clamp_min(1e-30))

    def is_finite(self) -> bool:
        """Whether all sampled weights are numbers now."""
        return all(bool(_sample(weights).isfinite().all()) for weights, _ in self._before)


def _sample(weights: Any) -> torch.Tensor:
    held = getattr(weights, "ds_tensor", weights)
    return held.detach().flatten()[:_SAMPLED_VALUES].to("cpu", copy=True)


def had_no_gradient(events: Path) -> bool:
    """Whether every step that a training's events tell of had a gradient of length 0: then nothing was learnt.

    Weights may have moved all the same, by their decay. All attempts count, as far as they were gone on from; a norm
    that is not known counts as a gradient. `grad_norm` of an event `step` must speak of all its updates.
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
