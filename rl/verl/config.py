"""Generate verl's configuration from a plan: Hydra overrides of `verl.trainer.main_ppo`, and the agent loop's YAML.

Written for verl 0.9.x, whose default trainer counts steps as plans do: one batch of prompts, `ppo_mini_batch_size`
prompts per update, each times `rollout.n`. Keys that only the fork behind arXiv 2601.06860 has are never written:
Treadle's agent loop (`treadle.rl.engine.verl.loop`) makes groups, branches and rewards. Documented in
docs/guides/verl.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from treadle.core.errors import ConfigError
from treadle.rl.config import RlOptions
from treadle.rl.training.plan import RlPlan
from treadle.rl.verl.advantages import OUTCOME_REWARD, advantage_overrides

AGENT_LOOP = "treadle"
"""Name of Treadle's agent loop in verl's registry."""
METRICS_VARIABLE = "VERL_FILE_LOGGER_PATH"
"""Environment variable with the path that verl's logger `file` writes to."""
_LOSS = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean"}
_DTYPE = {"auto": "bfloat16", "bf16": "bfloat16", "fp16": "float16"}
_UNBOUNDED_RATIO = 1e6
"""Ratio of the dual clip if it is disabled; verl always has one, and this value never applies."""
_ANSWER_TOKENS = 8192
"""Lower bound of the maximum tokens per pass on a GPU if `per_device_batch_size` is not set."""
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*")
_RESERVED = ("null", "true", "false", "inf", "nan")
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
"""Names with which verl would run code that is neither its own nor Treadle's, at any position in a key of `rl.extra`.

From the sources of verl 0.9.1: keys that reach `load_extern_object`, `load_extern_type`, `load_class_from_fqn`,
`import_external_libs`, `import_module`, Hydra's `instantiate`, a shell or `torch.load`, and keys that vLLM and
transformers load themselves. verl has most tables several times (actor, critic, teacher, reward model)."""
_ROW_LIMIT_KEYS = frozenset({"data.train_max_samples", "data.val_max_samples"})
"""Keys with which verl would leave out rows that the plan counts."""
_REFILL_KEYS = ("algorithm.filter_groups", "trainer.v1.sampler")
"""Tables with which verl would replace groups of a step by later rows."""


@dataclass(frozen=True, slots=True)
class VerlFiles:
    """Paths for verl.

    Attributes:
        job: Job of the training, from which the agent loop reads plan and environment.
        rows, validation: Questions in verl's schema.
        model: Start policy in Hugging Face format.
        output: Folder of the states `global_step_<n>`.
        loop: YAML that names the agent loop.
        metrics: JSON lines with the metrics of each step.
        resume: State to resume from; None to start from the beginning.
    """

    job: Path
    rows: Path
    validation: Path
    model: Path
    output: Path
    loop: Path
    metrics: Path
    resume: Path | None = None


def verl_overrides(plan: RlPlan, files: VerlFiles) -> dict[str, JsonValue]:
    """Return every setting that differs from verl's defaults or that a training must not change, by key.

    `rl.extra` may add keys and replace those that no option of the plan decides; a key that verl's schema does not have
    needs a leading `+`, as on Hydra's command line. Raises ConfigError for options that verl does not support.
    """
    _check_supported(plan)
    decided = {**_data(plan, files), **_policy(plan, files), **_rollout(plan, files), **_trainer(plan, files)}
    decided |= _group_filter(plan.options)
    chosen = _defaults(plan)
    for key, value in plan.options.extra.items():
        _check_extra(key, value, {decided_key.lstrip("+~") for decided_key in decided})
        if plan.options.shares and key.lstrip("+~").startswith(_REFILL_KEYS):
            raise ConfigError(f"rl.extra: with rl.shares each step has its own rows, which {key} would replace")
    return {**decided, **chosen, **plan.options.extra}


def override_lines(overrides: Mapping[str, JsonValue]) -> list[str]:
    """Return the overrides as arguments of a Hydra program."""
    return [f"{key}={hydra_value(value)}" for key, value in overrides.items()]


def hydra_value(value: JsonValue) -> str:
    """Return a value in Hydra's grammar; text that could be read as something else is quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{hydra_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
        return value if plain else _quoted(value)
    return repr(value)


def _quoted(text: str) -> str:
    # Inside quotes, only the quote itself is escaped, and backslashes before a quote or at the end; `${` would refer to
    # another key.
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", text)
    tail = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{escaped[len(escaped) - tail :]}'".replace("${", "\\${")


def loop_yaml(job: Path) -> str:
    """Return the file for `agent_loop_config_path`, which names Treadle's agent loop. JSON is valid YAML."""
    entry = {"name": AGENT_LOOP, "_target_": "treadle.rl.engine.verl.loop.TreadleLoop", "job": str(job)}
    return json.dumps([entry], indent=2) + "\n"


