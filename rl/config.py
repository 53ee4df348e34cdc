"""Define the settings of the stage `rl`: the engine, its hyperparameters and the reward.

Documented in docs/behaviour/rewards.md.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, model_validator

from treadle.core.config import Operational, Section
from treadle.core.engines.config import TrainingOptions
from treadle.core.llm.config import Sampling
from treadle.environments.mixture import MixedSettings
from treadle.environments.scorers.registry import AnyScorer
from treadle.rl.credit.registry import AnyCredit, is_default
from treadle.rl.experience.settings import ExperienceSettings, ExperienceUse
from treadle.rl.groups.branching import Branching
from treadle.rl.groups.oversampling import OverSampling
from treadle.rl.presets import EVOLVER_PRESETS, PLANNING_PRESETS
from treadle.rl.rewards.efficiency import EfficiencyReward
from treadle.rl.rewards.overlong import OVERLONG_PARTS, Overlong
from treadle.rl.rewards.registry import AnyReward
from treadle.rl.training.step_rows import SHARE_TOLERANCE
from treadle.rl.training_engine import AnyRlEngine

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
real tokens and the format check is strict, unlike in the scripts. The reward rule has its default settings, with the
sigmas that the curriculum sets for each phase."""

DEFAULT_ENGINE: Any = "trl"
DEFAULT_CREDIT: Any = "outcome"


