"""Settings of the servers that a run can start (vLLM, or the rule-based tutor), and the common settings of training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from treadle.core.config import Operational, Section, with_preset

EMBEDDED = "embedded"
"""Name of SmolLM2-135M-Instruct in settings; this model needs no hub."""


def _check_devices(devices: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(devices)) < len(devices) or min(devices, default=0) < 0:
        raise ValueError("name each GPU once, by its place from 0")
    return devices


Devices = Annotated[tuple[int, ...], AfterValidator(_check_devices)]
"""Indices of GPUs, see `core.engines.devices`."""


class VllmServer(Section):
    """vLLM server that the run starts on this machine, and stops at its end."""

    type: Literal["vllm"] = "vllm"
    """Kind of server."""
    model: str = EMBEDDED
    """`embedded`, a folder in Hugging Face format, a hub id, or the checkpoint of an instance of this run: `1/sft`."""
    revision: str = ""
    """Commit or tag of a hub id; if empty, the newest commit."""
    variant: Operational[Literal["auto", "cpu", "cuda"]] = "auto"
    """Build of vLLM; `auto` selects cuda if there is an NVIDIA GPU, else cpu."""
    devices: Operational[Devices] = ()
    """GPUs to run on, as indices into the visible ones, such as [0, 1]. The model is spread over them
    (`--tensor-parallel-size`) unless `extra_args` set this. If empty, the server gets all visible GPUs for itself. Not
    needed on a CPU."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Number type of the weights; `auto` is the checkpoint's own, but 16 bits on a GPU if that is fp32. On a CPU
    without bf16 instructions (`avx512_bf16`, `amx_bf16`), `float32` is several times faster, in twice the memory."""
    max_model_len: int = Field(default=2048, ge=16)
    """Context window in tokens, prompt and completion together."""
    kv_cache_gb: Operational[int] = Field(default=1, ge=1)
    """Memory for the key-value cache in GiB. CPU build only; for a GPU see `gpu_memory_share`."""
    gpu_memory_share: Operational[float] = Field(default=0.85, gt=0.0, le=1.0)
    """Share of the GPU's memory that vLLM may use."""
    threads: Operational[int] = Field(default=0, ge=0)
    """Compute threads of the CPU build; 0 uses all cores that are available to this process."""
    compile: Operational[bool | None] = None
    """Whether vLLM compiles the model at startup; by default only on a GPU. On a CPU, compiling takes a minute at every
    first start, and made small models no faster."""
    port: Operational[int] = Field(default=0, ge=0, le=65535)
    """Port on the loopback interface; 0 selects a free one."""
    startup_timeout_s: Operational[float] = Field(default=900.0, gt=0)
    """Maximum seconds until the server answers its first completion."""
    extra_args: tuple[str, ...] = ()
    """Further arguments for vLLM's server, appended unchanged."""


class TutorServer(Section):
    """Tutor: a rule-based stand-in for a model, started by the run."""

    type: Literal["tutor"] = "tutor"
    """Kind of server."""
    module: Operational[str] = "treadle.demo.tutor"
    """Python module that is run with `-m`."""
    persona: str = "strong"
    """Character that the tutor plays."""
    tokenizer: Operational[Path | None] = None
    """Folder of the tokenizer whose token ids it uses; without it, the tutor's own byte-level tokenizer."""
    port: Operational[int] = Field(default=0, ge=0, le=65535)
    """Port on the loopback interface; 0 selects a free one."""
    startup_timeout_s: Operational[float] = Field(default=60.0, gt=0)
    """Maximum seconds until the server answers its first completion."""
    options: dict[str, str | int | float | bool] = {}
    """Further options by name, such as `latency_s`: passed as `--latency-s VALUE`; true passes only the flag, false
    passes nothing."""

    @field_validator("module")
    @classmethod
    def check_module(cls, value: str) -> str:
        """Allow only dotted names."""
        if not all(part.isidentifier() for part in value.split(".")):
            raise ValueError(f"{value!r} is not the dotted name of a module")
        return value