def _check_supported(plan: RlPlan) -> None:
    options = plan.options
    if plan.machine.variant == "cpu":
        raise ConfigError('rl.engine: verl trains on NVIDIA GPUs only; use "trl" on this machine')
    if options.lr_scheduler_type == "linear":
        raise ConfigError("rl.lr_scheduler_type: verl supports constant and cosine, not linear")
    if options.finetuning_type == "lora" and options.lora_dropout:
        raise ConfigError("rl.lora_dropout: verl's adapters have no dropout; set it to 0")
    if options.precision == "fp32":
        raise ConfigError("rl.precision: vLLM inside verl computes in 16 bits; choose auto, bf16 or fp16")
    if plan.machine.num_devices % options.tensor_parallel:
        raise ConfigError(
            f"rl.tensor_parallel {options.tensor_parallel} does not divide {plan.machine.num_devices} GPUs of a node"
        )
    if plan.trajectories_per_step % plan.machine.num_processes:
        raise ConfigError(
            f"rl: {plan.trajectories_per_step} trajectories of a step (prompts_per_step x group_size) cannot be spread "
            f"evenly over {plan.machine.num_processes} GPUs"
        )


def _data(plan: RlPlan, files: VerlFiles) -> dict[str, JsonValue]:
    options = plan.options
    return {
        "data.train_files": str(files.rows),
        "data.val_files": str(files.validation),
        "data.prompt_key": "prompt",
        "data.reward_fn_key": "data_source",
        "data.return_raw_chat": True,
        "data.train_batch_size": options.prompts_per_step,
        "data.max_prompt_length": options.max_prompt_tokens,
        "data.max_response_length": options.max_response_tokens,
        "data.filter_overlong_prompts": True,
        # With shares, the file has the rows of each step in turn.
        "data.shuffle": not options.shares,
        "data.validation_shuffle": False,
        "data.seed": plan.seed % 2**31,
    }


def _policy(plan: RlPlan, files: VerlFiles) -> dict[str, JsonValue]:
    options = plan.options
    dual_clip = _UNBOUNDED_RATIO if options.dual_clip is None else options.dual_clip
    actor: dict[str, JsonValue] = {
        "ppo_mini_batch_size": options.mini_batch_prompts,
        "ppo_epochs": 1,
        "clip_ratio_low": options.clip_low,
        "clip_ratio_high": options.clip_high,
        "clip_ratio_c": dual_clip,
        "loss_agg_mode": _LOSS[options.loss_agg],
        "entropy_coeff": 0,
        # With weight 0, verl would still load the reference policy.
        "use_kl_loss": options.kl_coef > 0,
        "kl_loss_coef": options.kl_coef,
        "optim.lr": options.learning_rate,
        "optim.lr_scheduler_type": options.lr_scheduler_type,
        "optim.weight_decay": options.weight_decay,
        **({"optim.lr_warmup_steps": options.warmup_steps} if options.warmup_steps else {}),
        "optim.clip_grad": options.max_grad_norm,
        "fsdp_config.dtype": _DTYPE[options.precision],
        "checkpoint.save_contents": _checkpoint_contents(options),
    }
    return {
        **advantage_overrides(options, files.model),
        "algorithm.use_kl_in_reward": False,
        "actor_rollout_ref.model.path": str(files.model),
        "actor_rollout_ref.model.enable_gradient_checkpointing": options.gradient_checkpointing is not False,
        **_adapters(plan),
        **{f"actor_rollout_ref.actor.{key}": value for key, value in actor.items()},
    }


def _group_filter(options: RlOptions) -> dict[str, JsonValue]:
    """Return verl's dynamic sampling: it replaces groups with equal rewards one by one, without an upper limit.

    The trainer of verl 0.9 ignores `max_num_gen_batches`; `treadle.rl.engine.verl.metrics_follower` ends a training
    that reaches it.
    """
    if not options.dynamic_sampling:
        return {}
    filters: dict[str, JsonValue] = {
        "enable": True,
        # With credit of turns, verl must not compare sums of token scores, because these are no rewards.
        "metric": OUTCOME_REWARD if options.credits_turns else "reward",
        "max_num_gen_batches": 1 + options.max_extra_batches,
        "max_inflight_gen_batches": math.ceil(options.prompts_per_draw / options.prompts_per_step),
    }
    return {f"algorithm.filter_groups.{key}": value for key, value in filters.items()}


