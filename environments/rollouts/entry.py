"""Declare the stage `rollouts` to flows."""

from __future__ import annotations

from typing import Any

from treadle.agent.role_settings import RoleSettings
from treadle.core.runs.address import Address
from treadle.environments.mixture import role_models_of, summarizer_of
from treadle.environments.rollouts.settings import RolloutOptions, RolloutsSettings
from treadle.environments.rollouts.stage import ROLLOUTS_STAGE
from treadle.environments.rollouts.summary import rollouts_report
from treadle.stages.entry import Inputs, StageEntry
from treadle.stages.models import checked_model, checkpoints_of, role_of
from treadle.stages.plan import Plan, SampledModel


def _settings(plan: Plan, address: Address) -> RolloutsSettings:
    return RolloutsSettings(
        model_name=address.qualifier or "",
        **rollout_fields(plan, plan.sampled(address)),
        options=plan.options(address, RolloutOptions),
    )


def rollout_fields(plan: Plan, sampled: SampledModel) -> dict[str, Any]:
    """Return the fields of `RolloutsSettings` for rollouts of a model, without `model_name` and `options`."""
    model, tokenizer_digest = checked_model(sampled.name, sampled.model)
    helper = summarizer_of(plan.environments())
    summarizer, summarizer_digest = checked_model(helper, plan.models[helper]) if helper else (None, "")
    return {
        "model": model,
        "tokenizer_digest": tokenizer_digest,
        **plan.mixture(),
        "summarizer": summarizer,
        "summarizer_tokenizer_digest": summarizer_digest,
        "roles": environment_roles(plan),
        "seed": plan.seed,
    }


def environment_roles(plan: Plan) -> dict[str, RoleSettings]:
    """Return role -> settings of the model that episodes ask in this role."""
    asked = role_models_of(plan.environments())
    return {role: role_of(one.model, plan.models[one.model], one.sampling) for role, one in asked.items()}


def _inputs(plan: Plan, address: Address) -> Inputs:
    sampled = plan.sampled(address)
    own = sampled.checkpoints or checkpoints_of(plan, (address.qualifier,) if address.qualifier in plan.models else ())
    return {
        "questions": (Address(address.iteration, "questions"),),
        "checkpoint": tuple(dict.fromkeys((*own, *helper_checkpoints(plan)))),
    }


def helper_checkpoints(plan: Plan) -> tuple[Address, ...]:
    """Return the stage instances whose checkpoints are loaded by models that episodes ask."""
    environments = plan.environments()
    helpers = (summarizer_of(environments), *(role.model for role in role_models_of(environments).values()))
    return checkpoints_of(plan, helpers)


ROLLOUTS = StageEntry(
    stage=ROLLOUTS_STAGE,
    table=RolloutOptions,
    settings=_settings,
    inputs=_inputs,
    qualifiers=("model", "phase"),
    report=rollouts_report,
    description="Sample rollouts over the questions; set the instance, such as 1/rollouts@base or 1/rollouts@phase-2.",
    on_gpu=True,
)
