"""Train on whole groups: TRL's trainer with rows in the plan's order and each group's prompt computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler
from trl import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from treadle.agent.contract import Task
from treadle.rl.engine.attention import is_supported
from treadle.rl.engine.shared_prompts import log_probs, pack
from treadle.rl.engine.trl.step_rows import StepSampler
from treadle.rl.training.figures import environment_figures
from treadle.rl.training.plan import RlPlan


class GroupTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer with rows in the plan's order, Treadle's validation, and each group's prompt computed once."""

    control: Any
    epsilon_low: Any
    epsilon_high: Any
    plan: RlPlan
    rows: Sequence[Task]
    validate: Callable[[], dict[str, Any]]
    shares_prompts: bool
    _scored_tokens: torch.Tensor | None = None
    _norms: Sequence[float] = ()
    _buffered_inputs: Any
    own_advantages: Sequence[Sequence[float]] | Sequence[float] = ()
    """Advantages of the rows of this process, in the order of the rollouts: a number for each row, or for each
    completion id of a row."""
    own_hint_cut: Sequence[bool] = ()
    """For each row of this process, whether the policy saw a hint that is missing in the row's prompt; empty if hints
    are not used."""
    _inputs: Any = None

    def follow(self, plan: RlPlan, rows: Sequence[Task]) -> None:
        """Set the plan and its rows; call this before `train`."""
        self.plan, self.rows = plan, rows
        # On a GPU, attention kernels that skip padding are faster. An entropy bonus needs entropies with gradients,
        # which shared prompts do not give.
        plain = not (self.args.gradient_checkpointing or self._entropy_bonus_enabled)
        config = innermost(self.model).config.get_text_config()
        self.shares_prompts = self.args.device.type == "cpu" and is_supported(config) and plain

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Do nothing: the artifact has its own card."""

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Validate the policy; TRL calls this at the steps at which the plan validates."""
        made = self.validate()
        figures = {f"eval_{name}": value for name, value in made.items() if isinstance(value, int | float)}
        figures |= {f"eval_parts/{name}": value for name, value in made["parts"].items()}
        figures |= {f"eval_{name}": value for name, value in environment_figures(made.get("by_environment", {}))}
        self.log(dict(figures))
        # The handler clears the control's request to evaluate.
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return StepSampler(self.plan, self.rows, self.args.steps_per_generation)

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        """Return the next micro-batch of a step.

        Replaces TRL's method, which shuffles trajectories before it cuts a step into micro-batches and so splits
        groups.
        """
        reads = self.args.steps_per_generation
        if self._step % reads == 0 or self._buffered_inputs is None:
            self._buffered_inputs = self._cut(self._generate_and_score_completions(generation_batch))
        batch: dict[str, Any] = self._buffered_inputs[self._step % reads]
        return batch

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        """Return TRL's batch of a step, with the advantages of the plan's credit rule.

        TRL's loss takes advantages of shape (B,), or (B, T) with one for each completion id.
        """
        self._inputs = inputs = list(inputs)
        made: dict[str, Any] = super()._generate_and_score_completions(inputs)
        made["advantages"] = advantages_tensor(self.own_advantages, made["completion_ids"], made["advantages"])
        if any(self.own_hint_cut):
            mark_cut_hints(made, self.own_hint_cut)
        return made

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        """Return the rows of the rollouts: more than `prompts` if a trajectory has several rows.

        TRL iterates over its inputs and prompts in parallel with the rows, so both lists are extended to the same
        length.
        """
        made: tuple[Any, ...] = super()._generate(prompts)
        missing = len(made[0]) - len(prompts)
        prompts += prompts[-1:] * missing
        self._inputs += [dict(self._inputs[-1]) for _ in range(missing)]
        return made

    def _cut(self, made: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the micro-batches of a step, in the order of its groups.

        TRL divides an update's loss by the number of tokens in an average update of the step. The `num_items_in_batch`
        set here makes it divide by the update's own number, so that the mean is over the update's tokens.
        """
        reads, size = self.args.steps_per_generation, self.args.gradient_accumulation_steps
        parts: list[dict[str, Any]] = split_tensor_dict(made, reads)
        for start in range(0, reads, size):
            update = parts[start : start + size]
            mine = torch.stack([(part["completion_mask"] * part["tool_mask"]).sum() for part in update]).sum()
            tokens = self.accelerator.gather(mine).sum()
            for part in update:
                part["num_items_in_batch"] = tokens * (reads // size)
        return parts

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> float:
        """Return the mean gradient norm over the updates of a step so far; transformers logs only the last one."""
        norm = float(super()._get_grad_norm(model, grad_norm=grad_norm))
        self._norms = [*self._norms, norm] if self.state.global_step % self.plan.updates_per_step else [norm]
        return sum(self._norms) / len(self._norms)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        *others, last = row_chunks(inputs, self.args.per_device_train_batch_size)
        done = torch.zeros((), device=last["completion_ids"].device)
        for chunk in others:
            loss = self._loss_of(model, chunk)
            self.accelerator.backward(loss)  # frees the activations
            done = done + loss.detach()
        return self._loss_of(model, last) + done

    def _loss_of(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        scored = inputs["completion_mask"] * inputs["tool_mask"]
        # If all rows have weight 0, they are scored too: every device must take part in each backward pass.
        self._scored_tokens = scored if scored.any() else None
        low, high = self.epsilon_low, self.epsilon_high
        if "hint_cut" in inputs:
            wide = self.plan.options.experience.off_clip_high
            self.epsilon_low, self.epsilon_high = clip_ranges(inputs["hint_cut"], low, high, wide)
        try:
            loss: torch.Tensor = super()._compute_loss(model, inputs)
            return loss
        finally:
            self._scored_tokens = None
            self.epsilon_low, self.epsilon_high = low, high

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Compute TRL's log-probabilities; if `shares_prompts`, compute each group's prompt only once."""
        if not self.shares_prompts:
            found: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
            found = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
            )
            return found
        inner = innermost(self.accelerator.unwrap_model(model))
        size = kwargs.get("batch_size") or len(input_ids)
        parts = []
        for start in range(0, len(input_ids), size):
            part = slice(start, start + size)
            wanted = None if self._scored_tokens is None else self._scored_tokens[part]
            batch = pack(input_ids[part], attention_mask[part], logits_to_keep, wanted)
            shape = torch.Size((len(input_ids[part]), logits_to_keep))
            with self.accelerator.autocast():
                parts.append(log_probs(inner, batch, shape, temperature=self.temperature))
        scores, entropies = zip(*parts, strict=True)
        return torch.cat(scores), torch.cat(entropies), None