def _checkpoint_contents(options: RlOptions) -> list[JsonValue]:
    """Return the contents of a state; `hf_model` is a full copy of the live policy, to compare merged shards with.

    With adapters this copy is left out, because verl writes it under names that no program reads.
    """
    contents: list[JsonValue] = ["model", "optimizer", "extra"]
    return contents if options.finetuning_type == "lora" else [*contents, "hf_model"]


def _adapters(plan: RlPlan) -> dict[str, JsonValue]:
    options = plan.options
    if options.finetuning_type == "full":
        return {"actor_rollout_ref.model.lora_rank": 0}
    modules: JsonValue = [name.strip() for name in options.lora_target.split(",")]
    return {
        "actor_rollout_ref.model.lora_rank": options.lora_rank,
        "actor_rollout_ref.model.lora_alpha": options.lora_alpha or 2 * options.lora_rank,
        "actor_rollout_ref.model.target_modules": "all-linear" if options.lora_target == "all" else modules,
    }


def _rollout(plan: RlPlan, files: VerlFiles) -> dict[str, JsonValue]:
    options = plan.options
    rollout: dict[str, JsonValue] = {
        "name": "vllm",
        "mode": "async",
        "n": options.group_size,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "dtype": _DTYPE[options.precision],
        "max_model_len": options.max_prompt_tokens + options.max_response_tokens,
        "tensor_model_parallel_size": options.tensor_parallel,
        "gpu_memory_utilization": options.gpu_memory_share,
        # Branching needs log-probabilities, as does verl's comparison of sampler and trainer.
        "calculate_log_probs": True,
        "multi_turn.enable": True,
        "agent.default_agent_loop": AGENT_LOOP,
        "agent.agent_loop_config_path": str(files.loop),
        "val_kwargs.do_sample": False,
        "val_kwargs.temperature": 0,
        "val_kwargs.n": 1,
    }
    return {f"actor_rollout_ref.rollout.{key}": value for key, value in rollout.items()}


def _trainer(plan: RlPlan, files: VerlFiles) -> dict[str, JsonValue]:
    options = plan.options
    validates = plan.num_validation_rows > 0
    return {
        "trainer.use_v1": True,
        "trainer.v1.trainer_mode": "sync",
        "trainer.total_epochs": 1 if options.shares else options.num_epochs,
        "trainer.total_training_steps": plan.num_steps,
        "trainer.save_freq": options.save_steps,
        "trainer.test_freq": options.validation_steps if validates else -1,
        "trainer.val_before_train": False,
        "trainer.n_gpus_per_node": plan.machine.num_devices,
        "trainer.nnodes": plan.machine.num_nodes,
        "trainer.default_local_dir": str(files.output),
        # The agent loop writes the rollouts of each step itself, with all parts of their rewards.
        "trainer.rollout_data_dir": None,
        "trainer.resume_mode": "resume_path" if files.resume else "disable",
        "trainer.resume_from_path": str(files.resume) if files.resume else None,
        "trainer.project_name": "treadle",
        "trainer.experiment_name": plan.address,
        "trainer.logger": ["console", "file", *options.trackers],
        f"+ray_kwargs.ray_init.runtime_env.env_vars.{METRICS_VARIABLE}": str(files.metrics),
    }


def _defaults(plan: RlPlan) -> dict[str, JsonValue]:
    """Return the settings that the plan does not decide; `rl.extra` may replace them."""
    tokens = _tokens_per_device(plan)
    critic: dict[str, JsonValue] = {"critic.strategy": "fsdp2", "critic.ppo_max_token_len_per_gpu": tokens}
    return {
        **(critic if plan.options.engine.has_critic else {}),
        "actor_rollout_ref.model.use_remove_padding": True,
        # flash-attn has to be compiled on the machine; if it is installed, flash_attention_2 can be set.
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": tokens,
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": 2 * tokens,
        "actor_rollout_ref.rollout.agent.num_workers": 8,
        # Every trajectory already has its reward, so the reward workers are idle.
        "reward.num_workers": 1,
    }


def _tokens_per_device(plan: RlPlan) -> int:
    """Return the maximum tokens of a forward and backward pass.

    It is `per_device_batch_size` times twice the longest trajectory. Without that key, it is twice the longest
    trajectory, but at least `_ANSWER_TOKENS`.
    """
    options = plan.options
    longest = options.max_prompt_tokens + options.max_response_tokens
    if options.per_device_batch_size is None:
        return max(2 * longest, _ANSWER_TOKENS)
    return 2 * longest * options.per_device_batch_size


def _check_extra(key: str, value: JsonValue, decided: AbstractSet[str]) -> None:
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
