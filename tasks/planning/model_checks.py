"""Check that the models of a run can play their roles and are served as configured."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

from treadle.core.errors import EndpointUnavailable
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address
from treadle.datagen.pools.entry import pool_models
from treadle.datagen.sft_rows.row_source import rolled_out_policy
from treadle.environments.mixture import summarizer_of
from treadle.eval.entry import score_models
from treadle.rl.phases import sampling_model
from treadle.stages.models import check_tokenizer
from treadle.tasks.config import TreadleConfig, environments_in_use, overridden
from treadle.tasks.planning.flow_plan import FlowPlan
from treadle.tasks.planning.order import flow_phases

_CHECK_S = 30.0
"""Longest time a server may take to answer before a run is created. A slower one is checked again by the stage."""


def check_roles(config: TreadleConfig) -> None:
    """Raise ConfigError if the policy of a curriculum has no token ids, regardless of what its server reports."""
    from treadle.agent.model_sessions import check_trained

    if flow_phases(config, 1):
        name = sampling_model(FlowPlan(config))
        check_trained(name, config.models[name])


def _played_roles(config: TreadleConfig) -> list[tuple[str, str]]:
    """Return the unique pairs of `pools` role and model name over all iterations."""
    if "pools" not in config.flow.stages:
        return []
    plan, iterations = FlowPlan(config), range(1, config.flow.iterations + 1)
    played = (pool_models(plan, Address(number, "pools")).items() for number in iterations)
    return list(dict.fromkeys(pair for pairs in played for pair in pairs))


def check_tokenizers(config: TreadleConfig, known: Collection[str]) -> None:
    """Raise ConfigError if a tokenizer cannot be built of a model that the flow uses and that is not in `known`."""
    if config.models.keys() <= set(known):
        return
    for name in _used_models(config):
        if name not in known:
            check_tokenizer(config.models[name])


def check_models(config: TreadleConfig, known: Collection[str]) -> None:
    """Raise ConfigError if a server that answers does not serve its model as configured.

    Servers that do not answer are skipped, because they may start later. Models in `known` are not checked again.
    """
    if config.models.keys() <= set(known):
        return
    import asyncio

    from treadle.agent.model_sessions import check_sampling
    from treadle.agent.role_settings import AGENT
    from treadle.core.llm.pool import ModelPool

    async def check(name: str, settings: ModelSettings) -> None:
        limits = {"retry_limit": 0, "request_timeout_s": min(settings.request_timeout_s, _CHECK_S)}
        async with ModelPool(name, settings.model_copy(update=limits)) as pool:
            with suppress(EndpointUnavailable):
                facts = await pool.check()
                if name in agents:
                    options = overridden(config, Address(1, "rollouts", name), config.rollouts)
                    check_sampling(AGENT, name, options.sampling, facts)

    agents = _policies(config) if "rollouts" in config.flow.stages else ()
    for name in _used_models(config):
        if name not in known and (settings := config.models[name]).endpoints:
            asyncio.run(check(name, settings))


def _policies(config: TreadleConfig) -> tuple[str, ...]:
    """Return the models that the first iteration measures or samples from."""
    plan = FlowPlan(config)
    rolled_out = rolled_out_policy(plan, 1)
    return tuple(dict.fromkeys((*plan.compared_models(), *((rolled_out,) if rolled_out else ()))))


def _used_models(config: TreadleConfig) -> list[str]:
    """Return the models that the flow uses, in any role."""
    plan, policies = FlowPlan(config), _policies(config)
    measured = [Address(1, "scores", name) for name in policies] if "scores" in config.flow.stages else []
    helper = summarizer_of(environments_in_use(config))
    used = [
        *policies,
        *(name for _, name in _played_roles(config)),
        *(judge for address in measured for judge in score_models(plan, address)),
        *((helper,) if helper else ()),
    ]
    return list(dict.fromkeys(used))


def has_keys(settings: ModelSettings) -> bool:
    """Return whether the environment has all API keys that the model's requests need."""
    return all(os.environ.get(name) for name in settings.secret_variables)