def row_chunks(inputs: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """Split a micro-batch into pieces of at most `size` rows; with trajectories of several samples it may have more.

    TRL divides the loss by the tokens of the whole update, so the loss of the micro-batch is the sum over the pieces.
    """
    number = len(inputs["completion_ids"])
    return [
        {
            name: value[start : start + size] if torch.is_tensor(value) and value.dim() else value
            for name, value in inputs.items()
        }
        for start in range(0, number, size)
    ]


def advantages_tensor(
    own: Sequence[Sequence[float]] | Sequence[float], completion_ids: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    """Return `own` as a tensor of shape (B,), or (B, T) if it has an advantage for each completion id.

    dtype and device are those of TRL's `advantages`. Completions are padded on the right.
    """
    if len(own) != len(completion_ids):
        raise RuntimeError(f"there are advantages of {len(own)} rows for {len(completion_ids)} of TRL's")
    rows = [torch.as_tensor(values, dtype=advantages.dtype, device=advantages.device) for values in own]
    if not rows[0].dim():
        return torch.stack(rows)
    padded = torch.zeros(completion_ids.shape, dtype=advantages.dtype, device=advantages.device)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded


def mark_cut_hints(made: dict[str, Any], hint_cut: Sequence[bool]) -> None:
    """Add `hint_cut` (B,) to TRL's batch of a step, and set the importance-sampling ratio of these rows to 1.

    The tokens of these rows were sampled after a prompt with a hint, and the trainer's probabilities are those after
    the prompt without it, so their ratio does not measure a difference between sampler and trainer.
    """
    ids = made["completion_ids"]
    if len(hint_cut) != len(ids):
        raise RuntimeError(f"there are hints of {len(hint_cut)} rows for {len(ids)} of TRL's")
    made["hint_cut"] = torch.tensor(hint_cut, device=ids.device)
    if (ratio := made.get("importance_sampling_ratio")) is not None:
        made["importance_sampling_ratio"] = ratio.masked_fill(made["hint_cut"][:, None], 1.0)


def clip_ranges(hint_cut: torch.Tensor, low: float, high: float, wide: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lower and upper clipping ranges of each row, (B, 1); the upper one is `wide` if its hint was cut.

    Both are tensors, because `torch.clamp` takes two tensors or two numbers.
    """
    rows = hint_cut[:, None]
    upper = torch.full(rows.shape, high, device=rows.device).masked_fill(rows, wide)
    return torch.full_like(upper, low), upper


def innermost(model: Any) -> Any:
    """Return the causal language model inside the PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
