"""Define the settings of the stage `dpo`: model, loss and rows. See docs/behaviour/preferences.md."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, JsonValue, field_validator

from treadle.core.config import Operational, Section
from treadle.core.engines.config import EMBEDDED, TrainingOptions
from treadle.rl.dpo.engine import ENGINE
from treadle.rl.dpo.presets import DPO_PRESETS
from treadle.rl.preferences.aggregates import Aggregate


class DpoOptions(TrainingOptions):
    """Model and hyperparameters of a training on preferences.

    The defaults are for small models; the presets have those of a paper (`rl/dpo/presets.py`).
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = DPO_PRESETS

    model: str = EMBEDDED
    """Model to train, which is the reference too: `embedded`, a folder in Hugging Face format, a hub id, or a
    checkpoint of this run, such as `1/sft`. Its tokenizer and chat template must be those of the pairs."""
    revision: str = ""
    """Commit or tag of a hub id; empty for the newest."""
    aggregate: Aggregate | None = None
    """How the log-ratios of a side become its score. `token_mean`: mean over the tokens of the model. `turn_sum`: sum
    over turns of the mean within each. `sum`: over all tokens. None means `token_mean` for `dpo@critic`, else `sum`."""
    beta: float = Field(default=0.1, gt=0.0)
    """Scale of the difference of scores in the loss."""
    nll_coef: float = Field(default=0.0, ge=0.0)
    """Weight of the mean negative log-likelihood of the chosen side's tokens, which is added to the loss."""
    learning_rate: float = Field(default=1e-5, gt=0.0)
    """Peak learning rate."""
    lr_scheduler_type: Literal["linear", "cosine", "cosine_with_min_lr", "constant", "constant_with_warmup"] = "cosine"
    """Schedule of the learning rate after the warm-up."""
    min_lr_rate: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of the peak that the schedule `cosine_with_min_lr` ends at."""
    warmup_ratio: float = Field(default=0.03, ge=0.0, lt=1.0)
    """Share of all steps in which the learning rate rises from 0."""
    num_train_epochs: float = Field(default=1.0, gt=0.0)
    """Number of passes over the pairs."""
    batch_size: int = Field(default=8, ge=1)
    """Number of pairs per update, over all devices; determines the steps of gradient accumulation."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Weight decay of AdamW."""
    adam_beta2: float = Field(default=0.999, gt=0.0, lt=1.0)
    """Second beta of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Maximum norm of the gradient, which is clipped to it."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens of a side with its prompt. Longer pairs are left out and counted, never truncated."""
    max_rows: int | None = Field(default=None, ge=1)
    """Maximum number of pairs, drawn by the seed of the run."""
    holdout_share: float = Field(default=0.03, ge=0.0, lt=1.0)
    """Share of the pairs that are held out, and measured after each epoch; 0 for none."""
    holdout: Literal["task", "first"] = "task"
    """Pairs to hold out: all of randomly drawn tasks, or the first ones, as in the released code of SWEET-RL."""
    logging_steps: int = Field(default=1, ge=1)
    """Number of steps over which logged figures are averaged."""
    extra: dict[str, JsonValue] = {}
    """Any other keys of TRL's DPOConfig, which checks them before training starts."""

    per_device_batch_size: Operational[int | None] = Field(default=None, ge=1)
    """Number of pairs that a device processes at once. By default as many as fit into 8,192 tokens if all sides are as
    long as the longest, at least one, and a divisor of the device's share of the batch."""
    save_steps: Operational[int] = Field(default=50, ge=1)
    """Number of steps between saved states; an interrupted training resumes from the newest one."""

    @field_validator("extra")
    @classmethod
    def _check_extra(cls, extra: dict[str, JsonValue]) -> dict[str, JsonValue]:
        ENGINE.check_extra(extra, cls.model_fields)
        return extra


class DpoSettings(Section):
    """All settings that an instance of the stage `dpo` reads."""

    options: DpoOptions = DpoOptions()
    """Model and hyperparameters, with the aggregate filled in."""
    is_critic: bool = False
    """Whether the instance trains the critic; a policy must not see hidden information."""
    model_digest: str = ""
    """Digest of the files of the base model; empty for a hub id."""
    seed: int = 0
    """Seed of the run; determines the order of the pairs, the choice of pairs to hold out, and the initial adapters."""
