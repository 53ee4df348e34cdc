"""Open the environments of a run and bind models to them, for rollouts, pools and reinforcement learning."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

from treadle.agent.contract import DEFAULT_ENVIRONMENT, Task
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.model_sessions import ModelSession
from treadle.agent.model_types import RolloutLimits
from treadle.agent.rollout import RolloutEngine
from treadle.core.errors import ConfigError, EndpointUnavailable, ToolError
from treadle.core.llm.config import Sampling
from treadle.environments.mixture import Environments, table_of
from treadle.environments.registry import environment_type
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.types import EnvironmentRuntime, Resources


@contextlib.asynccontextmanager
async def open_runtime(settings: EnvironmentSettings, resources: Resources) -> AsyncIterator[EnvironmentRuntime]:
    """Open an environment for the duration of the block. Raises ConfigError, ToolError and EndpointUnavailable."""
    async with environment_type(settings).open(settings, resources) as runtime:
        yield runtime


@contextlib.asynccontextmanager
async def open_runtimes(
    environments: Environments, resources: Resources
) -> AsyncIterator[dict[str, EnvironmentRuntime]]:
    """Open environments by name, each with the models that it asks; see `open_runtime`."""
    async with contextlib.AsyncExitStack() as stack:
        runtimes = {}
        for name, settings in environments.items():
            own = replace(
                resources,
                summarizer=None if settings.summarizer is None else resources.summarizer,
                roles={role: one for role, one in resources.roles.items() if role in settings.role_models},
            )
            with errors_named(name):
                runtimes[name] = await stack.enter_async_context(open_runtime(settings, own))
        yield runtimes


@contextlib.contextmanager
def errors_named(name: str) -> Iterator[None]:
    """Prefix errors of opening an environment with the key of its table, unless it is the default one.

    The messages themselves name keys as if they were in the table `[environment]`.
    """
    try:
        yield
    except (ConfigError, ToolError, EndpointUnavailable) as error:
        if name != DEFAULT_ENVIRONMENT:
            error.args = (f"[{table_of(name)}]: {error}",)
        raise


def shown_messages(settings: EnvironmentSettings, task: Task) -> list[dict[str, str]]:
    """Return the messages before the first turn, or the task's text if only an episode can make them."""
    return settings.prompt_messages(task) or [{"role": "user", "content": task.user_message}]


def limits_of(
    settings: EnvironmentSettings,
    *,
    additional_calls: int = 0,
    max_model_len: int | None = None,
    max_response_tokens: int | None = None,
) -> RolloutLimits:
    """Return the limits of a rollout; of `settings.max_trajectory_tokens` and `max_response_tokens` the smaller one."""
    bounds = [bound for bound in (settings.max_trajectory_tokens, max_response_tokens) if bound is not None]
    return RolloutLimits(
        max_turns=settings.turn_limit(additional_calls),
        max_model_len=max_model_len,
        max_trajectory_tokens=min(bounds, default=None),
        trimming=settings.trimming,
        context=settings.context.rule,
        prompt_hint=settings.context.prompt_hint,
    )


def engine_of(
    session: ModelSession,
    settings: EnvironmentSettings,
    sampling: Sampling,
    *,
    additional_calls: int = 0,
    role: str = "policy",
) -> RolloutEngine:
    """Return a rollout engine with a model as policy or agent; `additional_calls` extends each call limit.

    Raises ConfigError if the sampling or the stop strings do not suit the role, or if contexts cannot be trimmed or
    managed.
    """
    check_trimming(settings, session.name, session.facts.max_model_len)
    limits = limits_of(settings, additional_calls=additional_calls, max_model_len=session.facts.max_model_len)
    engine = session.engine(settings.turn_dialect, limits, sampling, role=role)
    if limits.context is not None and engine.chat is not None and isinstance(engine.dialect, FunctionsDialect):
        raise ConfigError(
            f'environment.context.manager = "{settings.context.manager}" needs requests that show a part of '
            f"the conversation, but models.{session.name} gets native calls as messages, each with its result; use "
            '"linear", or a model that completes prompts'
        )
    return engine


def check_trimming(settings: EnvironmentSettings, model: str, window: int | None) -> None:
    """Raise ConfigError if the settings trim contexts, but the model's window is unknown or too small for a turn."""
    if settings.trimming is None:
        return
    if window is None:
        raise ConfigError(
            f"environment.trim_reserve_tokens needs the context window of model {model}, which its server does not "
            f"report; set models.{model}.max_model_len"
        )
    if settings.trimming.reserve_tokens >= window:
        raise ConfigError(
            f"environment.trim_reserve_tokens = {settings.trimming.reserve_tokens} leaves no room in the window of "
            f"model {model}, which has {window} tokens; lower it"
        )
