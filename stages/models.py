"""Resolve models that a configuration names to checkpoints of the run, weights and tokenizers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from treadle.agent.role_settings import RoleSettings
from treadle.core.chat_files import TokenizerFiles
from treadle.core.engines.base_model import folder_digest
from treadle.core.engines.config import EMBEDDED, TutorServer, VllmServer
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.runs.address import Address
from treadle.stages.plan import Plan
from treadle.stages.registry import makes_checkpoint


def named_checkpoint(model: str) -> tuple[Address, ...]:
    """Return the instance of this run whose checkpoint a model name refers to; empty if it refers to none."""
    try:
        address = Address.parse(model)
    except ConfigError:
        return ()
    return (address,) if makes_checkpoint(address.stage) else ()


def with_weights(model: ModelSettings, policy: str, revision: str = "") -> ModelSettings:
    """Return a model that serves another policy.

    The policy is the address of a checkpoint of the run, a folder, or a hub id at a revision.

    A server that the run starts loads that policy. The run cannot choose what user-run servers load, so they must
    serve a checkpoint of the run under its address as the model name. The rule-based tutor has no weights, so its
    settings are returned unchanged.
    """
    if isinstance(model.server, VllmServer):
        server = model.server.model_copy(update={"model": policy, "revision": revision})
        # A folder whose files have changed is a different policy.
        return model.model_copy(update={"server": server, "revision": folder_digest(policy) or model.revision})
    return model.model_copy(update={"model": policy}) if model.server is None and named_checkpoint(policy) else model


def is_hub_id(model: str) -> bool:
    """Return whether a model name is a hub id: not made by the run, not embedded, and not a folder."""
    return not named_checkpoint(model) and model != EMBEDDED and not (model and Path(model).expanduser().is_dir())


def checkpoint_of(model: ModelSettings) -> Address | None:
    """Return the instance of this run whose checkpoint the model's server loads; None if there is none."""
    return next(iter(named_checkpoint(model.server.model)), None) if isinstance(model.server, VllmServer) else None


def checkpoints_of(plan: Plan, names: Iterable[str | None]) -> tuple[Address, ...]:
    """Return the unique instances whose checkpoints these models load; raise ConfigError for unknown ones."""
    found: dict[Address, None] = {}
    for name in names:
        if name is not None and (made := checkpoint_of(plan.models[name])) is not None:
            plan.check_checkpoint(made, f"models.{name}.server.model")
            found[made] = None
    return tuple(found)


def role_of(name: str, model: ModelSettings, sampling: Sampling) -> RoleSettings:
    """Return the settings of a helper model in a role; raise as `checked_model` does."""
    model, tokenizer_digest = checked_model(name, model)
    return RoleSettings(name=name, model=model, tokenizer_digest=tokenizer_digest, sampling=sampling)


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
    return model, TokenizerFiles.read(tokenizer).digest if tokenizer else ""


def tokenizer_folder(model: ModelSettings) -> Path | None:
    """Return the folder of the tokenizer, if it is known before a server is started."""
    if model.tokenizer is None and isinstance(model.server, TutorServer):
        return model.server.tokenizer
    return model.tokenizer


def check_tokenizer(model: ModelSettings) -> None:
    """Raise ConfigError if the tokenizer of a model cannot be built, which takes seconds for large vocabularies."""
    from treadle.core.chat import ChatTokenizer

    if (folder := tokenizer_folder(model)) is not None:
        ChatTokenizer.load(folder)


def served_tokenizer(model: ModelSettings) -> Path | None:
    """Return the tokenizer that a server started by the run provides: a folder, or `embedded`; None for a hub id."""
    if not isinstance(model.server, VllmServer):
        return None
    folder = Path(model.server.model)
    return folder if model.server.model == EMBEDDED or folder.is_dir() else None
