"""Estimate what the judges of `scores` will use."""

from __future__ import annotations

from treadle.agent.judges.correctness import Correctness
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.environments.mixture import find_environment
from treadle.environments.rollouts.settings import RolloutsSettings
from treadle.eval.config import RedundancyOptions, ScoresSettings
from treadle.tasks.estimate.context import DEFAULT_NUM_UNITS, EstimateContext, QuestionCount, questions_of
from treadle.tasks.estimate.cost_model import (
    ASSUMPTIONS,
    ExpectedUsage,
    mean_cost,
    scores_cost,
)
from treadle.tasks.estimate.figures import Estimate, RoleEstimate
from treadle.tasks.estimate.measured import mean_usage


def estimate_of_judges(item: Instance, settings: ScoresSettings, context: EstimateContext) -> Estimate:
    """Return the estimate for the judges of one model's rollouts."""
    (producer,) = item.inputs["rollouts"]
    rollouts = next(one for one in context.instances if one.address == producer)
    made = rollouts.settings
    assert isinstance(made, RolloutsSettings)
    questions = questions_of(rollouts, made, context)
    num_rollouts = None if questions.number is None else questions.number * made.options.samples_per_question
    num_units_source = questions.source
    if (record := context.kept_record(producer)) is not None:
        num_rollouts = record.outputs["rollouts"].num_rows
        num_units_source = f"{num_rollouts:,} rollouts in {producer}"
    modelled = _modelled(settings, made, questions)
    mean = mean_usage(item, context.run, modelled, "a judgement")
    models = {f"{settings.options.judges.kind}:{name}": role for name, role in settings.judges.items()}
    if settings.redundancy is not None:
        models[f"redundancy:{settings.redundancy.name}"] = settings.redundancy
    if settings.best_of is not None:
        models[f"best_of:{settings.best_of.name}"] = settings.best_of
    factor = num_rollouts if num_rollouts is not None else DEFAULT_NUM_UNITS * made.options.samples_per_question
    # Scores of another model or with other settings may not have used all of these roles.
    missing_roles = {name: used for name, used in modelled.roles.items() if name in models and name not in mean.roles}
    used = {**mean.roles, **missing_roles}
    assumptions = _judge_assumptions(settings) if missing_roles or not mean.measured else []
    if missing_roles:
        assumptions.insert(0, f"estimated by the cost model, as not measured there: {', '.join(missing_roles)}")
    if context.run is not None and (known := _judged_before(item, context.run)):
        assumptions.append(f"{known:,} judgements exist already and are not requested again")
    return Estimate(
        address=str(item.address),
        unit="rollout",
        num_units=num_rollouts,
        num_units_source=num_units_source,
        basis=mean.basis,
        assumptions=assumptions,
        roles=[
            RoleEstimate.of_units(name, role.name, role.model, used[name], factor)
            for name, role in models.items()
            if name in used
        ],
    )


def _modelled(settings: ScoresSettings, made: RolloutsSettings, questions: QuestionCount) -> ExpectedUsage:
    """Return the expected usage of one rollout.

    Tasks without gold answers are skipped by votes, and by judges that need gold answers.
    """
    environments, options = made.named_environments(), settings.options

    def cost(name: str) -> ExpectedUsage:
        scored = options
        if name in settings.environments:
            none = {} if not options.judges.NEEDS_ANSWERS else {"judges": Correctness()}
            scored = options.model_copy(update={"redundancy": RedundancyOptions(), **none})
        return scores_cost(
            scored, find_environment(environments, name), questions.share_math, made.options.samples_per_question
        )

    return mean_cost(questions.shares, cost)


def _judge_assumptions(settings: ScoresSettings) -> list[str]:
    lines = []
    if settings.judges and settings.options.judges.NEEDS_ANSWERS:
        lines.append(f"rules accept {ASSUMPTIONS.share_right:.0%} of the answers, and all answers differ")
    if settings.redundancy is not None:
        lines.append("every rollout with tools calls one, and all trajectories differ")
    return lines


def _judged_before(item: Instance, run: Run) -> int:
    """Return the number of judgements in the journal of the last attempt, regardless of settings."""
    attempts = run.attempts(item.address)
    return run.shards(item.address, attempts[-1].journal_name).count_finished() if attempts else 0
