"""Train with TRL's group-relative policy optimisation, using Treadle's own rollouts and rewards.

TRL gets the trajectories of a step as token ids, with a mask that keeps tool results out of the loss. Rewards are
computed where whole groups are known, and passed to TRL. Written for TRL 1.16, whose `rollout_func` is experimental;
tests/e2e/test_trl_engine.py checks what is used here. Documented in docs/behaviour/rl.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from torch.utils.data import Sampler
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.core.engines.events import EventFile
from treadle.core.engines.export_model import continue_greedily
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.core.seeds import derive_seed
from treadle.environments.settings import EnvironmentSettings
from treadle.rl.credit.base import token_advantages
from treadle.rl.engine.attention import is_supported
from treadle.rl.engine.generation import PolicyGenerator
from treadle.rl.engine.group_source import GroupSource, ScoredGroup, open_source
from treadle.rl.engine.rows import Payloads, check_rows, prompt_ids, read_tasks
from treadle.rl.engine.shared_prompts import log_probs, pack
from treadle.rl.engine.trl.events import TrlReporter, gathered
from treadle.rl.groups.batching import Generate
from treadle.rl.groups.dump import rollout_row, write_step
from treadle.rl.training.figures import step_figures, validation_figures
from treadle.rl.training.plan import RlPlan
from treadle.rl.trl.config import lora_arguments, trl_arguments


class StepSampler(Sampler[int]):  # type: ignore[misc]
    """Sampler of row indices in the order in which TRL reads them, over all steps of a plan.

    TRL reads the batch of a step once for each micro-batch and uses it once. The order of each pass depends only on the
    seed, so a resumed training gets the rows that it would have got without the interruption.
    """

    def __init__(self, plan: RlPlan, steps_per_generation: int) -> None:
        self._plan = plan
        self._reads = steps_per_generation

    def __len__(self) -> int:
        return self._plan.num_steps * self._plan.trajectories_per_step * self._reads

    def __iter__(self) -> Iterator[int]:
        size = self._plan.options.group_size
        for step in range(1, self._plan.num_steps + 1):
            for _ in range(self._reads):
                for row in rows_of_step(self._plan, step):
                    yield from [row] * size


def rows_of_step(plan: RlPlan, step: int) -> list[int]:
    """Return the indices of the rows of a step, counted from 1."""
    epoch, place = divmod(step - 1, plan.steps_per_epoch)
    order = torch.randperm(
        plan.num_rows, generator=torch.Generator().manual_seed(derive_seed(plan.seed, "rows", epoch))
    )
    count = plan.options.prompts_per_step
    chosen: list[int] = order[place * count : (place + 1) * count].tolist()
    return chosen


class GroupTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer with rows in the plan's order, Treadle's validation, and each group's prompt computed once."""

    control: Any
    plan: RlPlan
    validate: Callable[[], dict[str, Any]]
    shares_prompts: bool
    _scored_tokens: torch.Tensor | None = None
    _norms: Sequence[float] = ()
    _buffered_inputs: Any
    own_advantages: Sequence[Sequence[float]] | None = None
    """Advantage of each completion id of this process's trajectories, in the order of the rollouts; None if TRL
    computes them."""

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Do nothing: the artifact has its own card."""

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Validate the policy; TRL calls this at the steps at which the plan validates."""
        made = self.validate()
        figures = {f"eval_{name}": value for name, value in made.items() if isinstance(value, int | float)}
        figures |= {f"eval_parts/{name}": value for name, value in made["parts"].items()}
        self.log(dict(figures))
        # Clears the request to evaluate.
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, figures)
        return figures

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:
        return StepSampler(self.plan, self.args.steps_per_generation)

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
        """Return TRL's batch of a step, with the advantages of the plan's credit rule if it is not TRL's own.

        TRL's loss takes advantages of shape (B,), or (B, T) with one for each completion id.
        """
        made: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.own_advantages is not None:
            made["advantages"] = padded_advantages(self.own_advantages, made["completion_ids"], made["advantages"])
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
        self._scored_tokens = inputs["completion_mask"] * inputs["tool_mask"]
        try:
            loss: torch.Tensor = super()._compute_loss(model, inputs)
            return loss
        finally:
            self._scored_tokens = None

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


def padded_advantages(
    own: Sequence[Sequence[float]], completion_ids: torch.Tensor, advantages: torch.Tensor
) -> torch.Tensor:
    """Return advantages of shape (B, T) for completions that are padded on the right, of the type of `advantages`."""
    padded = torch.zeros(completion_ids.shape, dtype=advantages.dtype, device=advantages.device)
    if len(own) != len(padded):
        raise RuntimeError(f"there are advantages of {len(own)} trajectories for {len(padded)} of TRL's")
    for row, values in zip(padded, own, strict=True):
        row[: len(values)] = torch.tensor(values, dtype=padded.dtype, device=padded.device)
    return padded


