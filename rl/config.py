"""Define the settings of the stage `rl`: the engine, its hyperparameters and the reward.

Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, model_validator

from treadle.core.config import Operational, Section
from treadle.core.engines.config import TrainingOptions
from treadle.core.llm.config import Sampling
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.registry import AnyEnvironment
from treadle.environments.scorers.registry import AnyScorer
from treadle.rl.credit.outcome import OutcomeCredit
from treadle.rl.credit.registry import AnyCredit
from treadle.rl.groups.branching import Branching
from treadle.rl.rewards.efficiency import EfficiencyReward
from treadle.rl.rewards.registry import AnyReward

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
    "reward": "efficiency",
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
"""Settings of ET-Agent (arXiv 2601.06860), from the paper and its published launch scripts. Lengths are counted in
real tokens and the format check is strict, unlike in the scripts. The reward has its defaults, and sigmas of the
curriculum's phases."""

TYPED_KEYS: dict[str, str] = {
    "num_generations": "group_size",
    "per_device_train_batch_size": "per_device_batch_size",
    "num_train_epochs": "num_epochs",
    "max_completion_length": "max_response_tokens",
    "beta": "kl_coef",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "delta": "dual_clip",
    "loss_type": "loss_agg",
    "eval_steps": "validation_steps",
    "report_to": "trackers",
    "bf16": "precision",
    "fp16": "precision",
    "ddp_timeout": "stall_timeout_s",
    "use_cpu": "variant",
    "no_cuda": "variant",
    "vllm_gpu_memory_utilization": "gpu_memory_share",
    "vllm_tensor_parallel_size": "tensor_parallel",
}
"""TRL's key -> key of `rl` with the same meaning."""

_REFUSED = {
    "Treadle sets it": (
        "output_dir overwrite_output_dir resume_from_checkpoint do_train local_rank save_strategy save_only_model "
        "save_on_each_node save_total_limit logging_strategy logging_steps logging_nan_inf_filter log_completions "
        "log_unique_prompts log_multimodal num_completions_to_print load_best_model_at_end disable_dropout "
        "dataloader_num_workers dataloader_persistent_workers dataloader_prefetch_factor dataloader_in_order"
    ),
    "a step is logged once, with all its updates": "logging_first_step",
    "it is the run's `seed`": "seed data_seed",
    "it follows from the questions of a step and their groups": (
        "gradient_accumulation_steps steps_per_generation generation_batch_size num_generations_eval "
        "per_device_eval_batch_size auto_find_batch_size num_iterations dataloader_drop_last accelerator_config"
    ),
    "Treadle sets rows, prompts and their order": (
        "shuffle_dataset remove_unused_columns chat_template_kwargs train_sampling_strategy length_column_name "
        "label_names"
    ),
    "an interrupted training must resume exactly, from the end of a step": (
        "ignore_data_skip enable_jit_checkpoint restore_callback_states_from_checkpoint"
    ),
    "validation is set by `rl.validation_questions`": (
        "do_eval do_predict eval_strategy eval_on_start eval_delay metric_for_best_model greater_is_better "
        "prediction_loss_only bf16_full_eval fp16_full_eval eval_accumulation_steps batch_eval_metrics "
        "include_for_metrics eval_do_concat_batches eval_use_gather_object"
    ),
    "Treadle generates the rollouts, in the run's environment": (
        "generation_kwargs repetition_penalty min_p max_tool_calling_iterations use_vllm vllm_mode "
        "vllm_structured_outputs_regex vllm_max_model_length vllm_server_base_url vllm_server_host vllm_server_port "
        "vllm_server_timeout vllm_group_port cache_implementation use_transformers_continuous_batching "
        "use_transformers_paged transformers_continuous_batching_config"
    ),
    "rollouts call vLLM directly, so it must not sleep": "vllm_enable_sleep_mode",
    "Treadle computes the rewards; see the keys of `rl`": (
        "reward_weights scale_rewards multi_objective_aggregation mask_truncated_completions importance_sampling_level"
    ),
    "the loss covers all tokens that the model wrote; see the keys of `rl`": (
        "top_entropy_quantile label_smoothing_factor neftune_noise_alpha sapo_temperature_neg sapo_temperature_pos "
        "vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg"
    ),
    "`rl.kl_coef` weights the divergence from the start policy": (
        "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps"
    ),
    'each device holds the whole policy; for a larger one set rl.engine = "verl"': (
        "fsdp fsdp_config deepspeed parallelism_config ds3_gather_for_generation"
    ),
    "Treadle loads the policy, in 32 bits": "model_init_kwargs cast_lm_head_to_fp32",
    "code that comes with a model is never run": "trust_remote_code",
    "nothing is uploaded": (
        "push_to_hub hub_model_id hub_private_repo hub_strategy hub_always_push hub_revision log_completions_hub_repo"
    ),
    "secrets are not configuration; set the environment variable that its library reads": "hub_token",
}
REFUSED_KEYS: dict[str, str] = {key: reason for reason, keys in _REFUSED.items() for key in keys.split()}
"""Keys of TRL's GRPOConfig that would break what the stage guarantees, each with the reason."""


