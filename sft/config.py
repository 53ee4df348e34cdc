"""Define the settings of the stage `sft`: model, training and rows. See docs/behaviour/sft.md."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, JsonValue, ValidationInfo, field_validator, model_validator

from treadle.core.config import Operational, Section
from treadle.core.engines.config import EMBEDDED, TrainingOptions
from treadle.sft.presets import PLANNING_PRESETS, RFT_LLAMA_8B
from treadle.sft.training_engine import AnySftEngine, SftEngine

ET_AGENT_7B: dict[str, Any] = {
    "model": "Qwen/Qwen2.5-7B-Instruct",
    "finetuning_type": "full",
    "template": "qwen",
    "learning_rate": 5e-6,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.1,
    "num_train_epochs": 3.0,
    "batch_size": 32,
    "cutoff_tokens": 10_000,
    "max_rows": 1_000_000,
    "precision": "bf16",
    "deepspeed": "zero3",
    "liger_kernel": True,
    "unsloth_gradient_checkpointing": True,
    "attention": "auto",
    "logging_steps": 10,
    "per_device_batch_size": 1,
    "num_devices": 4,
    "save_steps": 107,
    "ddp_timeout_s": 180_000_000,
    "plot_loss": True,
    "trackers": [],
}
"""Fine-tuning of ET-Agent (arXiv 2601.06860), from the paper and the configuration published with it."""

DEFAULT_ENGINE: Any = "llamafactory"


class SftOptions(TrainingOptions):
    """Model and hyperparameters of fine-tuning.

    The defaults were measured with the embedded model; the presets have those of papers (`sft/presets.py`).
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "et-agent-7b": ET_AGENT_7B,
        "rft-llama-8b": RFT_LLAMA_8B,
        **PLANNING_PRESETS,
    }

    engine: AnySftEngine = Field(default=DEFAULT_ENGINE, validate_default=True)
    """Training engine: `llamafactory`, or one of your own (docs/behaviour/rl.md). A text, or a table with its `type`
    and its own keys."""
    model: str = EMBEDDED
    """Model to train: `embedded`, a folder in Hugging Face format, a hub id, or the policy of a phase of this run, such
    as `1/rl@phase-1`. Its tokenizer and chat template must be those that the rows were made with."""
    revision: str = ""
    """Commit or tag of a hub id; empty for the newest."""
    template: str | None = None
    """Template of LLaMA-Factory, which adds the tokens that it needs to the tokenizer. It does not affect prompts,
    because rows are tokenised already; by default the tokenizer's own chat template is used."""
    learning_rate: float = Field(default=1e-4, gt=0.0)
    """Peak learning rate."""
    lr_scheduler_type: Literal[
        "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"
    ] = "cosine"
    """Schedule of the learning rate after the warm-up."""
    warmup_ratio: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of all steps in which the learning rate rises from 0."""
    num_train_epochs: float = Field(default=1.0, gt=0.0)
    """Number of passes over the rows."""
    batch_size: int = Field(default=8, ge=1)
    """Number of rows per update, over all devices and nodes; determines the steps of gradient accumulation."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, ge=0.0)
    """Maximum norm of the gradient, which is clipped to it; 0 disables clipping."""
    cutoff_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens of a row. Longer rows are left out and counted, never truncated. By default all rows of
    `sft_rows` are used."""
    max_rows: int | None = Field(default=None, ge=1)
    """Maximum number of rows; rows are shuffled, so the first ones are a random sample."""
    deepspeed: Literal["none", "zero3"] = "none"
    """Distribution by DeepSpeed. `zero3`: weights, gradients and optimizer state are sharded over the GPUs without
    offload, and gathered in 16 bits when the model is saved. GPUs only."""
    attention: Literal["auto", "disabled", "sdpa", "fa2", "fa3"] = "auto"
    """Implementation of attention; `auto` is the default of transformers, `fa2` and `fa3` need FlashAttention."""
    liger_kernel: bool = False
    """Whether to use the fused kernels of Liger. GPUs only."""
    unsloth_gradient_checkpointing: bool = False
    """Whether gradient checkpointing keeps activations in the host's memory. GPUs only."""
    logging_steps: int = Field(default=1, ge=1)
    """Number of steps over which a logged loss is averaged; the checkpoint's row has the first and the last one."""
    extra: dict[str, JsonValue] = {}
    """Any other keys of the engine's own configuration; the engine checks them before training starts."""

    per_device_batch_size: Operational[int | None] = Field(default=None, ge=1)
    """Number of rows that a device processes at once. By default as many as fit into 8,192 tokens if all are as long as
    the longest row, at least one, and a divisor of the device's share of the batch."""
    num_nodes: Operational[int] = Field(default=1, ge=1)
    """Number of machines that train together; GPUs only."""
    main_address: Operational[str] = Field(default="", pattern=r"^[A-Za-z0-9.:_-]*$")
    """Host name or address under which the other nodes reach the first one; required with several nodes."""
    main_port: Operational[int] = Field(default=29500, ge=1, le=65535)
    """Port under which the other nodes reach the first one."""
    save_steps: Operational[int] = Field(default=50, ge=1)
    """Number of steps between saved states; an interrupted training resumes from the newest one."""
    ddp_timeout_s: Operational[int] = Field(default=1800, ge=1)
    """Timeout in seconds of a process that waits for the others in a collective operation."""
    plot_loss: Operational[bool] = False
    """Whether LLaMA-Factory saves its own loss plot next to its logs."""

    @field_validator("extra")
    @classmethod
    def _check_extra(cls, extra: dict[str, JsonValue], info: ValidationInfo) -> dict[str, JsonValue]:
        engine: SftEngine | None = info.data.get("engine")
        if engine is not None:
            engine.check_extra(extra, cls.model_fields)
        return extra

    @model_validator(mode="after")
    def _check_nodes(self) -> SftOptions:
        if self.num_nodes > 1 and not self.main_address:
            raise ValueError("several nodes need `main_address`, under which they reach the first one")
        return self


class SftSettings(Section):
    """All settings that an instance of the stage `sft` reads."""

    options: SftOptions = Field(default_factory=SftOptions)
    """Model and hyperparameters."""
    model_digest: str = ""
    """Digest of the files of the base model; empty for a hub id."""
    seed: int = 0
    """Seed of the run; determines the order of the rows in each pass and the initial adapters."""
