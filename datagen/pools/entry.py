"""Declare the stage `pools` to flows, and list the models that play its roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from treadle.agent.judges.answer import answer_judge_digest
from treadle.agent.judges.rules import DEFAULT_SYMBOLIC
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.runs.address import Address
from treadle.datagen.operators import edits, load_operators, needs_prefill, operator_versions
from treadle.datagen.pools.settings import PoolOptions, PoolsSettings
from treadle.datagen.pools.stage import POOLS_STAGE
from treadle.datagen.pools.summary import pools_report
from treadle.datagen.prompts import PromptSet
from treadle.environments.mixture import Environments, summarizer_of, summarizer_sampling_of
from treadle.environments.registry import episode_name, traits_of
from treadle.stages.entry import Inputs, NamedModel, StageEntry
from treadle.stages.models import checkpoints_of, role_of, with_weights
from treadle.stages.plan import Plan


def pool_models(plan: Plan, address: Address) -> dict[str, str]:
    """Return the name of each role's model in an instance of `pools`, by role.

    Raises ConfigError if no model is configured, and if an override names an unknown one.
    """
    roles = plan.options(address, PoolOptions).roles
    policy = roles.policy.model or plan.compared_models()[0]
    critic = roles.critic.model or policy
    named = {
        "policy": policy,
        "critic": critic,
        "refiner": roles.refiner.model or policy,
        "judge": roles.judge.model or critic,
    }
    for role, name in named.items():
        if name not in plan.models:
            raise ConfigError(
                f'overrides."{address}".roles.{role}.model names {name!r}, which is not under [models]; '
                f"add [models.{name}]"
            )
    helper = summarizer_of(plan.environments())
    return {**named, "summarizer": helper} if helper else named


def pool_roles(plan: Plan, address: Address) -> dict[str, tuple[str, ModelSettings]]:
    """Return the name and the settings of each role's model in an instance of `pools`, by role.

    The policy and the roles that default to its model use the weights that the iteration starts from, unless an
    override of this instance names the policy's model.
    """
    policy = plan.starting_policy(address.iteration)
    along = _roles_with_starting_policy(plan, address) if policy is not None else ()
    return {
        role: (name, with_weights(plan.models[name], str(policy)) if role in along else plan.models[name])
        for role, name in pool_models(plan, address).items()
    }


def _roles_with_starting_policy(plan: Plan, address: Address) -> set[str]:
    """Return the roles that use the iteration's starting policy: the policy and roles that default to it.

    The result is empty if an override of this instance names the policy's model.
    """
    if "model" in plan.overrides(address).get("roles", {}).get("policy", {}):
        return set()
    roles = plan.options(address, PoolOptions).roles
    along = {"policy", *(role for role in ("critic", "refiner") if getattr(roles, role).model is None)}
    return along | {"judge"} if roles.judge.model is None and "critic" in along else along


def _settings(plan: Plan, address: Address) -> PoolsSettings:
    options = plan.options(address, PoolOptions)
    named = pool_roles(plan, address)
    _check(address, plan.environments(), options.operators, named)
    _check_prefills(address, options.operators, named)
    samplings: dict[str, Sampling] = {}
    if (sampling := summarizer_sampling_of(plan.environments())) is not None:
        samplings["summarizer"] = sampling
    roles = {}
    for role, (name, model) in named.items():
        roles[role] = role_of(name, model, samplings.get(role) or getattr(options.roles, role).sampling)
    return PoolsSettings(
        roles=roles,
        **plan.mixture(),
        options=options,
        prompt_digests=PromptSet(options.prompts).digests(),
        operator_versions=operator_versions(options.operators),
        judge_digest=answer_judge_digest(DEFAULT_SYMBOLIC, options.f1_threshold, asks_model=options.judge_math),
        seed=plan.seed,
    )


def _check(
    address: Address,
    environments: Environments,
    operators: Sequence[str],
    roles: Mapping[str, tuple[str, ModelSettings]],
) -> None:
    """Raise ConfigError if trajectories of an environment cannot be judged by gold answers or edited by operators."""
    editing = ", ".join([one.name for one in load_operators(operators) if edits(one)])
    policy, model = roles["policy"]
    for environment in environments.values():
        traits = traits_of(environment)
        if not traits.has_answers:
            raise ConfigError(
                f"{address}: pools judges answers, but the tasks of {environment.type} have no gold answers; leave "
                "pools out of flow.stages: sft_rows is made from rollouts and scores"
            )
        if editing and environment.context.rule is not None:
            raise ConfigError(
                f"{address}: {editing} continue trajectories of one context, but environment.context.manager = "
                f'"{environment.context.manager}" makes several; use "linear", or pools.operators = '
                '["rerollout"]'
            )
        if not editing or traits.forks or (traits.forks_messages and not model.continues_text):
            continue
        if traits.forks_messages:
            raise ConfigError(
                f"{address}: {editing} edit native calls as messages, but models.{policy} is asked with prompts; set "
                'its api = "chat", or environment.dialect = "tags" if search and python suffice, or pools.operators = '
                '["rerollout"]'
            )
        raise ConfigError(
            f"{address}: {episode_name(environment, keeps_state=True)} cannot be continued from a prefix, which "
            f"{editing} need; "
            'set pools.operators = ["rerollout"]'
        )


def _check_prefills(address: Address, operators: Sequence[str], roles: Mapping[str, tuple[str, ModelSettings]]) -> None:
    """Raise ConfigError if an operator needs a model to continue a begun text, and that model's service cannot."""
    for operator in load_operators(operators):
        for role in needs_prefill(operator):
            name, model = roles[role]
            if not model.continues_text:
                raise ConfigError(
                    f"{address}: the operator {operator.name} begins replies of the {role}, which models.{name} "
                    f'(api = "chat") cannot continue; leave it out of pools.operators, or set pools.roles.{role}.model '
                    "to a model whose server completes prompts, such as vLLM"
                )


def _inputs(plan: Plan, address: Address) -> Inputs:
    policy, names = plan.starting_policy(address.iteration), pool_models(plan, address)
    along = _roles_with_starting_policy(plan, address) if policy is not None else set()
    others = checkpoints_of(plan, (name for role, name in names.items() if role not in along))
    return {
        "questions": (Address(address.iteration, "questions"),),
        "checkpoint": tuple(dict.fromkeys((policy, *others) if policy is not None and along else others)),
    }


def _models(options: PoolOptions) -> Iterator[NamedModel]:
    for role in ("policy", "critic", "refiner", "judge"):
        name = getattr(options.roles, role).model
        yield NamedModel(f"roles.{role}.model", name, is_helper=name != options.roles.policy.model)


POOLS = StageEntry(
    stage=POOLS_STAGE,
    table=PoolOptions,
    settings=_settings,
    inputs=_inputs,
    models=_models,
    report=pools_report,
    description="Make pools of trajectories from the training questions, repaired and condensed over rounds.",
    on_gpu=True,
)
