"""Define the stage catalogue: all stages, how their settings follow from the configuration, and how inputs are bound.

The command line, the Prefect flows and the generated reference all read this list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from treadle.agent.judges.answer import answer_judge_digest
from treadle.agent.judges.correctness import Correctness
from treadle.agent.judges.redundancy import redundancy_judge_digest
from treadle.agent.judges.rules import DEFAULT_SYMBOLIC
from treadle.agent.role_settings import RoleSettings
from treadle.core.config import Section, semantic_dump
from treadle.core.engines.base_model import folder_digest
from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings, Sampling
from treadle.core.runs.address import Address
from treadle.core.runs.stage import Instance, Stage
from treadle.datagen.operators import operator_versions
from treadle.datagen.pools.settings import PoolsSettings
from treadle.datagen.prompts import PromptSet
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.datagen.sft_rows.settings import SftRowsSettings
from treadle.environments.registry import traits_of
from treadle.environments.rollouts.settings import RolloutOptions, RolloutsSettings
from treadle.eval.config import RedundancyOptions, ScoresSettings
from treadle.eval.judge_queue import check_judges
from treadle.retriever.config import IndexSettings
from treadle.rl.curriculum import phase_name, phase_of
from treadle.sft.config import SftSettings
from treadle.stages.registry import all_stages
from treadle.tasks.config import TreadleConfig, environment_of, overridden, table_of
from treadle.tasks.planning.environment_checks import check_pools, check_scorers
from treadle.tasks.planning.iterations import at_iteration, pool_checkpoints, pool_roles
from treadle.tasks.planning.models import (
    check_named_checkpoint,
    checked_model,
    checkpoints_of,
    flow_models,
    named_checkpoint,
    score_models,
    served_tokenizer,
    tokenizer_folder,
)
from treadle.tasks.planning.phases import (
    flow_phases,
    phase_at,
    phase_model,
    phase_policy,
    rl_inputs,
    rl_settings,
    sampling_model,
    selection_inputs,
    selection_settings,
)
from treadle.tasks.planning.row_sources import rolled_out_policy, rollout_model, row_inputs, row_policy, row_source
from treadle.tasks.summaries.report_settings import report_settings

STAGES: Mapping[str, Stage] = all_stages()
"""All stages by name. All but `index` are part of the flow; `index` is run by itself to build an index in advance."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How instances of one stage are built from the configuration."""

    settings: Callable[[TreadleConfig, Address], Section]
    """Settings from the configuration as seen by the instance's iteration."""
    inputs: Callable[[TreadleConfig, Address], Mapping[str, tuple[Address, ...]]]
    by_model: bool = False
    """True for one instance per model."""
    by_phase: bool = False
    """True for one instance per curriculum phase."""


def flow_instances(config: TreadleConfig) -> list[Instance]:
    """Return all instances of the flow in an order in which they can run.

    Raises ConfigError for invalid settings, for unknown addresses in `overrides` and for a cycle (an instance that
    depends on its own output), and DataError for a missing file.
    """
    addresses = flow_addresses(config)
    known = {str(address) for address in addresses}
    for text in config.overrides:
        if text not in known:
            raise ConfigError(f"overrides names {text!r}, which is not in this flow: {', '.join(sorted(known))}")
    made = [instance(config, address) for address in addresses]
    _refuse_cycles(made)
    return made


def _refuse_cycles(instances: Sequence[Instance]) -> None:
    reads = {item.address: {one for bound in item.inputs.values() for one in bound} for item in instances}
    for item in instances:
        visited: set[Address] = set()
        queue = [item.address]
        while queue:
            for producer in reads.get(queue.pop(), ()):
                if producer == item.address:
                    models = ", ".join(map(str, item.inputs.get("checkpoint", ()))) or "another"
                    raise ConfigError(
                        f"{item.address} depends on its own output (its checkpoint is {models}); "
                        "use a model that exists before it"
                    )
                if producer not in visited:
                    visited.add(producer)
                    queue.append(producer)


