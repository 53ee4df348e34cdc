"""What a run may start to serve a model: vLLM in its own environment, or the rule-based tutor; and keys of training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from treadle.core.config import Operational, Section, with_preset

EMBEDDED = "embedded"
"""The name that stands for SmolLM2-135M-Instruct, the model that needs no hub."""


def _check_devices(devices: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(devices)) < len(devices) or min(devices, default=0) < 0:
        raise ValueError("name each GPU once, by its place from 0")
    return devices


Devices = Annotated[tuple[int, ...], AfterValidator(_check_devices)]
"""Places of GPUs, see `core.engines.devices`."""


class VllmServer(Section):
    """A vLLM server, started by the run on this machine and stopped with it."""

    type: Literal["vllm"] = "vllm"
    """Which kind of server."""
    model: str = EMBEDDED
    """`embedded`, a folder in Hugging Face format, a hub id, or the checkpoint of an instance of this run: `1/sft`."""
    revision: str = ""
    """Commit or tag of a hub id; empty takes the newest."""
    variant: Operational[Literal["auto", "cpu", "cuda"]] = "auto"
    """Build of vLLM; `auto` takes cuda where an NVIDIA GPU answers."""
    devices: Operational[Devices] = ()
    """GPUs that it runs on, by their places among those that can be seen, as in [0, 1]; it is spread over them
    (`--tensor-parallel-size`) unless `extra_args` say how. Empty: it has all of them to itself. A CPU needs none."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Number type of the weights; `auto` is the checkpoint's own, but 16 bits on a GPU for one in fp32. A CPU without
    instructions for bf16 (`avx512_bf16`, `amx_bf16`) is several times faster with `float32`, in twice the memory."""
    max_model_len: int = Field(default=2048, ge=16)
    """Window in tokens, prompt and completion together."""
    kv_cache_gb: Operational[int] = Field(default=1, ge=1)
    """Memory for the key-value cache in GiB. CPU build only; on a GPU see `gpu_memory_share`."""
    gpu_memory_share: Operational[float] = Field(default=0.85, gt=0.0, le=1.0)
    """Share of the GPU's memory that vLLM may take."""
    threads: Operational[int] = Field(default=0, ge=0)
    """Compute threads of the CPU build; 0 takes all cores that this process may use."""
    compile: Operational[bool | None] = None
    """Whether vLLM compiles the model at start. By default on a GPU only: on CPU it costs a minute at every first
    start and gained nothing measurable for small models."""
    port: Operational[int] = Field(default=0, ge=0, le=65535)
    """Port on the loopback interface; 0 takes a free one."""
    startup_timeout_s: Operational[float] = Field(default=900.0, gt=0)
    """How long the server may take to answer its first completion."""
    extra_args: tuple[str, ...] = ()
    """Further arguments for vLLM's server, appended as they are."""


class TutorServer(Section):
    """The tutor, a rule-based stand-in for a model, started by the run."""

    type: Literal["tutor"] = "tutor"
    """Which kind of server."""
    module: Operational[str] = "treadle.demo.tutor"
    """Python module that is run with `-m`."""
    persona: str = "strong"
    """Which of its characters it plays."""
    tokenizer: Operational[Path | None] = None
    """Folder of the tokenizer whose ids it speaks; none: its own byte-level one."""
    port: Operational[int] = Field(default=0, ge=0, le=65535)
    """Port on the loopback interface; 0 takes a free one."""
    startup_timeout_s: Operational[float] = Field(default=60.0, gt=0)
    """How long it may take to answer its first completion."""
    options: dict[str, str | int | float | bool] = {}
    """Its other options by name, such as `latency_s`: passed as `--latency-s VALUE`; true passes the bare flag."""

    @field_validator("module")
    @classmethod
    def check_module(cls, value: str) -> str:
        """Allow only dotted names."""
        if not all(part.isidentifier() for part in value.split(".")):
            raise ValueError(f"{value!r} is not the dotted name of a module")
        return value


ServerSettings = Annotated[VllmServer | TutorServer, Field(discriminator="type")]
"""A server that the run starts itself, told apart by `type`."""

_OF_ADAPTERS = ("lora_rank", "lora_alpha", "lora_dropout", "lora_target")


class TrainingOptions(Section):
    """Keys that every kind of training has."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {}

    preset: Operational[str | None] = None
    """Named settings to start from, such as `et-agent-7b`; keys given beside it win."""
    finetuning_type: Literal["full", "lora"] = "full"
    """All weights, or low-rank adapters that are merged into them at the end."""
    lora_rank: int = Field(default=8, ge=1)
    """Rank of the adapters; `lora` keys count with adapters only."""
    lora_alpha: int | None = Field(default=None, ge=1)
    """Scale of the adapters; none means twice the rank."""
    lora_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout in the adapters."""
    lora_target: str = "all"
    """Modules that get an adapter, with commas between; `all` means every linear layer."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Number type of the computation; `auto` is bf16 on a GPU and fp32 on a CPU."""
    variant: Operational[Literal["auto", "cpu", "cuda"]] = "auto"
    """Build of the engine; `auto` takes cuda where an NVIDIA GPU answers."""
    devices: Operational[Devices] = ()
    """GPUs that it runs on, by their places among those that can be seen, as in [2, 3]; on every node the same. Empty:
    all of them. A CPU needs none."""
    num_devices: Operational[int | None] = Field(default=None, ge=1)
    """How many of them take part, the first ones; none means all. A CPU counts as one."""
    gradient_checkpointing: Operational[bool | None] = None
    """Whether activations are computed twice instead of kept; none means on a GPU only."""
    threads: Operational[int] = Field(default=0, ge=0)
    """Compute threads on a CPU; 0 takes all cores that this process may use."""
    stall_timeout_s: Operational[float] = Field(default=3600.0, gt=0.0)
    """A training of which nothing is heard for so long (no step, nor anything else) counts as hung and is ended."""
    trackers: Operational[tuple[Literal["wandb", "tensorboard", "swanlab", "mlflow", "trackio"], ...]] = ()
    """Experiment trackers that the training reports to; none by default. They must be installed in the engine's
    environment, and take their keys from their own environment variables."""

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
        """Keys of adapters are at their defaults without any: they would tell trainings apart that are the same.

        Given ones are kept in the section itself, for an instance that trains adapters by its override.
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
