"""Refuse keys of `rl.extra` that would make verl run foreign code or change the plan.

Derived from the sources of verl 0.9.1: keys that reach `load_extern_object`, `load_extern_type`, `load_class_from_fqn`,
`import_external_libs`, `import_module`, Hydra's `instantiate`, a shell or `torch.load`, and keys that vLLM and
transformers load themselves. A name is refused at any position in a key, since verl has most tables more than once
(actor, critic, teacher, reward model). Documented in docs/guides/verl.md.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet

from pydantic import JsonValue

from treadle.core.errors import ConfigError

_KEY = re.compile(r"[+~]{0,2}[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")

_EXTERNAL_CODE_KEYS = frozenset(
    {
        # Any model or tokenizer.
        "trust_remote_code",
        "external_lib",
        # Classes and functions, by file or dotted name.
        "_target_",
        "custom_cls",
        "custom_reward_function",
        "reward_manager",
        "reward_loop_source",
        "reward_loop_module_path",
        "reward_loop_class_name",
        "custom_sampler",
        "custom_async_server",
        "agent_loop_manager_class",
        "checkpoint_manager_class",
        "checkpoint_callback_class",
        "custom_backend_module",
        "optimizer_impl",
        # Files that name classes or hold functions.
        "router_config_path",
        "tool_config_path",
        "function_tool_path",
        "agent_loop_config_path",
        # Arguments of vLLM and of transfer backends; several of vLLM's are classes, modules and plug-ins.
        "engine_kwargs",
        # Ray's: working folder, packages, interpreter, variables such as PYTHONPATH or VERL_USE_EXTERNAL_MODULES.
        "runtime_env",
        # Parts of command lines.
        "finish_hook_cmd",
        "controller_nsight_options",
        "worker_nsight_options",
        "default_hdfs_dir",
        # Pickled rollouts in place of new ones.
        "skip",
    }
)
"""Names in a key with which verl would run code that is neither its own nor Treadle's."""
_ROW_LIMIT_KEYS = frozenset({"data.train_max_samples", "data.val_max_samples"})
"""Keys with which verl would leave out rows that the plan counts."""


def check_extra(key: str, value: JsonValue, decided: AbstractSet[str]) -> None:
    """Raise ConfigError if `rl.extra` must not set the key.

    Refused are keys in `decided` and tables around or inside these, keys that load foreign code, keys that leave out
    rows, malformed keys, and values that are tables.
    """
    if not _KEY.fullmatch(key) or _has_table(value):
        raise ConfigError(
            f"rl.extra: {key!r} must be one key of verl, such as trainer.log_val_generations, with one value"
        )
    name = key.lstrip("+~")
    if any(name == ours or name.startswith(f"{ours}.") or ours.startswith(f"{name}.") for ours in decided):
        raise ConfigError(f"rl.extra: {key} is set by other keys of [rl] and cannot be replaced")
    parts = name.split(".")
    if _EXTERNAL_CODE_KEYS.intersection(parts) or parts[0] == "hydra" or _fetches_code(parts[-1], value):
        raise ConfigError(f"rl.extra: {key} is not passed through: external code is never run")
    if name in _ROW_LIMIT_KEYS:
        raise ConfigError(f"rl.extra: {key} would leave out rows that the plan counts; choose them in the selection")


def _has_table(value: JsonValue) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_has_table, value)))


def _fetches_code(name: str, value: JsonValue) -> bool:
    """Return whether a value makes transformers load a kernel from a hub, or verl pass a path to a shell."""
    if isinstance(value, list):
        return any(_fetches_code(name, item) for item in value)
    return isinstance(value, str) and (
        value.lstrip().startswith("hdfs") or (name.endswith("attn_implementation") and not value.isidentifier())
    )
