"""Open the policy, the models that episodes ask, and the environments of the questions."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from treadle.agent.contexts.clipping import CLIPPER
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.model_sessions import ModelSession, ModelSessions, check_trained, load_tokenizer
from treadle.agent.role import RoleModel
from treadle.agent.role_settings import AGENT
from treadle.agent.rollout import RolloutEngine
from treadle.core.chat import ChatTokenizer
from treadle.core.store.keyed_store import KeyedStore
from treadle.environments.mixture import Environments, role_models_of, summarizer_of
from treadle.environments.opening import engine_of, open_runtimes
from treadle.environments.registry import environment_type, traits_of
from treadle.environments.rollouts.settings import RolloutsSettings
from treadle.environments.types import EnvironmentRuntime, Resources

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutEnvironment:
    """An open environment, and an engine that rolls out the policy in it."""

    engine: RolloutEngine
    runtime: EnvironmentRuntime


@dataclass(frozen=True, slots=True)
class OpenRollouts:
    """Open environments in which rollouts are made.

    Attributes:
        environments: Open environments by name.
        tokenizer_digest: Digest of the policy's tokenizer; empty in text mode.
        facts: Facts for the record: about the context, and about the environments, by name if there are several.
    """

    environments: Mapping[str, RolloutEnvironment]
    tokenizer_digest: str
    facts: Mapping[str, Any]


@contextlib.asynccontextmanager
async def open_rollouts(
    settings: RolloutsSettings,
    environments: Environments,
    sessions: ModelSessions,
    store: Callable[[str], KeyedStore],
) -> AsyncIterator[OpenRollouts]:
    """Open the policy, the environments, and the models that their episodes ask, for the duration of the block."""
    policy = await _open_policy(settings, environments, sessions)
    summarizer = await _open_summarizer(settings, environments, sessions)
    facts = {name: environment_type(one).facts(one) for name, one in environments.items()}
    policy.check_token_ids()
    context = _context_facts(settings.model_name, environments, policy.codec)
    engines = {
        name: engine_of(policy, one, settings.options.sampling, role=settings.options.role)
        for name, one in environments.items()
    }
    resources = Resources(summarizer, store, roles=await _open_roles(settings, environments, sessions))
    async with open_runtimes(environments, resources) as runtimes:
        for name, runtime in runtimes.items():
            facts[name] = {**facts[name], **runtime.facts(), **engines[name].dialect.facts()}
        for name, engine in engines.items():
            if CLIPPER in environments[name].role_models:
                engines[name] = replace(engine, clipper=resources.roles[CLIPPER])
        yield OpenRollouts(
            {name: RolloutEnvironment(engines[name], runtime) for name, runtime in runtimes.items()},
            policy.codec.digest if policy.codec else "",
            {"context": context, "environment": settings.named_metrics(facts)},
        )


def check_policy(settings: RolloutsSettings) -> str:
    """Return the digest of the policy's local tokenizer, empty without one.

    Raises ConfigError for another tokenizer than the required one, or if the policy is trained on its own rollouts but
    its API has no token ids.
    """
    if settings.options.role != AGENT:
        check_trained(settings.model_name, settings.model)
    tokenizer = load_tokenizer(settings.model_name, settings.model, settings.tokenizer_digest)
    return tokenizer.digest if tokenizer else ""


async def _open_policy(settings: RolloutsSettings, environments: Environments, sessions: ModelSessions) -> ModelSession:
    return await sessions.model(
        settings.model_name,
        settings.model,
        settings.tokenizer_digest,
        calls_tools=any(isinstance(one.turn_dialect, FunctionsDialect) for one in environments.values()),
    )


async def _open_summarizer(
    settings: RolloutsSettings, environments: Environments, sessions: ModelSessions
) -> ModelSession | None:
    name = summarizer_of(environments)
    if name is None or settings.summarizer is None:
        return None
    return await sessions.model(name, settings.summarizer, settings.summarizer_tokenizer_digest)


async def _open_roles(
    settings: RolloutsSettings, environments: Environments, sessions: ModelSessions
) -> dict[str, RoleModel]:
    asked = role_models_of(environments)
    return {
        role: (await sessions.model(one.name, one.model, one.tokenizer_digest)).for_role(
            role, one.sampling, only_messages=True
        )
        for role, one in settings.roles.items()
        if role in asked
    }


def _context_facts(model: str, environments: Environments, tokenizer: ChatTokenizer | None) -> dict[str, str]:
    """Warn if the chat template rewrites earlier turns, as rollouts never do; return facts about it for the record."""
    if tokenizer is None or not any(traits_of(one).writes_messages for one in environments.values()):
        return {}
    rewrites = tokenizer.context_rewrites(("user",))
    for sentence in rewrites.values():
        _log.warning(
            "models.%s: the chat template %s; rollouts only append to their context, so the model sees and is "
            "trained on other tokens there",
            model,
            sentence.rstrip("."),
        )
    return {"context": "append_only", **{f"template_{kind}": sentence for kind, sentence in rewrites.items()}}
