"""Compose verl's configuration from overrides, and count the rows that verl would keep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError


def compose_config(overrides: Sequence[str]) -> Any:
    """Return the configuration (OmegaConf) that `verl.trainer.main_ppo` would train with.

    Sections with typed classes that need neither a GPU nor the model are instantiated once, so that verl checks their
    values. Raises ConfigError with the message of Hydra or verl, for example for an unknown override.
    """
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from verl.utils.config import omega_conf_to_dataclass

    try:
        with initialize_config_module(config_module="verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=list(overrides))
        OmegaConf.to_container(config, resolve=True, throw_on_missing=False)
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        gpus = config.trainer.n_gpus_per_node * config.trainer.nnodes
        actor.validate(gpus, config.data.train_batch_size, config.actor_rollout_ref.model)
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AssertionError) as error:
        raise ConfigError(" ".join(str(error).split()) or type(error).__name__) from error
    return config


def count_kept_rows(config: Any, rows: Path, model: Path) -> int:
    """Count the rows of a file that verl would train on; verl silently drops prompts that are too long.

    `config` is the result of `compose_config`; `model` is a folder with the tokenizer.
    """
    from verl.trainer.ppo.utils import create_rl_dataset
    from verl.utils import hf_processor, hf_tokenizer

    tokenizer, processor = hf_tokenizer(str(model)), hf_processor(str(model))
    return len(create_rl_dataset([str(rows)], config.data, tokenizer, processor))