def flow_addresses(config: TreadleConfig) -> list[Address]:
    """Return the addresses of the flow's instances, producers first."""
    addresses = []
    wanted = config.flow.stages
    for iteration in range(1, config.flow.iterations + 1):
        addresses.append(Address(iteration, "questions"))
        by_model = [stage for stage in ("rollouts", "scores") if stage in wanted]
        policy = rolled_out_policy(config, iteration)
        addresses += [Address(iteration, stage, policy) for stage in by_model if policy is not None]
        addresses += [Address(iteration, stage) for stage in ("pools", "sft_rows", "sft") if stage in wanted]
        addresses += flow_phases(config, iteration)
        others = [model for model in flow_models(config) if model != policy]
        addresses += [Address(iteration, stage, model) for model in others for stage in by_model]
        addresses += [Address(iteration, "report")] if "report" in wanted else []
    return addresses


def instance(config: TreadleConfig, address: Address) -> Instance:
    """Return the instance at an address; its input files are read for their digests.

    Raises ConfigError if it cannot exist in this configuration, DataError for a missing file.
    """
    if address.stage not in STAGES:
        raise ConfigError(f"there is no stage {address.stage!r}; the stages are {', '.join(STAGES)}")
    if address.iteration > (last := config.flow.iterations):
        has = f"{last} iterations" if last > 1 else "1 iteration"
        raise ConfigError(f"{address}: the flow has {has}; write {replace(address, iteration=last)}")
    recipe, seen = _RECIPES[address.stage], at_iteration(config, address.iteration)
    _check_qualifier(seen, address, recipe)
    return Instance(
        address=address,
        stage=STAGES[address.stage],
        settings=recipe.settings(seen, address),
        inputs=recipe.inputs(seen, address),
    )


def _check_qualifier(config: TreadleConfig, address: Address, recipe: _Recipe) -> None:
    """Raise ConfigError if the address lacks a model or phase, or has an unknown or superfluous one."""
    if recipe.by_phase and phase_at(config, address) is not None:
        return
    stem = f"{address.iteration}/{address.stage}"
    if recipe.by_model and address.qualifier not in config.models:
        example = next(iter(config.models), "base")
        raise ConfigError(f"{address} names no model of this configuration; write it as {stem}@{example}")
    if recipe.by_phase and not recipe.by_model:
        raise ConfigError(f"{address} names no phase of the curriculum; write it as {stem}@{phase_name(1)}")
    if not recipe.by_model and address.qualifier is not None:
        raise ConfigError(f"{address}: there is one {address.stage} per iteration, so it takes no @{address.qualifier}")


def semantic_of(config: TreadleConfig) -> dict[str, Any]:
    """Return the configuration without operational keys, also inside `overrides`; a run is locked to it.

    The models of the flow are always listed, even if the configuration leaves them to be derived.
    """
    semantic: dict[str, Any] = semantic_dump(config)
    if config.models:
        semantic["flow"]["models"] = list(flow_models(config))
    for text in config.overrides:
        address = Address.parse(text)
        semantic["overrides"][text] = semantic_dump(overridden(config, address, table_of(config, address)))
    return semantic


def _questions(config: TreadleConfig, address: Address) -> QuestionsSettings:
    options = overridden(config, address, config.questions)
    environment = environment_of(config)
    traits = traits_of(environment)
    asked = options.for_environment(
        environment.type,
        needs_answers=traits.has_answers,
        tasks_digest=environment.digest() if traits.brings_tasks else "",
        seed=config.seed,
        environment=environment,
    )
    return asked.with_digests()


def _rollouts(config: TreadleConfig, address: Address) -> RolloutsSettings:
    name = address.qualifier or ""
    if phase_of(name) is not None:
        options: RolloutOptions = config.curriculum.rollouts
        model, tokenizer_digest = checked_model(sampling_model(config), phase_model(config, address))
    else:
        options = config.rollouts
        model, tokenizer_digest = checked_model(name, rollout_model(config, address)[0])
    helper = config.environment.summarizer
    summarizer, summarizer_digest = checked_model(helper, config.models[helper]) if helper else (None, "")
    return RolloutsSettings(
        model_name=name,
        model=model,
        tokenizer_digest=tokenizer_digest,
        environment=environment_of(config),
        summarizer=summarizer,
        summarizer_tokenizer_digest=summarizer_digest,
        roles=environment_roles(config),
        options=overridden(config, address, options),
        seed=config.seed,
    )


