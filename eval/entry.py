"""Declare the stage `scores` to flows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from treadle.agent.judges.correctness import Correctness
from treadle.agent.judges.redundancy import redundancy_judge_digest
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address, phase_of
from treadle.core.runs.stage import Stage, StageContext, WorkResult
from treadle.environments.diagnosis.summary import problems_report
from treadle.environments.registry import traits_of
from treadle.eval.config import BestOfOptions, RedundancyOptions, ScoresOptions, ScoresSettings
from treadle.eval.judge_identity import check_judges, choice_digest
from treadle.eval.tables import JUDGEMENTS
from treadle.eval.tables import SCORES as SCORES_TABLE
from treadle.stages.entry import Inputs, NamedModel, StageEntry
from treadle.stages.models import checked_model, checkpoints_of, role_of, tokenizer_folder
from treadle.stages.plan import Plan


def score_models(plan: Plan, address: Address) -> tuple[str, ...]:
    """Return the models that an instance calls, without duplicates: for judging, votes and choices."""
    names = dict.fromkeys(one.name for one in _models(plan.options(address, ScoresOptions)) if one.name is not None)
    for name in names:
        if name not in plan.models:
            raise ConfigError(f"{address} needs {name!r}, which is not under [models]; add [models.{name}]")
    return tuple(names)


def _settings(plan: Plan, address: Address) -> ScoresSettings:
    options, sampled = plan.options(address, ScoresOptions), plan.sampled(address)
    model, tokenizer_digest = checked_model(sampled.name, sampled.model)
    if phase_of(address.qualifier) is not None:
        # In a phase no model judges, so that questions are selected by the same rules that rewards use.
        none = {"judges": Correctness(), "redundancy": RedundancyOptions(), "best_of": BestOfOptions()}
        options = options.model_copy(update=none)
    else:
        score_models(plan, address)
    judges = {judge: role_of(judge, plan.models[judge], options.judges.sampling) for judge in options.judges.models}
    check_judges(judges, options.judges)
    environments = {name: one for name, one in plan.environments().items() if not traits_of(one).has_answers}
    has_answers = len(environments) < len(plan.environments())
    keys = ["scores.judges.models"] if judges and options.judges.NEEDS_ANSWERS else []
    keys += ["scores.redundancy.model"] if options.redundancy.model is not None else []
    if keys and not has_answers:
        kind = next(iter(environments.values())).type
        raise ConfigError(
            f"{address}: judges compare with gold answers, which the tasks of {kind} do not have: the environment "
            f"scores its rollouts itself; leave out {' and '.join(keys)}, or set a "
            'scores.judges.type that needs none, such as "rubric"'
        )
    voter = options.redundancy.model
    redundancy = role_of(voter, plan.models[voter], options.redundancy.sampling) if voter is not None else None
    chooser = options.best_of.model
    best_of = role_of(chooser, plan.models[chooser], options.best_of.sampling) if chooser is not None else None
    digests = (options.judges.digest(),) if judges else ()
    return ScoresSettings(
        tokenizer=tokenizer_folder(model),
        tokenizer_digest=tokenizer_digest,
        options=options,
        judges=judges,
        redundancy=redundancy,
        environments=environments,
        scorers=dict(plan.scorers()),
        judge_digests=(*digests, redundancy_judge_digest()) if redundancy is not None else digests,
        best_of=best_of,
        best_of_digest=choice_digest(best_of),
        seed=plan.seed if judges or redundancy is not None or best_of is not None else 0,
    )


def _inputs(plan: Plan, address: Address) -> Inputs:
    judges = () if phase_of(address.qualifier) is not None else score_models(plan, address)
    return {
        "rollouts": (Address(address.iteration, "rollouts", address.qualifier),),
        "questions": (Address(address.iteration, "questions"),),
        "checkpoint": checkpoints_of(plan, judges),
    }


def _models(options: ScoresOptions) -> Iterator[NamedModel]:
    yield from (NamedModel("judges.models", name) for name in options.judges.models)
    yield NamedModel("redundancy.model", options.redundancy.model)
    yield NamedModel("best_of.model", options.best_of.model)


def _run(context: StageContext) -> Mapping[str, Any]:
    from treadle.eval.scores import run_scores

    return run_scores(context)


def _work(context: StageContext) -> WorkResult:
    from treadle.eval.judging import work

    return work(context)


SCORES_STAGE = Stage(
    name="scores",
    version=7,
    settings=ScoresSettings,
    consumes={"rollouts": "rollouts", "questions": "questions", "checkpoint": "checkpoint"},
    optional=frozenset({"checkpoint"}),
    produces=(SCORES_TABLE, JUDGEMENTS),
    run=_run,
    work=_work,
    keeps_journal=True,
    is_complete=lambda metrics: not metrics.get("num_judgements_missing"),
)
SCORES = StageEntry(
    stage=SCORES_STAGE,
    table=ScoresOptions,
    settings=_settings,
    inputs=_inputs,
    qualifiers=("model", "phase"),
    models=_models,
    report=problems_report,
    description="Score rollouts; set the instance, such as 1/scores@base or 1/scores@phase-2.",
)