ServerSettings = Annotated[VllmServer | TutorServer, Field(discriminator="type")]
"""Server that the run starts itself; `type` selects the kind."""


class Machine(Section):
    """Hardware that a training runs on."""

    variant: Literal["cpu", "cuda"] = "cpu"
    """Build of the engine."""
    num_devices: int = Field(default=1, ge=1)
    """GPUs per node; 1 on a CPU."""
    num_nodes: int = Field(default=1, ge=1)
    """Number of machines that train together."""

    @property
    def num_processes(self) -> int:
        """Number of devices that train together, over all nodes."""
        return self.num_devices * self.num_nodes


_OF_ADAPTERS = ("lora_rank", "lora_alpha", "lora_dropout", "lora_target")


class TrainingOptions(Section):
    """Settings that every kind of training has."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}

    preset: Operational[str | None] = None
    """Named settings to start from, such as `et-agent-7b`; keys that are set as well take precedence."""
    finetuning_type: Literal["full", "lora"] = "full"
    """Weights to train: `full` trains all of them, `lora` low-rank adapters that are merged into them at the end."""
    lora_rank: int = Field(default=8, ge=1)
    """Rank of the adapters; the `lora` keys have no effect with `full`."""
    lora_alpha: int | None = Field(default=None, ge=1)
    """Scale of the adapters; none means twice the rank."""
    lora_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout in the adapters."""
    lora_target: str = "all"
    """Modules that get an adapter, separated by commas; `all` means every linear layer."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number type of the computation; `auto` is bf16 on a GPU and fp32 on a CPU."""
    variant: Operational[Literal["auto", "cpu", "cuda"]] = "auto"
    """Build of the engine; `auto` selects cuda if there is an NVIDIA GPU, else cpu."""
    devices: Operational[Devices] = ()
    """GPUs to train on, as indices into the visible ones, such as [2, 3]; the same on every node. If empty, all visible
    GPUs. Not needed on a CPU."""
    num_devices: Operational[int | None] = Field(default=None, ge=1)
    """Number of these GPUs to use, from the first; none means all. A CPU counts as one."""
    gradient_checkpointing: Operational[bool | None] = None
    """Whether activations are computed again instead of stored, to save memory; by default only on a GPU."""
    threads: Operational[int] = Field(default=0, ge=0)
    """Compute threads on a CPU; 0 uses all cores that are available to this process."""
    stall_timeout_s: Operational[float] = Field(default=3600.0, gt=0.0)
    """Seconds without progress (a step or any other event) after which a training counts as hung and is stopped."""
    trackers: Operational[tuple[Literal["wandb", "tensorboard", "swanlab", "mlflow", "trackio"], ...]] = ()
    """Experiment trackers that the training reports to; none by default. They must be installed in the engine's
    environment, and read their keys from their own environment variables."""

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, data: Any) -> Any:
        return with_preset(cls.PRESETS, data)

    @model_validator(mode="after")
    def _check_num_devices(self) -> Self:
        if self.devices and (self.num_devices or 0) > len(self.devices):
            raise ValueError(f"num_devices {self.num_devices} is more than the {len(self.devices)} of `devices`")
        return self

    def effective(self) -> Self:
        """Return the settings with adapter keys at their defaults if no adapters are trained.

        Otherwise these keys would make equal trainings differ. The section itself keeps the given values, for an
        instance whose override trains adapters.
        """
        if self.finetuning_type == "lora":
            return self
        return self.model_copy(update={name: type(self).model_fields[name].get_default() for name in _OF_ADAPTERS})

    @field_validator("lora_target")
    @classmethod
    def _check_target(cls, target: str) -> str:
        modules = [name.strip() for name in target.split(",")]
        if not all(modules):
            raise ValueError(f"{target!r} names no module between its commas; write `all`, or names of modules")
        return ",".join(modules)