def innermost(model: Any) -> Any:
    """Return the causal language model inside the PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class RolloutFunction:
    """Callback that gives TRL the trajectories of a step with their rewards."""

    def __init__(
        self,
        plan: RlPlan,
        rows: Sequence[Task],
        source: GroupSource,
        refresh_weights: Callable[[], None],
        reporter: TrlReporter,
        dump: Path,
    ) -> None:
        self._plan = plan
        self._rows = rows
        self._source = source
        self._refresh_weights = refresh_weights
        self._reporter = reporter
        self._dump = dump

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Return the trajectories of a step; TRL's `rollout_func`.

        A prompt is the index of its row, repeated once per trajectory of the group. Raises RuntimeError if the indices
        are not those of the plan's step, in whole groups.
        """
        size = self._plan.options.group_size
        indices = [int(prompt) for prompt in prompts]
        step = trainer.state.global_step // self._plan.updates_per_step + 1
        num_groups = len(indices) // size
        first = trainer.accelerator.process_index * num_groups
        chosen = rows_of_step(self._plan, step)[first : first + num_groups]
        if indices != [index for index in chosen for _ in range(size)]:
            raise RuntimeError(f"TRL requested other rollouts than the plan has in step {step}, or incomplete groups")
        self._refresh_weights()
        made = self._source.step(step, [self._rows[index] for index in chosen], first)
        self._report_step(step, made, trainer)
        trainer.own_advantages = _own_advantages(made)
        return _to_trl(made)

    def _report_step(self, step: int, made: Sequence[ScoredGroup], trainer: GRPOTrainer) -> None:
        everyone = gathered(made)
        figures = step_figures([scored.rewards for scored in everyone])
        self._reporter.set_figures(figures)
        for name, value in figures["parts"].items():
            # TRL logs these with its own metrics, to the trackers too.
            trainer._metrics["train"][f"parts/{name}"].append(value)
        if _rank()[0] == 0:
            pairs = [
                (one.group, pair) for one in everyone for pair in zip(one.group.trajectories, one.rewards, strict=True)
            ]
            write_step(self._dump, step, [rollout_row(step, group, *pair) for group, pair in pairs])


def precomputed_rewards(completions: Sequence[Any], reward: Sequence[float | None], **_: Any) -> list[float | None]:
    """Return the rewards that came with the rollouts; TRL's reward function."""
    return list(reward)


def _own_advantages(made: Sequence[ScoredGroup]) -> list[list[float]] | None:
    """Return the advantage of each completion id of each trajectory; None if TRL computes the advantages."""
    values = []
    for one in made:
        if one.advantages is None:
            return None
        for trajectory, of_turns in zip(one.group.trajectories, one.advantages, strict=True):
            values.append(token_advantages(of_turns, trajectory.turn_starts, len(trajectory.completion_ids)))
    return values


def _to_trl(made: Sequence[ScoredGroup]) -> dict[str, Any]:
    pairs = [pair for one in made for pair in zip(one.group.trajectories, one.rewards, strict=True)]
    answer: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": [], "reward": []}
    for trajectory, reward in pairs:
        # TRL reads the last id of each completion, so an empty one gets one masked id.
        is_empty = not trajectory.completion_ids
        answer["prompt_ids"].append(trajectory.prompt_ids)
        answer["completion_ids"].append([0] if is_empty else trajectory.completion_ids)
        answer["logprobs"].append([0.0] if is_empty else trajectory.logprobs)
        answer["env_mask"].append([0] if is_empty else trajectory.env_mask)
        answer["reward"].append(reward.reward if reward.scored else None)
    return answer


def train_policy(plan: RlPlan, job: dict[str, Any], environment: EnvironmentSettings, events: EventFile) -> None:
    """Train to the end of the plan, from the state in the job if it names one.

    States are saved in the job's `output`.
    """
    start = Path(job["model"])
    codec = ChatTokenizer.load(start)
    payloads = Payloads.of_job(job)
    rows = read_tasks(Path(job["rows"]), payloads)
    check_rows(rows, plan.num_rows, plan.options.max_prompt_tokens, environment, codec)
    validation = read_tasks(Path(job["validation"]), payloads) if job["validation"] else []
    arguments = GRPOConfig(**trl_arguments(plan, Path(job["output"])))
    reporter = TrlReporter(plan, events, is_first=arguments.process_index == 0)
    trainer, slot = _trainer(plan, start, rows, arguments, reporter)
    generate, refresh_weights, max_batch = _generator(plan, trainer, codec, reporter)
    limits = dict(max_model_len=_max_context_tokens(trainer), max_batch=max_batch)
    with open_source(plan, job, environment, generate, codec, **limits) as source:
        slot.rollouts = RolloutFunction(plan, rows, source, refresh_weights, reporter, Path(job["rollouts"]))
        trainer.validate = _validation(validation, source, refresh_weights, reporter)
        reporter.greedy_of_state = lambda: _greedy(
            trainer, prompt_ids(rows[0], environment, codec), job["greedy_tokens"]
        )
        trainer.train(resume_from_checkpoint=job["resume"])


