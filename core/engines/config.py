"""What a run may start to serve a model: vLLM in its own environment, or the rule-based tutor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from treadle.core.config import Operational, Section

EMBEDDED = "embedded"
"""The name that stands for SmolLM2-135M-Instruct, the model that needs no hub."""


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
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Number type of the weights; `auto` is the checkpoint's own."""
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