class RlOptions(TrainingOptions):
    """Options of RL training in one phase.

    The defaults of group size, clipping, sampling and reward are those of ET-Agent (arXiv 2601.06860); those of batch
    sizes and lengths fit the embedded model. The presets have the settings of papers (`rl/presets.py`).
    """

    model_config = ConfigDict(allow_inf_nan=False)

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"et-agent-7b": ET_AGENT_7B, **PLANNING_PRESETS, **EVOLVER_PRESETS}

    engine: AnyRlEngine = Field(default=DEFAULT_ENGINE, validate_default=True)
    """Training engine: `trl`, on one machine with CPU or GPUs; `verl`, on the GPUs of one or more machines; or one of
    your own (docs/behaviour/rl.md). A text, or a table with its `type` and its own keys."""
    start: str = "1/sft"
    """Policy that the first phase starts from: the checkpoint of an instance of this run, `embedded`, a folder in
    Hugging Face format, or a hub id. Each later phase starts from the policy of the previous phase."""
    revision: str = ""
    """Commit or tag of a hub id; empty selects the newest. The first phase's rollouts are sampled from the same
    revision."""

    group_size: int = Field(default=16, ge=1)
    """Trajectories per question and step; advantages are computed within such a group. 1 needs an engine with a critic
    (verl with `critic`)."""
    initial_rollouts: int | None = Field(default=None, ge=1)
    """Trajectories of a group that start from the question; the others branch off after tool results. None, or the
    group size, disables branching."""
    beam_size: int = Field(default=2, ge=1)
    """Maximum number of trajectories that continue from one tool result, including the original one."""
    branch_probability: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability of a branch if the entropy equals that of the trajectory's first turn."""
    entropy_weight: float = Field(default=0.2, ge=0.0)
    """Increase of the probability of a branch per unit of entropy above that of the trajectory's first turn. Entropy
    is the mean per token, divided by the logarithm of the vocabulary size."""

    prompts_per_step: int = Field(default=4, ge=1)
    """Questions per step, each with its whole group."""
    mini_batch_prompts: int = Field(default=4, ge=1)
    """Questions per update; a step makes one update per mini-batch."""
    num_epochs: int = Field(default=1, ge=1)
    """Passes over the rows; questions that do not fill a step at the end of a pass are dropped."""
    max_steps: int | None = Field(default=None, ge=1)
    """Maximum number of steps; None runs all steps of the passes."""
    shares: dict[str, Annotated[float, Field(ge=0.0, le=1.0)]] = {}
    """Share of each environment in the questions of a step, such as `{ default = 0.25, guess = 0.75 }`; `default` is
    `[environment]`. All environments with rows are named, 0 leaves one out, and the sum is 1. Each environment has
    passes of its own over its rows; the number of steps is still that of `num_epochs` passes over all rows. Empty: rows
    are drawn regardless of their environments."""

    dynamic_sampling: bool = False
    """Whether a step is trained on groups whose rewards differ: groups with equal rewards, which have no gradient, are
    dropped, and further questions are drawn until `prompts_per_step` groups are left. Surplus groups are dropped too.
    The number of steps is the same as without dynamic sampling."""
    gen_prompts: int | None = Field(default=None, ge=1)
    """Questions per draw with `dynamic_sampling`; None means `prompts_per_step`."""
    max_extra_batches: int = Field(default=10, ge=0)
    """Maximum number of draws of a step after the first, with `dynamic_sampling`. If too few groups have different
    rewards after them, groups with equal rewards fill the step; if none has, training ends with an error. verl, which
    does not fill steps, ends with an error in both cases."""

    oversample: float | None = Field(default=None, gt=1.0)
    """Over-sampling: a group starts m times n rollouts, for this value m and `group_size` n. The group ends when n
    rollouts have finished and their rewards differ, or when n(1 + m)/2 have finished, even with equal rewards. The
    unfinished rollouts are then cancelled, and the n finished ones with the most different rewards are trained on. Long
    rollouts are then rarer in training than in sampling: see the lengths and biases in the report. None starts n
    rollouts and cancels none. Needs an engine that can cancel (`trl`) and a reward that does not compare rollouts
    (`outcome`, `em`, `judge`)."""
    audit_share: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of the groups, by the seed, in which `oversample` cancels nothing, to estimate its bias."""

    learning_rate: float = Field(default=1e-5, gt=0.0)
    """Learning rate of AdamW."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which the learning rate rises from 0, before the schedule."""
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
    """Maximum number of new tokens per turn, at most `max_response_tokens`. None: a turn may use all tokens that the
    trajectory has left."""

    reward: AnyReward = EfficiencyReward()
    """Rule that rewards the rollouts of a group."""
    credit: AnyCredit = Field(default=DEFAULT_CREDIT, validate_default=True)
    """Rule that turns the rewards of a group into advantages of its trajectories, or of their turns."""
    overlong: Overlong = "none"
    """Penalty in training for long responses: none, or up to 1 within the last eighth of `max_response_tokens`
    (`buffer`), linearly, for any reward rule. Tool results count, the prompt does not."""
    experience: ExperienceUse = ExperienceUse()
    """How rollouts of the training see experience (advice that models drew from earlier rollouts); not with verl."""
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

    attempts: Operational[int] = Field(default=8, ge=1)
    """Maximum number of attempts at a group that fails because of infrastructure, each with new episodes. The second
    attempt follows at once, later ones after pauses of 5 to 160 seconds. In the last attempt only the failed rollouts
    of the group are lost, or all of them if fewer than two are left; lost rollouts have no reward. If fewer than half
    of the rollouts of a step are left, training ends with an error; it can be resumed. A validation ends with an error
    instead of losing rollouts, and verl loses whole groups."""
    wall_limit_s: Operational[float] = Field(default=1800.0, gt=0.0)
    """Maximum time in seconds that the environment of one rollout may work, without waiting for infrastructure; at
    least a minute more than `environment.rollout_time_s`. Beyond it, the rollout fails because of infrastructure (see
    `attempts`). This ends environments that hang."""

    extra: dict[str, JsonValue] = {}
    """Any other keys of the engine's own configuration; the engine checks them before training begins."""

    num_nodes: Operational[int] = Field(default=1, ge=1)
    """Number of machines that train together; verl only."""
    per_device_batch_size: Operational[int | None] = Field(default=None, ge=1)
    """Trajectories per device and micro-batch. None: on a GPU, as many trajectories of maximum length as fit into 8,192
    tokens; on a CPU, whole groups of up to 32,768 tokens. verl bounds the tokens of a pass instead: to this number
    times twice the maximum length of a trajectory; with None, to twice that length, but at least 8,192."""
    gpu_memory_share: Operational[float] = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of each GPU's memory that vLLM uses for rollouts."""
    tensor_parallel: Operational[int] = Field(default=1, ge=1)
    """Number of GPUs over which vLLM shards the policy."""

    @model_validator(mode="after")
    def _check_engine(self) -> RlOptions:
        self.engine.check_options(self)
        return self

    @model_validator(mode="after")
    def _check_group(self) -> RlOptions:
        if self.group_size == 1 and not self.engine.has_critic:
            raise ValueError(
                "group_size 1 leaves nothing to compare a trajectory with; raise it, or use an engine with a critic"
            )
        if self.initial_rollouts is not None and self.initial_rollouts > self.group_size:
            raise ValueError(f"initial_rollouts {self.initial_rollouts} is more than group_size {self.group_size}")
        if self.initial_rollouts not in (None, self.group_size) and self.beam_size == 1:
            raise ValueError(
                "beam_size 1 allows no branches, but initial_rollouts below group_size needs them; raise beam_size, or "
                "leave out initial_rollouts"
            )
        return self

    @model_validator(mode="after")
    def _check_oversample(self) -> RlOptions:
        if self.oversample is None:
            return self
        OverSampling.of(self.group_size, self.oversample)
        if not self.engine.cancels_rollouts:
            raise ValueError(
                f"engine {self.engine.type} does not cancel rollouts, which oversample needs; use trl, or leave out "
                "oversample"
            )
        if self.branches:
            raise ValueError(
                "oversample needs rollouts that do not depend on each other; leave out initial_rollouts, or oversample"
            )
        if self.reward.COMPARES_GROUP:
            raise ValueError(
                f"reward {self.reward.type} compares the rollouts of a group, but oversample needs the reward of each "
                "as soon as it finishes; use outcome, em or judge, or leave out oversample"
            )
        return self

    @model_validator(mode="after")
    def _check_experience(self) -> RlOptions:
        if not self.experience.is_used:
            return self
        if not self.engine.trains_on_hints:
            raise ValueError(
                f"engine {self.engine.type} has one clipping range for all rollouts, and prompts without hints; use "
                "trl, or leave out experience"
            )
        if self.experience.rollout_mode == "mixed" and (self.oversample is not None or self.branches):
            raise ValueError(
                "the rollouts of a group that see experience are chosen before it starts, but oversample and "
                "initial_rollouts decide later which rollouts it has; leave them out, or use another "
                "experience.rollout_mode"
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

    @model_validator(mode="after")
    def _check_credit(self) -> RlOptions:
        if self.engine.has_critic and self.credits_turns:
            raise ValueError(
                f"credit {self.credit.type} computes the advantages, but so does a critic; leave out one of them"
            )
        others = {**self.reward.PARTS, **OVERLONG_PARTS[self.overlong]}
        if twice := sorted(others.keys() & self.credit.PARTS.keys()):
            raise ValueError(f"the reward and credit {self.credit.type} both have parts called {', '.join(twice)}")
        return self

    @model_validator(mode="after")
    def _check_shares(self) -> RlOptions:
        if self.shares and abs((total := math.fsum(self.shares.values())) - 1) > SHARE_TOLERANCE:
            given = ", ".join(f"{name[:60]} = {share:g}" for name, share in self.shares.items())
            raise ValueError(
                f"shares ({given}) have the sum {total:g}, not 1; they are shares of the questions of a step"
            )
        return self

    @model_validator(mode="after")
    def _check_sampling(self) -> RlOptions:
        if self.shares and self.dynamic_sampling:
            raise ValueError(
                "shares fix the questions of each step, which dynamic_sampling would replace; leave out one of them"
            )
        if (most := self.prompts_per_draw * (1 + self.max_extra_batches)) < self.prompts_per_step:
            raise ValueError(
                f"gen_prompts and max_extra_batches allow {most} questions of a step, fewer than prompts_per_step "
                f"{self.prompts_per_step}; raise one of them"
            )
        return self

    @property
    def prompts_per_draw(self) -> int:
        """Questions that are rolled out together: those of a step, or of a draw with dynamic sampling."""
        return (self.gen_prompts or self.prompts_per_step) if self.dynamic_sampling else self.prompts_per_step

    @property
    def reward_parts(self) -> dict[str, str]:
        """Name -> description of the parts of a reward: of the reward rule, of `overlong`, and of the credit rule."""
        return {**self.reward.PARTS, **OVERLONG_PARTS[self.overlong], **self.credit.PARTS}

    @property
    def credits_turns(self) -> bool:
        """True if the credit rule computes the advantages; with the default rule, engines compute them from rewards."""
        return not is_default(self.credit)

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
    def oversampling(self) -> OverSampling | None:
        """Numbers of rollouts of an over-sampled group; None without over-sampling."""
        return None if self.oversample is None else OverSampling.of(self.group_size, self.oversample, self.audit_share)

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


class RlSettings(MixedSettings):
    """All settings that an instance of the stage `rl` reads."""

    options: RlOptions = Field(default_factory=RlOptions)
    """Options of this phase, in which sigmas that the reward leaves out are filled in from the curriculum."""
    phase: int = Field(default=1, ge=1)
    """Number of the phase, from 1."""
    phases: Operational[int] = Field(default=1, ge=1)
    """Number of phases in the curriculum; adding phases does not change earlier ones."""
    scorers: dict[str, AnyScorer] = {}
    """Scorers that the questions name, by name; see `Plan.scorers`."""
    algebra: AlgebraLimits | None = None
    """Limits of computer algebra in the reward, taken from the phase's `scores`; None if it is not used."""
    experience: ExperienceSettings | None = None
    """Rules of the pool of experience, and the models that update it, if there are any; None without a pool."""
    model_digest: str = ""
    """Digest of the files in the folder of the policy that training starts from; empty if `rl.start` is no folder, but
    a hub id, `embedded` or a checkpoint of this run."""
    seed: int = 0
    """Seed of the run."""
