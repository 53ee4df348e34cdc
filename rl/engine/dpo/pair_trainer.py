"""Train with TRL's DPOTrainer on pairs of token ids with our own masks.

TRL makes its rows by tokenising text and trains on everything after the prompt. Here rows come as ids, and only what
the model sampled has a label. Written for TRL 1.16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from trl import DPOTrainer
from trl.trainer.utils import pad

from treadle.rl.preferences.aggregates import Aggregate, token_weights

_SIDES = ("chosen", "rejected")


@dataclass(frozen=True)
class PairCollator:
    """Function that makes a padded batch of pairs: first all chosen sides, then all rejected ones.

    Attributes:
        pad_token_id: Id that fills up the shorter sides.
        aggregate: How the log-ratios of a side become its score.
    """

    pad_token_id: int
    aggregate: Aggregate

    def __call__(self, pairs: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Return `input_ids`, `attention_mask`, `completion_mask` and `token_weights`, each of shape (2 B, T)."""
        ids, masks, weights = [], [], []
        for side in _SIDES:
            for pair in pairs:
                before = len(pair["prompt_ids"])
                mask = pair[f"{side}_mask"]
                ids.append(torch.tensor([*pair["prompt_ids"], *pair[f"{side}_ids"]]))
                masks.append(torch.tensor([*[0] * before, *mask]))
                own = token_weights(mask, pair[f"{side}_turns"], self.aggregate)
                weights.append(torch.tensor([*[0.0] * before, *own]))
        seen = [torch.ones_like(one) for one in ids]
        return {
            "input_ids": pad(ids, padding_value=self.pad_token_id, padding_side="right"),
            "attention_mask": pad(seen, padding_value=0, padding_side="right"),
            "completion_mask": pad(masks, padding_value=0, padding_side="right"),
            "token_weights": pad(weights, padding_value=0.0, padding_side="right"),
        }


class PairTrainer(DPOTrainer):  # type: ignore[misc]
    """TRL's trainer for rows of ids and masks, which also measures the share of pairs that the model orders correctly.

    The aggregate `token_mean` uses TRL's loss `sigmoid_norm`, `sum` and `turn_sum` use `sigmoid`. For `turn_sum` each
    log-probability is weighted before TRL sums them.
    """

    def __init__(self, *args: Any, aggregate: Aggregate, nll_coef: float = 0.0, **kwargs: Any) -> None:
        self._is_weighted = aggregate == "turn_sum"
        self._nll_coef = nll_coef if self._is_weighted else 0.0
        self._weights: torch.Tensor | None = None
        self._log_probs: list[torch.Tensor] = []
        self._scored: dict[str, list[torch.Tensor]] = {"train": [], "eval": []}
        super().__init__(*args, **kwargs)
        for model in filter(None, (self.model, self.ref_model)):
            model.register_forward_hook(self._keep_log_probs)

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the rows unchanged: they are token ids."""
        return dataset

    def _keep_log_probs(self, model: Any, inputs: Any, output: Any) -> Any:
        """Store the log-probabilities of a forward pass for `_compute_loss`; for `turn_sum` TRL gets weighted ones."""
        if self._weights is None or getattr(output, "log_probs", None) is None:
            return output
        self._log_probs.append(output.log_probs)
        if self._is_weighted:
            output.log_probs = output.log_probs * self._weights
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> Any:
        given = dict(inputs)
        # The first id has no log-probability.
        self._weights = given.pop("token_weights")[:, 1:]
        self._log_probs = []
        try:
            loss = super()._compute_loss(model, given, return_outputs)
            policy, reference = self._log_probs
            self._measure(policy.detach() - reference)
            if self._nll_coef:
                chosen = policy.chunk(2)[0]
                loss = loss - self._nll_coef * chosen[given["completion_mask"].chunk(2)[0][:, 1:].bool()].mean()
            return loss
        finally:
            self._weights, self._log_probs = None, []

    def _measure(self, log_ratios: torch.Tensor) -> None:
        """Store the margins of a batch of pairs: score of the chosen side minus score of the rejected one."""
        chosen, rejected = (log_ratios * self._weights).sum(dim=1).chunk(2)
        mode = "train" if self.model.training else "eval"
        self._scored[mode].append(self.accelerator.gather_for_metrics(chosen - rejected).cpu())

    def take_margins(self, mode: str) -> dict[str, Any]:
        """Return accuracy and mean margin of the pairs since the last call, with their number; empty for none."""
        margins = torch.cat(self._scored[mode]) if self._scored[mode] else torch.empty(0)
        self._scored[mode] = []
        if not len(margins):
            return {}
        num_right = int((margins > 0).sum())
        return {
            "accuracy": num_right / len(margins),
            "margin": float(margins.mean()),
            "num_pairs": len(margins),
            "num_right": num_right,
        }

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log accuracy and margin of the pairs since the last call, to trackers too, as `pairs/<name>`."""
        is_eval = any(name.startswith("eval_") for name in logs)
        if is_eval or "loss" in logs:
            measured = self.take_margins("eval" if is_eval else "train")
            prefix = "eval_pairs" if is_eval else "pairs"
            logs = {**logs, **{f"{prefix}/{name}": value for name, value in measured.items()}}
        super().log(logs, start_time)
