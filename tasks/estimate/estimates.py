"""Estimate what instances that call models will use: `pools`, `rollouts`, judges of `scores`, phases of `rl`."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.core.figures import money
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.execute import planned_action
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.pools.settings import PoolsSettings
from treadle.environments.rollouts.settings import RolloutsSettings
from treadle.eval.config import ScoresSettings
from treadle.rl.config import RlSettings
from treadle.rl.training.launch import RlFolder, saved_step
from treadle.tasks.estimate.context import DEFAULT_NUM_UNITS, EstimateContext, questions_of, training_rows
from treadle.tasks.estimate.cost_model import (
    ASSUMPTIONS,
    ExpectedUsage,
    PhaseSize,
    phase_size,
    pool_cost,
    rollout_cost,
    scores_cost,
    web_searches,
)
from treadle.tasks.estimate.figures import Estimate, RoleEstimate
from treadle.tasks.estimate.measured import MeanUsage, measured
from treadle.tasks.estimate.preview import EMPTY_PREVIEW, Preview
from treadle.tasks.estimate.reuse import Reuse, reuse_of
from treadle.tasks.planning.plan import why_not_reused

_TRAINING = ("sft", "rl")

_ROLLOUT_ASSUMPTIONS = (
    f"a rollout has {ASSUMPTIONS.turns:g} turns of {ASSUMPTIONS.sampled_per_turn} sampled tokens; tool results have "
    "the maximum length, program outputs a quarter of it",
    "every turn sends the whole prefix: prefix caches of servers are ignored",
)
_POOL_ASSUMPTIONS = (
    *_ROLLOUT_ASSUMPTIONS,
    f"{ASSUMPTIONS.share_right:.0%} of the parent trajectories are right; all rounds run; an edit is followed by "
    f"{ASSUMPTIONS.turns_after_edit:g} turns; {ASSUMPTIONS.yield_rate:.0%} of operator applications produce a "
    f"trajectory",
    "the judge is asked once about every answer to a math question, though rules decide some of them",
    "a custom operator makes one request and continues from an edit",
)


def estimates(
    instances: Sequence[Instance],
    run: Run | None,
    to_run: Sequence[str],
    *,
    force: bool,
    preview: Preview = EMPTY_PREVIEW,
) -> list[Estimate]:
    """Return estimates of the instances that would run and call models; `run`: None if it does not exist yet."""
    context = EstimateContext(instances, run, frozenset(to_run), force, preview)
    wanted = [item for item in instances if str(item.address) in context.to_run]
    return [found for item in wanted if (found := _estimate(item, context)) is not None]


def _estimate(item: Instance, context: EstimateContext) -> Estimate | None:
    settings = item.settings
    if isinstance(settings, PoolsSettings | RolloutsSettings):
        return _estimate_of_trajectories(item, settings, context)
    if isinstance(settings, RlSettings):
        return _estimate_of_phase(item, settings, context)
    if isinstance(settings, ScoresSettings) and (settings.judges or settings.redundancy):
        return _estimate_of_judges(item, settings, context)
    return None


def _mean_usage(item: Instance, context: EstimateContext, modelled: ExpectedUsage, what: str) -> MeanUsage:
    """Return the measured usage of a unit, else that of the cost model of `what`."""
    basis = f"nothing measured yet: the cost model of {what}"
    return measured(item, context.run) or MeanUsage(modelled.roles, basis, measured=False)


def _estimate_of_trajectories(
    item: Instance, settings: PoolsSettings | RolloutsSettings, context: EstimateContext
) -> Estimate:
    """Return the estimate of an instance of `pools` or `rollouts`."""
    samples = settings.options.samples_per_question if isinstance(settings, RolloutsSettings) else 1
    questions = questions_of(item, settings, context)
    if isinstance(settings, PoolsSettings):
        modelled = pool_cost(settings.options, settings.environment, questions.share_math)
        mean = _mean_usage(item, context, modelled, "the flywheel")
    else:
        mean = _mean_usage(item, context, rollout_cost(settings.environment), "a rollout")
    num_units, source = questions.number, questions.source
    if num_units is not None:
        num_units *= samples
        if (reuse := context.preview.reuses.get(str(item.address))) is not None and reuse.num_finished:
            num_units, source = reuse.num_open, f"{source}; {reuse.num_finished:,} are finished"
    factor = num_units if num_units is not None else DEFAULT_NUM_UNITS * samples
    models = _models(settings)
    policy = mean.roles.get("policy", {}).get("calls", 0.0)
    num_searches, search = round(web_searches(settings.environment, policy) * factor), settings.environment.search_tool
    web = search.web if search is not None else None
    assumptions = _POOL_ASSUMPTIONS if isinstance(settings, PoolsSettings) else _ROLLOUT_ASSUMPTIONS
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
        num_searches=num_searches,
        num_pages=num_searches * web.top_n if web is not None and web.pages else 0,
    )


def _models(settings: PoolsSettings | RolloutsSettings) -> dict[str, tuple[str, ModelSettings | None]]:
    """Return role -> name and settings of its model."""
    if isinstance(settings, PoolsSettings):
        return {role: (one.name, one.model) for role, one in settings.roles.items()}
    helper = settings.environment.summarizer or "?"
    return {"policy": (settings.model_name, settings.model), "summarizer": (helper, settings.summarizer)}


def _estimate_of_phase(item: Instance, settings: RlSettings, context: EstimateContext) -> Estimate:
    """Return the estimate for the rollouts of a training phase."""
    num_rows, num_units_source = training_rows(item, context)
    done = _steps_done(item, context)
    if done:
        num_units_source += f"; {done:,} steps are done"
    size = phase_size(settings.options, num_rows, done)
    mean = _mean_usage(item, context, rollout_cost(settings.environment), "a rollout")
    counts = {"training": size.num_rollouts, "validation": size.num_validation_rollouts}
    return Estimate(
        address=str(item.address),
        unit="rollout",
        num_units=size.num_rollouts + size.num_validation_rollouts,
        num_units_source=num_units_source,
        basis=mean.basis,
        assumptions=[*_size_lines(settings, size), *(() if mean.measured else _ROLLOUT_ASSUMPTIONS)],
        roles=[
            RoleEstimate.of_units(what, settings.options.start, None, mean.roles["policy"], count)
            for what, count in counts.items()
            if count
        ],
    )


def _steps_done(item: Instance, context: EstimateContext) -> int:
    """Return the number of saved steps of the last attempt, if this one would resume from them."""
    run, fingerprint = context.run, context.resumed_fingerprint(item)
    if run is None or not fingerprint:
        return 0
    return saved_step(RlFolder(run.storage.directory(run.workspace_key(item.address, fingerprint))))


def _size_lines(settings: RlSettings, size: PhaseSize) -> list[str]:
    options = settings.options
    lines = [
        f"{size.num_steps:,} steps of {options.prompts_per_step:,} questions with {options.group_size} rollouts each"
    ]
    if size.num_validation_rollouts:
        lines.append(f"{options.validation_questions:,} held-out questions every {options.validation_steps:,} steps")
    return lines


def _estimate_of_judges(item: Instance, settings: ScoresSettings, context: EstimateContext) -> Estimate:
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
    modelled = scores_cost(settings.options, made.environment, questions.share_math)
    mean = _mean_usage(item, context, modelled, "a judgement")
    models = {f"{settings.options.judges.kind}:{name}": role for name, role in settings.judges.items()}
    if settings.redundancy is not None:
        models[f"redundancy:{settings.redundancy.name}"] = settings.redundancy
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


def rerun_note(item: Instance, run: Run, *, force: bool) -> str | None:
    """Return one line about the paid work that is repeated for an instance with a result; None if there is none."""
    is_paid = item.stage.jobs is not None or item.stage.name in _TRAINING
    if not is_paid or run.record(item.address) is None or not (force or planned_action(item, run) == "run"):
        return None
    if item.stage.jobs is None:
        return f"{item.address} trains again: {'--force' if force else why_not_reused(item, run)}"
    reuse = reuse_of(item, run, force=force)
    return None if reuse is None else f"{item.address}: {reuse.text()}{_cost_of_open(item, run, reuse, force=force)}"


def _cost_of_open(item: Instance, run: Run, reuse: Reuse, *, force: bool) -> str:
    """Return the expected usage of the open jobs as the end of a sentence; empty if there are none."""
    address = str(item.address)
    found = estimates([item], run, [address], force=force, preview=Preview({}, {address: reuse}))
    if not reuse.num_open or not found:
        return ""
    cost = found[0].cost
    return f"; about {found[0].num_tokens:,} tokens" + (f", {money(cost)}" if cost else "")
