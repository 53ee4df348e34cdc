"""Settings of the stage `rl`: what is reinforced, how, and by which engine. Documented in docs/behaviour/rewards.md."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, model_validator

from treadle.agent.config import EnvironmentSettings
from treadle.core.config import Operational, Section
from treadle.core.engines.config import TrainingOptions
from treadle.rl.rewards import RewardOptions
from treadle.rl.trl_keys import REFUSED_KEYS, TYPED_KEYS

ET_AGENT_7B: dict[str, Any] = {
    "engine": "verl",
    "group_size": 16,
    "initial_rollouts": 8,
    "beam_size": 2,
    "branch_probability": 0.5,
    "entropy_weight": 0.2,
    "prompts_per_step": 64,
    "mini_batch_prompts": 4,
    "num_epochs": 3,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant",
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "clip_low": 0.2,
    "clip_high": 0.2,
    "dual_clip": 3.0,
    "loss_agg": "token_mean",
    "kl_coef": 0.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "max_prompt_tokens": 2000,
    "max_response_tokens": 4096,
    "scale": 2.0,
    "format_penalty": 1.0,
    "validation_questions": 160,
    "validation_steps": 10,
    "save_steps": 30,
    "finetuning_type": "full",
    "precision": "bf16",
    "num_devices": 4,
    "per_device_batch_size": 1,
    "gpu_memory_share": 0.5,
    "tensor_parallel": 1,
}
"""Reinforcement of ET-Agent (arXiv 2601.06860): its text and the launch scripts published with it, with real-token
lengths and the strict format check in place of the scripts' own. Sigmas are those of the curriculum's phases."""


class RlOptions(TrainingOptions):
    """How a policy is reinforced in one phase. Group, clipping, sampling and reward are those of the paper; batch and
    lengths fit the embedded model, and `et-agent-7b` has the paper's."""

    model_config = ConfigDict(allow_inf_nan=False)

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"et-agent-7b": ET_AGENT_7B}

    engine: Literal["trl", "verl"] = "trl"
    """What trains: TRL, on one machine, CPU or GPUs; or verl, on GPUs, one machine or several."""
    start: str = "1/sft"
    """Policy that the first phase begins with: the checkpoint of an instance of this run, `embedded`, a folder in
    Hugging Face format, or a hub id. Each later phase begins with the policy of the one before."""
    revision: str = ""
    """Commit or tag of a hub id; empty takes the newest. The first phase is sampled from it, too."""

    group_size: int = Field(default=16, ge=2)
    """Trajectories per question and step; advantages are taken within such a group."""
    initial_rollouts: int | None = Field(default=None, ge=1)
    """Of them, those that begin with the bare question; the others branch off after tool results. None, or the group
    size, means no branching."""
    beam_size: int = Field(default=2, ge=1)
    """Most trajectories that go on from one tool result, the one that met it included."""
    branch_probability: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability of a branch where entropy is what it was in the trajectory's first turn."""
    entropy_weight: float = Field(default=0.2, ge=0.0)
    """How much that probability rises with entropy: per unit of the mean entropy per token, which is divided by the
    logarithm of the size of the vocabulary."""

    prompts_per_step: int = Field(default=4, ge=1)
    """Questions of one step, each with its whole group."""
    mini_batch_prompts: int = Field(default=4, ge=1)
    """Questions of one update; a step makes as many updates as it has mini-batches."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over the rows; the questions that are left over at the end of a pass are dropped."""
    max_steps: int | None = Field(default=None, ge=1)
    """Most steps; none means all that the passes give."""

    learning_rate: float = Field(default=1e-5, gt=0.0)
    """Learning rate of AdamW."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """How it falls over the steps."""
    weight_decay: float = Field(default=0.01, ge=0.0)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Gradients are clipped to this norm."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """How far below 1 the probability ratio of a token counts."""
    clip_high: float = Field(default=0.2, gt=0.0)
    """How far above 1 it counts."""
    dual_clip: float | None = Field(default=3.0, gt=1.0)
    """Highest ratio that counts where the advantage is negative; none means no bound."""
    loss_agg: Literal["token_mean", "sequence_mean"] = "token_mean"
    """Mean of the loss over all tokens of an update, or over each trajectory first."""
    kl_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the divergence from the start policy in the loss; at 0 no reference model is loaded."""

    temperature: float = Field(default=1.0, gt=0.0)
    """Softmax temperature of training rollouts; validation is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of probability mass that is sampled from."""
    top_k: int = Field(default=-1, ge=-1)
    """Number of most likely tokens that are sampled from; -1 means all."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Rows and validation questions with longer prompts, system message included, are left out and counted."""
    max_response_tokens: int = Field(default=1024, ge=1)
    """Longest trajectory after the prompt, tool results included."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Most new tokens of one turn, at most `max_response_tokens`; none means what is left of the trajectory."""

    scale: float = Field(default=2.0, gt=0.0)
    """Upper bound of both efficiency factors; 2 makes a factor 1 at the group's mean."""
    format_mode: Literal["strict", "loose"] = "strict"
    """Format check: the rules of the quality gate, or the five of the published program."""
    format_penalty: float = Field(default=1.0, ge=0.0)
    """What breaking the format costs."""
    flat_penalty: bool = False
    """Whether a trajectory of broken format scores the penalty alone, however right its answer is; otherwise a right
    answer in broken format scores about as much as a wrong one in good format."""
    length_scope: Literal["model", "all"] = "model"
    """Tokens that count as length: those the model wrote, or results too."""
    symbolic: bool = False
    """Whether computer algebra decides what the cheaper layers of math equality leave open, as in `scores`."""

    sigma_tool: float | None = Field(default=None, ge=0.0)
    """How steeply calls beyond the group's mean lower the reward; none means that of the phase in `curriculum`."""
    sigma_length: float | None = Field(default=None, ge=0.0)
    """The same for length, in standard deviations; none means that of the phase."""
    sigma_decay: Literal["none", "linear"] = "none"
    """How both sigmas change within a phase: not at all, or in a line down to 0 at its last step."""
    allow_plain: bool = False
    """Whether both sigmas may be 0, which rewards nothing but right answers in good format."""

    validation_questions: int = Field(default=0, ge=0)
    """Held-out questions that are answered greedily now and then; 0 means no validation."""
    validation_steps: int = Field(default=10, ge=1)
    """Steps between validations; the last step is validated too."""
    checkpoint_rule: Literal["last", "best"] = "last"
    """Which saved policy is handed over: the last one, or the one with the most right answers in validation, among
    equals the most efficient one."""
    save_steps: int = Field(default=10, ge=1)
    """Steps between saved states, from which a training that was cut off goes on; the last step is saved too."""

    extra: dict[str, JsonValue] = {}
    """Any other key of the engine's own configuration, checked by the engine before training begins."""

    num_nodes: Operational[int] = Field(default=1, ge=1)
    """Machines that train together; verl only."""
    per_device_batch_size: Operational[int | None] = Field(default=None, ge=1)
    """Trajectories that a device works at together; none means as many of the longest as make 8,192 tokens, on a CPU
    whole groups of up to 32,768 tokens. verl packs tokens: room for two of the longest for each; with none for two of
    the longest in all, at least 8,192 tokens."""
    gpu_memory_share: Operational[float] = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of each GPU's memory that vLLM takes for rollouts."""
    tensor_parallel: Operational[int] = Field(default=1, ge=1)
    """GPUs over which vLLM spreads the policy."""

    @model_validator(mode="after")
    def _check_extra(self) -> RlOptions:
        typed, refused = (TYPED_KEYS, REFUSED_KEYS) if self.engine == "trl" else ({}, {})
        for key in self.extra:
            if (ours := typed.get(key)) or (ours := key) in type(self).model_fields:
                raise ValueError(f"{key!r} is not passed through: write it as `rl.{ours}`")
            if (reason := refused.get(key)) is not None:
                raise ValueError(f"{key!r} is not passed through: {reason}")
        return self

    @model_validator(mode="after")
    def _check_nodes(self) -> RlOptions:
        if self.engine == "verl" and self.num_nodes > 1 and self.devices:
            raise ValueError("several nodes are joined by Ray, which `devices` does not reach; leave it out")
        return self

    @model_validator(mode="after")
    def _check_group(self) -> RlOptions:
        if self.initial_rollouts is not None and self.initial_rollouts > self.group_size:
            raise ValueError(f"initial_rollouts {self.initial_rollouts} is more than group_size {self.group_size}")
        if self.initial_rollouts not in (None, self.group_size) and self.beam_size == 1:
            raise ValueError(
                "beam_size 1 lets no trajectory branch, and initial_rollouts leaves some that would; raise the former, "
                "or leave out the latter"
            )
        return self

    @model_validator(mode="after")
    def _check_lengths(self) -> RlOptions:
        if (self.max_new_tokens or 0) > self.max_response_tokens:
            raise ValueError(
                f"max_new_tokens {self.max_new_tokens} of a turn is more than max_response_tokens "
                f"{self.max_response_tokens} of the whole trajectory; lower it, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_mini_batch(self) -> RlOptions:
        if self.prompts_per_step % self.mini_batch_prompts:
            raise ValueError(
                f"prompts_per_step {self.prompts_per_step} is no multiple of mini_batch_prompts "
                f"{self.mini_batch_prompts}; an update works at whole mini-batches"
            )
        return self

    @model_validator(mode="after")
    def _check_best(self) -> RlOptions:
        if self.checkpoint_rule == "best" and self.save_steps % self.validation_steps:
            raise ValueError(
                f"save_steps {self.save_steps} is no multiple of validation_steps {self.validation_steps}, so the best "
                "of the saved policies would not be known"
            )
        return self

    @property
    def branches(self) -> bool:
        """Whether trajectories branch."""
        return self.initial_rollouts is not None and self.initial_rollouts < self.group_size

    @property
    def reward(self) -> RewardOptions:
        """What the reward is made with, besides sigmas."""
        return RewardOptions(
            scale=self.scale,
            format_mode=self.format_mode,
            format_penalty=self.format_penalty,
            flat_penalty=self.flat_penalty,
            length_scope=self.length_scope,
        )


class RlSettings(Section):
    """All that an instance of the stage reads."""

    options: RlOptions = RlOptions()
    """How this phase reinforces; both sigmas are numbers here."""
    phase: int = Field(default=1, ge=1)
    """Number of the phase, from 1."""
    phases: Operational[int] = Field(default=1, ge=1)
    """Phases of the curriculum; further ones change nothing in the earlier ones."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """What the policy meets: the same as in every rollout of the run."""
    model_digest: str = ""
    """Digest of the files of the policy that training begins with; empty for a hub id or an input."""
    seed: int = 0
    """The run's seed."""