class RlOptions(TrainingOptions):
    """Options of RL training in one phase.

    Group size, clipping, sampling and reward are those of the paper; batch sizes and lengths fit the embedded model.
    The preset `et-agent-7b` has the paper's.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"et-agent-7b": ET_AGENT_7B}

    engine: Literal["trl", "verl"] = "trl"
    """Training engine: TRL, on one machine with CPU or GPUs; or verl, on the GPUs of one or more machines."""
    start: str = "1/sft"
    """Policy that the first phase starts from: the checkpoint of an instance of this run, `embedded`, a folder in
    Hugging Face format, or a hub id. Each later phase starts from the policy of the previous phase."""
    revision: str = ""
    """Commit or tag of a hub id; empty selects the newest. The first phase's rollouts are sampled from the same
    revision."""

    group_size: int = Field(default=16, ge=2)
    """Trajectories per question and step; advantages are computed within such a group."""
    initial_rollouts: int | None = Field(default=None, ge=1)
    """Trajectories of a group that start from the question; the others branch off after tool results. None, or the
    group size, disables branching."""
    beam_size: int = Field(default=2, ge=1)
    """Maximum number of trajectories that continue from one tool result, including the original one."""
    branch_probability: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability of a branch if the entropy equals that of the trajectory's first turn."""
    entropy_weight: float = Field(default=0.2, ge=0.0)
    """Increase of that probability per unit of entropy. Entropy is the mean per token, divided by the logarithm of
    the vocabulary size."""

    prompts_per_step: int = Field(default=4, ge=1)
    """Questions per step, each with its whole group."""
    mini_batch_prompts: int = Field(default=4, ge=1)
    """Questions per update; a step makes one update per mini-batch."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over the rows; questions that do not fill a step at the end of a pass are dropped."""
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum number of steps; None runs all steps of the passes."""

    learning_rate: float = Field(default=1e-5, gt=0.0)
    """Learning rate of AdamW."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate over the steps."""
    weight_decay: float = Field(default=0.01, ge=0.0)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Norm to which gradients are clipped."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Lower clipping range: the probability ratio of a token is clipped at 1 minus this."""
    clip_high: float = Field(default=0.2, gt=0.0)
    """Upper clipping range: the probability ratio of a token is clipped at 1 plus this."""
    dual_clip: float | None = Field(default=3.0, gt=1.0)
    """Upper bound of the probability ratio for tokens with a negative advantage; None means no bound."""
    loss_agg: Literal["token_mean", "sequence_mean"] = "token_mean"
    """Averaging of the loss: over all tokens of an update, or over each trajectory first."""
    kl_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the KL divergence from the start policy in the loss; at 0 no reference model is loaded."""

    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature of training rollouts; validation is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus sampling: share of probability mass to sample from."""
    top_k: int = Field(default=-1, ge=-1)
    """Number of most likely tokens to sample from; -1 means all."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Maximum prompt length in tokens, system message included; rows and validation questions with longer prompts
    are left out and counted."""
    max_response_tokens: int = Field(default=1024, ge=1)
    """Maximum length in tokens of a trajectory after the prompt, tool results included."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of new tokens per turn, at most `max_response_tokens`; None means what is left of the
    trajectory."""

    reward: AnyReward = EfficiencyReward()
    """Rule that rewards the rollouts of a group."""
    credit: AnyCredit = OutcomeCredit()
    """Rule that turns the rewards of a group into advantages; verl supports `outcome` only."""
    symbolic: bool | None = None
    """Whether to use computer algebra for math answers that the cheaper checks cannot decide. None: the setting of
    `scores` in the same phase, so that selection and reward agree. Limits are those of `scores`."""

    validation_questions: int = Field(default=0, ge=0)
    """Number of held-out questions that are answered greedily in each validation; 0 disables validation."""
    validation_steps: int = Field(default=10, ge=1)
    """Steps between validations; the last step is validated too."""
    checkpoint_rule: Literal["last", "best"] = "last"
    """Saved policy that becomes the checkpoint: the last one, or the one with the highest score in validation;
    ties go to the most efficient one."""
    save_steps: int = Field(default=10, ge=1)
    """Steps between saved states, from which an interrupted training resumes; the last step is saved too."""

    extra: dict[str, JsonValue] = {}
    """Any other keys of the engine's own configuration; the engine checks them before training begins."""

    num_nodes: Operational[int] = Field(default=1, ge=1)
    """Number of machines that train together; verl only."""
    per_device_batch_size: Operational[int | None] = Field(default=None, ge=1)
    """Trajectories per device and micro-batch. None: on a GPU, as many of the longest as make 8,192 tokens; on a
    CPU, whole groups of up to 32,768 tokens. verl bounds tokens instead: twice the longest trajectory for each; with
    None, twice the longest, but at least 8,192."""
    gpu_memory_share: Operational[float] = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of each GPU's memory that vLLM uses for rollouts."""
    tensor_parallel: Operational[int] = Field(default=1, ge=1)
    """Number of GPUs over which vLLM shards the policy."""

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
            raise ValueError(
                "`devices` has no effect with num_nodes above 1, because Ray assigns the GPUs; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_group(self) -> RlOptions:
        if self.initial_rollouts is not None and self.initial_rollouts > self.group_size:
            raise ValueError(f"initial_rollouts {self.initial_rollouts} is more than group_size {self.group_size}")
        if self.initial_rollouts not in (None, self.group_size) and self.beam_size == 1:
            raise ValueError(
                "beam_size 1 allows no branches, but initial_rollouts below group_size needs them; raise beam_size, or "
                "leave out initial_rollouts"
            )
        return self

    @model_validator(mode="after")
    def _check_numbers(self) -> RlOptions:
        if (self.max_new_tokens or 0) > self.max_response_tokens:
            raise ValueError(
                f"max_new_tokens {self.max_new_tokens} of a turn is more than max_response_tokens "
                f"{self.max_response_tokens} of the whole trajectory; lower it, or leave it out"
            )
        if self.prompts_per_step % self.mini_batch_prompts:
            raise ValueError(
                f"prompts_per_step {self.prompts_per_step} is not a multiple of mini_batch_prompts "
                f"{self.mini_batch_prompts}; an update uses whole mini-batches"
            )
        if self.checkpoint_rule == "best" and self.save_steps % self.validation_steps:
            raise ValueError(
                f"save_steps {self.save_steps} is not a multiple of validation_steps {self.validation_steps}, so saved "
                "policies would lack a validation"
            )
        return self

    @property
    def branches(self) -> bool:
        """True if trajectories branch."""
        return self.initial_rollouts is not None and self.initial_rollouts < self.group_size

    @property
    def branching(self) -> Branching:
        """Rule by which the trajectories of a group branch."""
        initial = self.initial_rollouts or self.group_size
        return Branching(initial, self.beam_size, self.branch_probability, self.entropy_weight)

    @property
    def sampling(self) -> Sampling:
        """Sampling of training rollouts; a turn has at most `max_tokens`."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.max_new_tokens or self.max_response_tokens,
        )


class AlgebraLimits(Section):
    """Resource limits of one comparison by computer algebra."""

    limit_s: float = Field(default=2.0, gt=0.0, le=600.0)
    """CPU time in seconds; if a comparison takes longer, the answers count as not equal."""
    memory_mib: int = Field(default=1024, ge=256)
    """Address space of the comparing process, in MiB."""


class RlSettings(Section):
    """All settings that an instance of the stage reads."""

    options: RlOptions = RlOptions()
    """Options of this phase; the reward's values of the curriculum are filled in."""
    phase: int = Field(default=1, ge=1)
    """Number of the phase, from 1."""
    phases: Operational[int] = Field(default=1, ge=1)
    """Number of phases in the curriculum; adding phases does not change earlier ones."""
    environment: AnyEnvironment = QuestionSettings()
    """Environment of the policy: the same as in every rollout of the run."""
    scorers: dict[str, AnyScorer] = {}
    """Scorers of users that the questions name."""
    algebra: AlgebraLimits | None = None
    """Limits of computer algebra in the reward, taken from the phase's `scores`; None if it is not used."""
    model_digest: str = ""
    """Digest of the files of the policy that training starts from; empty for a hub id or an input."""
    seed: int = 0
    """Seed of the run."""