def environment_roles(config: TreadleConfig) -> dict[str, RoleSettings]:
    """Return the models that the environment asks, by role."""
    asked = config.environment.role_models
    return {role: _role(one.model, config.models[one.model], one.sampling) for role, one in asked.items()}


def _rollouts_inputs(config: TreadleConfig, address: Address) -> Mapping[str, tuple[Address, ...]]:
    name = address.qualifier
    helpers = (config.environment.summarizer, *(role.model for role in config.environment.role_models.values()))
    if phase_of(name) is None:
        own = rollout_model(config, address)[1]
        checkpoints = (*own, *checkpoints_of(config, helpers if own else (name, *helpers)))
    else:
        checkpoints = (*phase_policy(config, address), *checkpoints_of(config, helpers))
    return {
        "questions": (Address(address.iteration, "questions"),),
        "checkpoint": tuple(dict.fromkeys(checkpoints)),
    }


def _pools(config: TreadleConfig, address: Address) -> PoolsSettings:
    options = overridden(config, address, config.pools)
    check_pools(address, config.environment, options.operators)
    samplings: dict[str, Sampling] = {}
    if (sampling := config.environment.summarizer_sampling) is not None:
        samplings["summarizer"] = sampling
    roles = {}
    for role, (name, model) in pool_roles(config, address.iteration).items():
        roles[role] = _role(name, model, samplings.get(role) or getattr(options.roles, role).sampling)
    return PoolsSettings(
        roles=roles,
        environment=environment_of(config),
        options=options,
        prompt_digests=PromptSet(options.prompts).digests(),
        operator_versions=operator_versions(options.operators),
        judge_digest=answer_judge_digest(DEFAULT_SYMBOLIC, options.f1_threshold, asks_model=options.judge_math),
        seed=config.seed,
    )


def _sft_rows(config: TreadleConfig, address: Address) -> SftRowsSettings:
    name = row_policy(config, address.iteration)
    model, tokenizer_digest = checked_model(name, config.models[name])
    options = overridden(config, address, config.sft_rows)
    return SftRowsSettings(
        environment=environment_of(config),
        tokenizer=tokenizer_folder(model) or served_tokenizer(model),
        tokenizer_digest=tokenizer_digest,
        options=options.model_copy(update={"trajectories": row_source(config, address)}),
        seed=config.seed,
    )


def _sft(config: TreadleConfig, address: Address) -> SftSettings:
    options = overridden(config, address, config.sft)
    return SftSettings(options=options, model_digest=folder_digest(options.model), seed=config.seed)


def _sft_inputs(config: TreadleConfig, address: Address) -> Mapping[str, tuple[Address, ...]]:
    model = overridden(config, address, config.sft).model
    checkpoint = named_checkpoint(model)
    if any((made.stage, made.iteration) == (address.stage, address.iteration) for made in checkpoint):
        raise ConfigError(
            f"{address}: sft.model = {model} is the output of this stage; use `embedded`, a folder, a hub id, or "
            "a phase of the curriculum such as 1/rl@phase-1"
        )
    for made in checkpoint:
        check_named_checkpoint(config, made, f"{address}: sft.model")
    return {"sft_rows": (Address(address.iteration, "sft_rows"),), "checkpoint": checkpoint}


def _index(config: TreadleConfig, address: Address) -> IndexSettings:
    search = config.environment.search_tool
    if search is None or search.service is not None or not search.uses_local:
        at_services = search is not None and search.service is not None
        searches = {"at services": at_services, "the web": config.environment.searches_web}
        where = " and ".join(name for name, is_searched in searches.items() if is_searched) or "nowhere"
        raise ConfigError(f"{address}: this run searches {where}, so it has no index of its own")
    return IndexSettings(**{name: getattr(search, name) for name in IndexSettings.model_fields}).with_digests()


