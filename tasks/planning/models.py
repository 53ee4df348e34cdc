"""Determine which models a configuration uses for what: agents of the flow, roles of `pools`, checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.base_model import folder_digest
from treadle.core.engines.config import EMBEDDED, TutorServer, VllmServer
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address, phase_name, phase_of
from treadle.tasks.config import TreadleConfig, overridden

_CHECKPOINT = re.compile(r"[1-9]\d{0,3}/(sft|rl)(@[A-Za-z0-9][A-Za-z0-9._-]*)?")


def flow_models(config: TreadleConfig) -> tuple[str, ...]:
    """Return the models whose rollouts the flow collects; raise ConfigError if there is none."""
    roles = config.pools.roles
    helpers = {roles.critic.model, roles.refiner.model, roles.judge.model} - {roles.policy.model}
    helpers |= {config.environment.summarizer_name, config.scores.redundancy.model, *config.scores.judges.models}
    helpers |= {role.model for role in config.environment.role_models.values()}
    models = config.flow.models or tuple(name for name in config.models if name not in helpers) or tuple(config.models)
    if not models:
        raise ConfigError("no model is configured: add a [models.<name>] table with its `model` and `endpoints`")
    return models


def pool_models(config: TreadleConfig, address: Address | None = None) -> dict[str, str]:
    """Return role -> name of its model in `pools`, including overrides if an address is given.

    Raises ConfigError if no model is configured, and if an override names an unknown one.
    """
    roles = (overridden(config, address, config.pools) if address is not None else config.pools).roles
    policy = roles.policy.model or flow_models(config)[0]
    critic = roles.critic.model or policy
    named = {
        "policy": policy,
        "critic": critic,
        "refiner": roles.refiner.model or policy,
        "judge": roles.judge.model or critic,
    }
    for role, name in named.items():
        if name not in config.models:
            raise ConfigError(
                f'overrides."{address}".roles.{role}.model names {name!r}, which is not under [models]; '
                f"add [models.{name}]"
            )
    helper = config.environment.summarizer
    return {**named, "summarizer": helper} if helper else named


def score_models(config: TreadleConfig, address: Address) -> tuple[str, ...]:
    """Return the models that `scores@<model>` calls, without duplicates: answer judges and the redundancy voter."""
    options = overridden(config, address, config.scores)
    voter = options.redundancy.model
    names = dict.fromkeys((*options.judges.models, *((voter,) if voter is not None else ())))
    for name in names:
        if name not in config.models:
            raise ConfigError(f"{address} needs {name!r}, which is not under [models]; add [models.{name}]")
    return tuple(names)


def named_checkpoint(model: str) -> tuple[Address, ...]:
    """Return the instance of this run whose checkpoint a model name stands for; empty if it is none."""
    return (Address.parse(model),) if _CHECKPOINT.fullmatch(model) else ()


def with_weights(model: ModelSettings, policy: str, revision: str = "") -> ModelSettings:
    """Return a model that serves another policy.

    The policy is the address of a checkpoint of the run, a folder, or a hub id at a revision.

    A server that the run starts loads that policy. User-run servers cannot be told what to load, so they must serve a
    checkpoint of the run under its address as the model name. The tutor stays unchanged.
    """
    if isinstance(model.server, VllmServer):
        server = model.server.model_copy(update={"model": policy, "revision": revision})
        # A folder whose files have changed is a different policy.
        return model.model_copy(update={"server": server, "revision": folder_digest(policy) or model.revision})
    return model.model_copy(update={"model": policy}) if model.server is None and named_checkpoint(policy) else model


def is_hub_id(model: str) -> bool:
    """Return whether a model name is a hub id: not made by the run, not embedded, and not a folder."""
    return not named_checkpoint(model) and model != EMBEDDED and not (model and Path(model).expanduser().is_dir())


def check_named_checkpoint(config: TreadleConfig, made: Address, where: str) -> None:
    """Raise ConfigError if no instance of this configuration makes the checkpoint; `where` is the key that names it."""
    phase, last = phase_of(made.qualifier), config.curriculum.phases
    exists = made.qualifier is None if made.stage == "sft" else phase is not None and phase <= last
    if not exists or made.iteration > config.flow.iterations:
        raise ConfigError(
            f"{where} = {made}: no instance of this configuration makes it; use 1/sft, or a phase of the curriculum: "
            f"1/rl@{phase_name(1)} to 1/rl@{phase_name(last)}"
        )


def checkpoint_of(model: ModelSettings) -> Address | None:
    """Return the instance of this run whose checkpoint the model's server loads; None if there is none."""
    return next(iter(named_checkpoint(model.server.model)), None) if isinstance(model.server, VllmServer) else None


def checkpoints_of(config: TreadleConfig, names: Iterable[str | None]) -> tuple[Address, ...]:
    """Return the unique instances whose checkpoints these models load; raise ConfigError for unknown ones."""
    found: dict[Address, None] = {}
    for name in names:
        if name is not None and (made := checkpoint_of(config.models[name])) is not None:
            check_named_checkpoint(config, made, f"models.{name}.server.model")
            found[made] = None
    return tuple(found)


def checked_model(name: str, model: ModelSettings) -> tuple[ModelSettings, str]:
    """Return the checked model and its tokenizer's digest (empty without one).

    Raises ConfigError if it has neither or both of `server` and `endpoints`, or if its tokenizer is missing.
    """
    if bool(model.endpoints) == (model.server is not None):
        raise ConfigError(
            f"models.{name} has both `server` and `endpoints`; keep one of them"
            if model.endpoints
            else f"models.{name} has no endpoints; give their URLs, or a server to start"
        )
    tokenizer = tokenizer_folder(model)
    if tokenizer is not None and not (tokenizer / "tokenizer.json").is_file():
        raise ConfigError(
            f"models.{name}.tokenizer: there is no {tokenizer.absolute() / 'tokenizer.json'}; put the tokenizer of "
            f"{model.model} there, or remove the key: rows then have no token ids and cannot be trained on here"
        )
    return model, ChatTokenizer.load(tokenizer).digest if tokenizer else ""


def tokenizer_folder(model: ModelSettings) -> Path | None:
    """Return the folder of the tokenizer, as far as it is known before a server is started."""
    if model.tokenizer is None and isinstance(model.server, TutorServer):
        return model.server.tokenizer
    return model.tokenizer


def served_tokenizer(model: ModelSettings) -> Path | None:
    """Return the tokenizer that a server started by the run provides: a folder, or `embedded`; None for a hub id."""
    if not isinstance(model.server, VllmServer):
        return None
    folder = Path(model.server.model)
    return folder if model.server.model == EMBEDDED or folder.is_dir() else None