def _max_context_tokens(trainer: GroupTrainer) -> int | None:
    """Return the maximum context length of the model, and of vLLM if it generates; None if there is no limit."""
    own = getattr(innermost(trainer.model).config.get_text_config(), "max_position_embeddings", None)
    served = trainer.args.vllm_max_model_length if trainer.use_vllm else None
    return min((length for length in (own, served) if length is not None), default=None)


class _RolloutFunctionSlot:
    """Placeholder for the rollout function: TRL needs it before the trainer exists, rollouts need the trainer."""

    rollouts: RolloutFunction

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> dict[str, Any]:
        return self.rollouts(prompts, trainer)


def _trainer(
    plan: RlPlan, start: Path, rows: Sequence[Task], arguments: GRPOConfig, reporter: TrlReporter
) -> tuple[GroupTrainer, _RolloutFunctionSlot]:
    # Keep weights in fp32 whatever the precision of the computation: 16 bits would round away the small updates.
    policy = AutoModelForCausalLM.from_pretrained(str(start), dtype=torch.float32, attn_implementation="sdpa")
    policy.config.use_cache = False
    lora = lora_arguments(plan)
    slot = _RolloutFunctionSlot()
    # Silences TRL's warning that `rollout_func` may change; the TRL version is pinned for that reason.
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    trainer = GroupTrainer(
        model=policy,
        reward_funcs=precomputed_rewards,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [str(index) for index in range(len(rows))]}),
        processing_class=AutoTokenizer.from_pretrained(str(start)),
        rollout_func=slot,
        callbacks=[reporter, _StepSchedule(plan)],
        peft_config=LoraConfig(**lora) if lora is not None else None,
    )
    trainer.plan = plan
    config = policy.config.get_text_config()
    # On a GPU, attention kernels that skip padding are faster. An entropy bonus needs entropies with gradients, which
    # shared prompts do not give.
    plain = not (arguments.gradient_checkpointing or trainer._entropy_bonus_enabled)
    trainer.shares_prompts = arguments.device.type == "cpu" and is_supported(config) and plain
    return trainer, slot


class _StepSchedule(TrainerCallback):  # type: ignore[misc]
    """Callback that makes TRL evaluate and save at the plan's steps."""

    def __init__(self, plan: RlPlan) -> None:
        self._plan = plan

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step, rest = divmod(state.global_step, self._plan.updates_per_step)
        control.should_evaluate = not rest and self._plan.validates_at(step)
        control.should_save = not rest and self._plan.saves_at(step)


def _generator(
    plan: RlPlan, trainer: GroupTrainer, codec: ChatTokenizer, reporter: TrlReporter
) -> tuple[Generate, Callable[[], None], int | None]:
    """Return functions that generate and that load new weights, and the maximum batch size (None: no limit)."""
    if trainer.use_vllm:
        from treadle.rl.engine.vllm_generation import VllmGenerator

        served = VllmGenerator(trainer, codec)
        return _with_heartbeat(served.generate, reporter), served.refresh, None
    own = PolicyGenerator(
        trainer.model,
        codec,
        autocast=trainer.accelerator.autocast,
        dtype=torch.bfloat16 if trainer.args.bf16 else torch.float32,
        with_entropies=plan.options.branches,
    )
    longest = plan.options.max_prompt_tokens + plan.options.max_response_tokens
    return _with_heartbeat(own.generate, reporter), own.clear_cache, own.num_sequences(longest)


def _with_heartbeat(generate: Generate, reporter: TrlReporter) -> Generate:
    def generate_with_heartbeat(requests: Sequence[CompletionRequest]) -> Sequence[Completion]:
        answers = generate(requests)
        reporter.heartbeat()
        return answers

    return generate_with_heartbeat


def _validation(
    rows: Sequence[Task], source: GroupSource, refresh_weights: Callable[[], None], reporter: TrlReporter
) -> Callable[[], dict[str, Any]]:
    def validate() -> dict[str, Any]:
        refresh_weights()
        rank, world = _rank()
        mine = rows[rank::world]
        rewards = gathered(list(zip(source.validate(mine), [row.domain for row in mine], strict=True)))
        figures = validation_figures([reward for reward, _ in rewards], [domain for _, domain in rewards])
        reporter.report_validation(figures)
        return figures

    return validate


def _rank() -> tuple[int, int]:
    if not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _greedy(trainer: GroupTrainer, prompt: Sequence[int], num_tokens: int) -> dict[str, Any]:
    """Return the greedy continuation of a prompt by the policy in training."""
    was_training = trainer.model.training
    trainer.model.eval()
    try:
        return continue_greedily(trainer.model, prompt, num_tokens)
    finally:
        trainer.model.train(was_training)