def _scores(config: TreadleConfig, address: Address) -> ScoresSettings:
    name = address.qualifier or ""
    options = overridden(config, address, config.scores)
    if phase_of(name) is not None:
        # No model judges: questions are selected by the same rules that rewards use.
        model, tokenizer_digest = checked_model(sampling_model(config), phase_model(config, address))
        options = options.model_copy(update={"judges": Correctness(), "redundancy": RedundancyOptions()})
    else:
        model, tokenizer_digest = checked_model(name, config.models[name])
        score_models(config, address)
    judges = {judge: _role(judge, config.models[judge], options.judges.sampling) for judge in options.judges.models}
    check_judges(judges)
    environment = config.environment
    check_scorers(address, environment, config.questions)
    has_answers = traits_of(environment).has_answers
    keys = ["scores.judges.models"] if judges and options.judges.NEEDS_ANSWERS else []
    keys += ["scores.redundancy.model"] if options.redundancy.model is not None else []
    if keys and not has_answers:
        raise ConfigError(
            f"{address}: judges compare with gold answers, which the tasks of {environment.type} do not have: the "
            f"environment scores its rollouts itself; leave out {' and '.join(keys)}, or set a "
            'scores.judges.type that needs none, such as "rubric"'
        )
    voter = options.redundancy.model
    redundancy = _role(voter, config.models[voter], options.redundancy.sampling) if voter is not None else None
    digests = (options.judges.digest(),) if judges else ()
    return ScoresSettings(
        tokenizer=tokenizer_folder(model),
        tokenizer_digest=tokenizer_digest,
        options=options,
        judges=judges,
        redundancy=redundancy,
        environment=None if has_answers else environment,
        judge_digests=(*digests, redundancy_judge_digest()) if redundancy is not None else digests,
        seed=config.seed if judges or redundancy is not None else 0,
    )


def _role(name: str, model: ModelSettings, sampling: Sampling) -> RoleSettings:
    model, tokenizer_digest = checked_model(name, model)
    return RoleSettings(name=name, model=model, tokenizer_digest=tokenizer_digest, sampling=sampling)


def _scores_inputs(config: TreadleConfig, address: Address) -> Mapping[str, tuple[Address, ...]]:
    judges = () if phase_of(address.qualifier) is not None else score_models(config, address)
    return {
        "rollouts": (Address(address.iteration, "rollouts", address.qualifier),),
        "questions": (Address(address.iteration, "questions"),),
        "checkpoint": checkpoints_of(config, judges),
    }


def _report_inputs(config: TreadleConfig, address: Address) -> Mapping[str, tuple[Address, ...]]:
    iterations = range(1, address.iteration + 1)
    return {"scores": tuple(Address(number, "scores", model) for number in iterations for model in flow_models(config))}


_RECIPES: Mapping[str, _Recipe] = {
    "questions": _Recipe(
        settings=_questions,
        inputs=lambda config, address: {},
    ),
    "index": _Recipe(settings=_index, inputs=lambda config, address: {}),
    "pools": _Recipe(
        settings=_pools,
        inputs=lambda config, address: {
            "questions": (Address(address.iteration, "questions"),),
            "checkpoint": pool_checkpoints(config, address.iteration),
        },
    ),
    "sft_rows": _Recipe(settings=_sft_rows, inputs=row_inputs),
    "sft": _Recipe(settings=_sft, inputs=_sft_inputs),
    "rollouts": _Recipe(settings=_rollouts, inputs=_rollouts_inputs, by_model=True, by_phase=True),
    "scores": _Recipe(
        settings=_scores,
        inputs=_scores_inputs,
        by_model=True,
        by_phase=True,
    ),
    "selection": _Recipe(settings=selection_settings, inputs=selection_inputs, by_phase=True),
    "rl": _Recipe(settings=rl_settings, inputs=rl_inputs, by_phase=True),
    "report": _Recipe(
        settings=report_settings,
        inputs=_report_inputs,
    ),
}
