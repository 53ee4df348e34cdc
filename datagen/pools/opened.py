"""Open the models, the judge and the environments of pools, or make ones that replay their stored answers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.judges.answer import AnswerJudge
from treadle.agent.metering import Meter, TokenBudget
from treadle.agent.model_sessions import ModelSession, ModelSessions, load_tokenizer
from treadle.core.llm.pool import ModelPool
from treadle.core.llm.types import ServerFacts
from treadle.core.store.keyed_store import KeyedStore
from treadle.datagen.operators import load_operators
from treadle.datagen.pools.context import NullModel, NullRuntime, PoolContext
from treadle.datagen.pools.settings import PoolsSettings
from treadle.datagen.prompts import PromptSet
from treadle.environments.mixture import Environments
from treadle.environments.opening import engine_of, open_runtimes
from treadle.environments.registry import environment_type
from treadle.environments.types import EnvironmentRuntime, Resources


@dataclass(frozen=True, slots=True)
class OpenPools:
    """Open resources for making pools.

    Attributes:
        contexts: Resources that the questions of an environment share, by the environment's name.
        tokenizer_digest: Digest of the policy's tokenizer; empty in text mode.
        sandbox: Facts about the environments, which become metrics of the stage's record.
    """

    contexts: Mapping[str, PoolContext]
    tokenizer_digest: str
    sandbox: Mapping[str, Any] = field(default_factory=dict)


async def open_models(
    settings: PoolsSettings, sessions: ModelSessions, servers: dict[str, Any]
) -> dict[str, ModelSession]:
    """Return the models of all roles; add the facts about each server to `servers`, by role, once known."""
    is_native = any(isinstance(one.turn_dialect, FunctionsDialect) for one in settings.named_environments().values())
    models = {}
    for name, role in settings.roles.items():
        calls_tools = is_native and name == "policy"
        models[name] = await sessions.model(role.name, role.model, role.tokenizer_digest, calls_tools=calls_tools)
        servers[name] = asdict(models[name].facts)
    return models


@contextlib.asynccontextmanager
async def open_pools(
    settings: PoolsSettings,
    environments: Environments,
    models: Mapping[str, ModelSession],
    store: Callable[[str], KeyedStore],
) -> AsyncIterator[OpenPools]:
    """Open the tools of these environments and the judge for the duration of the block; `models` are keyed by role."""
    facts = {name: environment_type(one).facts(one) for name, one in environments.items()}
    models["policy"].check_token_ids()
    resources = Resources(models.get("summarizer"), store)
    async with open_runtimes(environments, resources) as runtimes, _judge(settings, models) as judge:
        yield OpenPools(
            _contexts(settings, environments, models, runtimes, judge),
            _tokenizer_digest(models),
            settings.named_metrics(facts),
        )


@contextlib.asynccontextmanager
async def replay_pools(
    settings: PoolsSettings, environments: Environments, servers: Mapping[str, Any], budget: TokenBudget, cause: str
) -> AsyncIterator[OpenPools]:
    """Make contexts that replay stored answers; any other request fails with `cause`.

    `servers` has the facts about the server of each role from when the questions were processed. Environments that
    cannot replay get no context; without facts about the policy's server, no environment gets one.
    """
    runtimes: dict[str, EnvironmentRuntime] = {}
    for name, one in environments.items() if "policy" in servers else ():
        if (runtime := environment_type(one).replaying(one)) is not None:
            runtimes[name] = NullRuntime(runtime, cause)
    if not runtimes:
        yield OpenPools({}, "")
        return
    models = _replay_models(settings, servers, budget)
    # Verdicts decide which operators are replayed, so the judge is needed. Its rules need no model, and the verdicts of
    # its model are stored.
    async with _judge(settings, models, NullModel(cause)) as judge:
        replayed = {name: environments[name] for name in runtimes}
        yield OpenPools(_contexts(settings, replayed, models, runtimes, judge), _tokenizer_digest(models))


def _tokenizer_digest(models: Mapping[str, ModelSession]) -> str:
    codec = models["policy"].codec
    return codec.digest if codec else ""


def _contexts(
    settings: PoolsSettings,
    environments: Environments,
    models: Mapping[str, ModelSession],
    runtimes: Mapping[str, EnvironmentRuntime],
    judge: AnswerJudge,
) -> dict[str, PoolContext]:
    policy, sampling = models["policy"], settings.roles["policy"].sampling
    roles = {name: models[name].for_role(name, settings.roles[name].sampling) for name in ("critic", "refiner")}
    operators, prompts = load_operators(settings.options.operators), PromptSet(settings.options.prompts)
    return {
        name: PoolContext(
            options=settings.options,
            environment=one,
            fresh=engine_of(policy, one, sampling),
            continuing=engine_of(policy, one, sampling, additional_calls=one.num_continuation_calls),
            runtime=runtimes[name],
            roles=roles,
            judge=judge,
            operators=operators,
            prompts=prompts,
            policy_name=settings.roles["policy"].name,
            seed=settings.seed,
        )
        for name, one in environments.items()
    }


def _judge(
    settings: PoolsSettings, models: Mapping[str, ModelSession], instead: NullModel | None = None
) -> AnswerJudge:
    """Return the judge; `instead` replaces its model."""
    model = None
    if settings.options.judge_math:
        model = models["judge"].for_role("judge", settings.roles["judge"].sampling)
        model = replace(model, model=instead or model.model)
    return AnswerJudge(f1_threshold=settings.options.f1_threshold, model=model)


def _replay_models(settings: PoolsSettings, servers: Mapping[str, Any], budget: TokenBudget) -> dict[str, ModelSession]:
    """Return the models of all roles for replaying stored answers without requests.

    The policy gets the facts that its server reported when the questions were processed; the facts of other roles
    do not matter.
    """
    models = {}
    for name, role in settings.roles.items():
        unknown = ServerFacts(role.model.model, None, token_ids=False, endpoints=())
        facts = ServerFacts(**servers[name]) if name in servers else unknown
        meter = Meter(ModelPool(role.name, role.model), budget)
        tokenizer = load_tokenizer(role.name, role.model, role.tokenizer_digest)
        models[name] = ModelSession(role.name, meter, facts, tokenizer)
    return models
