"""Estimate what an instance of `pools` or `rollouts` will use."""

from __future__ import annotations

from treadle.core.llm.config import ModelSettings
from treadle.core.runs.stage import Instance
from treadle.datagen.pools.settings import PoolsSettings
from treadle.environments.mixture import find_environment, summarizer_of
from treadle.environments.rollouts.settings import RolloutsSettings
from treadle.environments.settings import EnvironmentSettings
from treadle.tasks.estimate.context import DEFAULT_NUM_UNITS, EstimateContext, questions_of
from treadle.tasks.estimate.cost_model import (
    ASSUMPTIONS,
    ROLLOUT_ASSUMPTIONS,
    ExpectedUsage,
    mean_cost,
    pool_cost,
    rollout_cost,
    web_searches,
)
from treadle.tasks.estimate.figures import Estimate, RoleEstimate
from treadle.tasks.estimate.measured import mean_usage

_POOL_ASSUMPTIONS = (
    *ROLLOUT_ASSUMPTIONS,
    f"{ASSUMPTIONS.share_right:.0%} of the parent trajectories are right; all rounds run; an edit is followed by "
    f"{ASSUMPTIONS.turns_after_edit:g} turns; {ASSUMPTIONS.yield_rate:.0%} of operator applications produce a "
    f"trajectory",
    "the judge is asked once about every answer to a math question, though rules decide some of them",
    "a custom operator makes one request and continues from an edit",
)


def estimate_of_trajectories(
    item: Instance, settings: PoolsSettings | RolloutsSettings, context: EstimateContext
) -> Estimate:
    """Return the estimate of an instance of `pools` or `rollouts`."""
    samples = settings.options.samples_per_question if isinstance(settings, RolloutsSettings) else 1
    questions, environments = questions_of(item, settings, context), settings.named_environments()

    def cost(name: str) -> ExpectedUsage:
        if isinstance(settings, PoolsSettings):
            return pool_cost(settings.options, find_environment(environments, name), questions.share_math)
        return rollout_cost(find_environment(environments, name))

    what = "the flywheel" if isinstance(settings, PoolsSettings) else "a rollout"
    mean = mean_usage(item, context.run, mean_cost(questions.shares, cost), what)
    num_units, source = questions.number, questions.source
    if num_units is not None:
        num_units *= samples
        if (reuse := context.preview.reuses.get(str(item.address))) is not None and reuse.num_finished:
            num_units, source = reuse.num_open, f"{source}; {reuse.num_finished:,} are finished"
    factor = num_units if num_units is not None else DEFAULT_NUM_UNITS * samples
    models = _models(settings)
    policy = mean.roles.get("policy", {}).get("calls", 0.0)
    searches = {
        name: round(share * web_searches(find_environment(environments, name), policy) * factor)
        for name, share in questions.shares.items()
    }
    assumptions = _POOL_ASSUMPTIONS if isinstance(settings, PoolsSettings) else ROLLOUT_ASSUMPTIONS
    return Estimate(
        address=str(item.address),
        unit="rollout" if isinstance(settings, RolloutsSettings) else "question",
        num_units=num_units,
        num_units_source=source,
        basis=mean.basis,
        assumptions=[] if mean.measured else list(assumptions),
        roles=[
            RoleEstimate.of_units(role, *models.get(role, ("?", None)), used, factor)
            for role, used in mean.roles.items()
            if used["calls"]
        ],
        num_searches=sum(searches.values()),
        num_pages=sum(num * _pages_per_search(environments[name]) for name, num in searches.items()),
    )


def _pages_per_search(environment: EnvironmentSettings) -> int:
    web = search.web if (search := environment.search_tool) is not None else None
    return web.top_n if web is not None and web.pages else 0


def _models(settings: PoolsSettings | RolloutsSettings) -> dict[str, tuple[str, ModelSettings | None]]:
    """Return the name and the settings (None if unknown) of each role's model, by role."""
    if isinstance(settings, PoolsSettings):
        return {role: (one.name, one.model) for role, one in settings.roles.items()}
    helper = summarizer_of(settings.named_environments()) or "?"
    return {"policy": (settings.model_name, settings.model), "summarizer": (helper, settings.summarizer)}
