"""What instances that are to be run will use, estimated before anything is spent. Prefect-free.

By what the same stage measured in this run, finished or not, where it did; else by `tasks/cost_model.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import orjson

from treadle.agent.rollout_settings import RolloutsSettings, selected_questions
from treadle.core.errors import RunError, TreadleError
from treadle.core.execute import bind_inputs, fingerprint_of
from treadle.core.llm.config import ModelSettings
from treadle.core.runs import Run
from treadle.core.stage import Address, Instance
from treadle.datagen.pool_rows import total_usage
from treadle.datagen.pools_settings import PoolsSettings
from treadle.eval.config import ScoresSettings
from treadle.rl.config import RlSettings
from treadle.rl.curriculum import MAX_PHASES, phase_of
from treadle.rl.launch import RlFolder, saved_step
from treadle.rl.selection_settings import SelectionSettings
from treadle.tasks.cost_model import ASSUMED, PhaseSize, phase_size, pool_cost, rollout_cost, scores_cost, web_searches

_MOST_SAMPLED = 500
"""Finished units that are read of an unfinished stage to take their mean."""
_PER = 1_000
"""Questions that an estimate is for where it is not known how many there are."""


@dataclass(frozen=True, slots=True)
class RoleEstimate:
    """What one role is expected to use."""

    role: str
    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: float | None
    """In the currency of the prices; None where the model has none."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one instance is expected to use.

    Attributes:
        unit: question, or rollout.
        num_units: Those still to be made; None where it is not known, then `roles` are for 1,000 questions.
        counted: Where that number is from.
        basis: What the estimate stands on.
        assumptions: One per line; empty where it stands on measurements.
    """

    address: str
    unit: str
    num_units: int | None
    counted: str
    basis: str
    assumptions: list[str]
    roles: list[RoleEstimate]
    num_searches: int = 0
    """Of the web, at a provider that may take money for each; what is on record already is not asked for."""
    num_pages: int = 0
    """Fetched for them at most."""

    @property
    def num_tokens(self) -> int:
        """All of them."""
        return sum(role.prompt_tokens + role.completion_tokens for role in self.roles)

    @property
    def cost(self) -> float | None:
        """None where a model has no price."""
        costs = [role.cost for role in self.roles]
        return sum(cost for cost in costs if cost is not None) if None not in costs else None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {**asdict(self), "num_tokens": self.num_tokens, "cost": self.cost, "estimate": True}


@dataclass(frozen=True, slots=True)
class _Mean:
    """Role -> mean calls and tokens of a unit, and what they are the mean of."""

    roles: Mapping[str, Mapping[str, float]]
    basis: str
    measured: bool = True


@dataclass(frozen=True, slots=True)
class _Count:
    """Units to be made: how many, of which the share is math, and where that is from."""

    num_questions: int | None
    share_math: float
    source: str


def estimates(instances: Sequence[Instance], run: Run | None, to_run: Sequence[str], *, force: bool) -> list[Estimate]:
    """Estimates of those instances that would be run and ask models; `run`: None where there is none yet."""
    new = {str(item.address) for item in instances if str(item.address) in to_run}
    wanted = [item for item in instances if str(item.address) in new]
    found = []
    for item in wanted:
        if isinstance(item.settings, PoolsSettings | RolloutsSettings):
            found.append(_estimate(item, instances, run, new, force))
        elif isinstance(item.settings, RlSettings):
            found.append(_phase_estimate(item, item.settings, instances, run, new, force))
        elif isinstance(item.settings, ScoresSettings) and (item.settings.judges or item.settings.redundancy):
            found.append(_judges_estimate(item, item.settings, instances, run, new))
    return found


def _estimate(item: Instance, instances: Sequence[Instance], run: Run | None, new: set[str], force: bool) -> Estimate:
    settings: Any = item.settings
    samples = settings.options.samples_per_question if isinstance(settings, RolloutsSettings) else 1
    count = _questions(item, instances, run, new)
    mean = (_measured(item, run) if run else None) or _modelled(item, count)
    num_units, source = count.num_questions, count.source
    if num_units is not None:
        num_units *= samples
        if run is not None and not force and (done := _num_finished(item, run)):
            num_units, source = max(num_units - done, 0), f"{source}; {done:,} are finished"
    factor = num_units if num_units is not None else _PER * samples
    models = _models(settings)
    roles = [
        _role(role, *models.get(role, ("?", None)), used, factor) for role, used in mean.roles.items() if used["calls"]
    ]
    policy = mean.roles.get("policy", {}).get("calls", 0.0)
    num_searches, web = round(web_searches(settings.environment, policy) * factor), settings.environment.search.web
    return Estimate(
        address=str(item.address),
        unit="rollout" if isinstance(settings, RolloutsSettings) else "question",
        num_units=num_units,
        counted=source,
        basis=mean.basis,
        assumptions=[] if mean.measured else _assumptions(isinstance(settings, PoolsSettings)),
        roles=roles,
        num_searches=num_searches,
        num_pages=num_searches * web.top_n if web is not None and web.pages else 0,
    )


def _judges_estimate(
    item: Instance, settings: ScoresSettings, instances: Sequence[Instance], run: Run | None, new: set[str]
) -> Estimate:
    """Of the judges of one model's rollouts."""
    (producer,) = item.inputs["rollouts"]
    made = next(one.settings for one in instances if one.address == producer)
    assert isinstance(made, RolloutsSettings)
    count = _questions(replace(item, settings=made), instances, run, new)
    num_rollouts = None if count.num_questions is None else count.num_questions * made.options.samples_per_question
    counted = count.source
    record = run.record(producer) if run is not None and str(producer) not in new else None
    if record is not None:
        num_rollouts = record.outputs["rollouts"].num_rows
        counted = f"{num_rollouts:,} rollouts in {producer}"
    reckoned = scores_cost(settings.options, made.environment, count.share_math).roles
    mean = _measured(item, run) if run else None
    if mean is None:
        mean = _Mean(reckoned, "nothing measured yet: a model of a judgement", measured=False)
    models = {f"correctness:{name}": role for name, role in settings.judges.items()}
    if settings.redundancy is not None:
        models[f"redundancy:{settings.redundancy.name}"] = settings.redundancy
    factor = num_rollouts if num_rollouts is not None else _PER * made.options.samples_per_question
    # Another model's scores, or those of other settings, need not have asked everybody.
    lacking = {name: reckoned[name] for name in models if name in reckoned and name not in mean.roles}
    used = {**mean.roles, **lacking}
    assumptions = _judges_assumptions(settings) if lacking or not mean.measured else []
    if lacking:
        assumptions.insert(0, f"reckoned by a model, as it was not measured there: {', '.join(lacking)}")
    if run is not None and (known := _judged_before(item, run)):
        assumptions.append(f"{known:,} judgements are there already; those among them are not asked for again")
    return Estimate(
        address=str(item.address),
        unit="rollout",
        num_units=num_rollouts,
        counted=counted,
        basis=mean.basis,
        assumptions=assumptions,
        roles=[_role(name, role.name, role.model, used[name], factor) for name, role in models.items() if name in used],
    )


def _judges_assumptions(settings: ScoresSettings) -> list[str]:
    lines = []
    if settings.judges:
        lines.append(f"rules call {ASSUMED.share_right:.0%} of the answers right, and every answer is another one")
    if settings.redundancy is not None:
        lines.append("every rollout with tools calls one, and no trajectory comes twice")
    return lines


def _judged_before(item: Instance, run: Run) -> int:
    """Judgements that the instance has, of whatever settings: a killed attempt's, and those behind earlier results."""
    attempts = run.attempts(item.address)
    return run.shards(item.address, attempts[-1].journal_name).count_finished() if attempts else 0


def _phase_estimate(
    item: Instance, settings: RlSettings, instances: Sequence[Instance], run: Run | None, new: set[str], force: bool
) -> Estimate:
    """Of a training, whose rollouts are like those that its questions were selected by."""
    num_rows, counted = _rows(item, instances, run, new)
    done = 0
    if run is not None and not force and (fingerprint := _goes_on(item, run)):
        done = saved_step(RlFolder(run.storage.directory(run.workspace_key(item.address, fingerprint))))
        counted += f"; {done:,} steps are done" if done else ""
    size = phase_size(settings.options, num_rows, done)
    mean = _measured(item, run) if run else None
    if mean is None:
        roles = rollout_cost(settings.environment).roles
        mean = _Mean(roles, "nothing measured yet: a model of a rollout", measured=False)
    counts = {"training": size.num_rollouts, "validation": size.num_validation_rollouts}
    return Estimate(
        address=str(item.address),
        unit="rollout",
        num_units=size.num_rollouts + size.num_validation_rollouts,
        counted=counted,
        basis=mean.basis,
        assumptions=_phase_assumptions(settings, size, [] if mean.measured else _assumptions(False)),
        roles=[
            _role(what, settings.options.start, None, mean.roles["policy"], count)
            for what, count in counts.items()
            if count
        ],
    )


def _rows(item: Instance, instances: Sequence[Instance], run: Run | None, new: set[str]) -> tuple[int, str]:
    """Rows that a training will have, and where that is from."""
    (producer,) = item.inputs["rl_rows"]
    record = run.record(producer) if run is not None and str(producer) not in new else None
    if record is not None:
        num_rows = record.outputs["rl_rows"].num_rows
        return num_rows, f"{num_rows:,} rows in {producer}"
    selection = next((one.settings for one in instances if one.address == producer), None)
    most = selection.options.max_questions if isinstance(selection, SelectionSettings) else _PER
    return most, f"at most {most:,} rows: they are not selected yet"


def _phase_assumptions(settings: RlSettings, size: PhaseSize, rest: list[str]) -> list[str]:
    options = settings.options
    lines = [
        f"{size.num_steps:,} steps of {options.prompts_per_step:,} questions with {options.group_size} rollouts each"
    ]
    if size.num_validation_rollouts:
        lines.append(f"{options.validation_questions:,} held-out questions every {options.validation_steps:,} steps")
    return [*lines, *rest]


def _num_finished(item: Instance, run: Run) -> int:
    """Units that an attempt which did not complete has finished, if this one would go on with them."""
    return run.status(item.address).num_finished if _goes_on(item, run) else 0


def _goes_on(item: Instance, run: Run) -> str:
    """Fingerprint of the last attempt, if this one would go on with what it left; else empty."""
    attempts = run.attempts(item.address)
    try:
        same = attempts and attempts[-1].fingerprint == fingerprint_of(item, bind_inputs(item, run))
    except RunError:
        return ""
    return attempts[-1].fingerprint if same else ""


def _role(role: str, name: str, model: ModelSettings | None, used: Mapping[str, float], factor: int) -> RoleEstimate:
    prompt, completion = (round(used[kind] * factor) for kind in ("prompt_tokens", "completion_tokens"))
    cost = model.cost(prompt, completion) if model is not None and model.is_priced else None
    return RoleEstimate(role, name, round(used["calls"] * factor), prompt, completion, cost)


def _models(settings: PoolsSettings | RolloutsSettings) -> dict[str, tuple[str, ModelSettings | None]]:
    """Role -> name and settings of its model."""
    if isinstance(settings, PoolsSettings):
        return {role: (one.name, one.model) for role, one in settings.roles.items()}
    helper = settings.environment.summarizer or "?"
    return {"policy": (settings.model_name, settings.model), "summarizer": (helper, settings.summarizer)}


def _questions(item: Instance, instances: Sequence[Instance], run: Run | None, new: set[str]) -> _Count:
    """Counted in the questions, where they are there; else the configured maximum."""
    options: Any = item.settings.options  # type: ignore[attr-defined]
    producers = item.inputs["questions"]
    if run is not None and not new.intersection(map(str, producers)):
        domains = [row["domain"] for row in _selected(run, producers, options)]
        share = domains.count("math") / len(domains) if domains else 0.0
        return _Count(len(domains), share, f"counted in {', '.join(map(str, producers))}")
    limits = _most_rows(item, instances)
    if options.max_questions is not None:
        limits.append(options.max_questions)
    if options.max_questions_per_dataset is not None and options.datasets:
        limits.append(options.max_questions_per_dataset * len(options.datasets))
    if limits:
        return _Count(min(limits), 1.0, "the configured maximum: the questions are not made yet")
    return _Count(None, 1.0, f"the questions are not made yet and have no maximum: this is for {_PER:,} of them")


def _most_rows(item: Instance, instances: Sequence[Instance]) -> list[int]:
    """How many rows the sources of the questions give at most; empty where one of them is read to its end."""
    makers = [made for made in instances if made.address in item.inputs["questions"]]
    rows = [source.limit for made in makers for source in getattr(made.settings, "sources", ())]
    known = [limit for limit in rows if limit is not None]
    return [sum(known)] if known and len(known) == len(rows) else []


def _selected(run: Run, producers: Sequence[Address], options: Any) -> Any:
    records = [record for producer in producers if (record := run.record(producer)) is not None]
    tables = [run.rows(record.outputs["questions"]) for record in records]
    names = ("datasets", "split", "max_questions", "max_questions_per_dataset")
    chosen = SimpleNamespace(**{name: getattr(options, name) for name in names})
    return selected_questions(chosen, tables, ("dataset", "split", "domain"))


def _modelled(item: Instance, count: _Count) -> _Mean:
    settings = item.settings
    if isinstance(settings, PoolsSettings):
        roles = pool_cost(settings.options, settings.environment, count.share_math).roles
        return _Mean(roles, "nothing measured yet: a model of the flywheel", measured=False)
    assert isinstance(settings, RolloutsSettings)
    return _Mean(rollout_cost(settings.environment).roles, "nothing measured yet: a model of a rollout", measured=False)


def _assumptions(of_pools: bool) -> list[str]:
    lines = [
        f"a rollout has {ASSUMED.turns:g} turns of {ASSUMED.sampled_per_turn} sampled tokens; results of tools are as "
        "long as the environment allows, programs a quarter of that",
        "every turn sends all that stands before it: caches of servers are not taken into account",
    ]
    if not of_pools:
        return lines
    return [
        *lines,
        f"{ASSUMED.share_right:.0%} of what is taken up is right; all rounds are made; after an edit come "
        f"{ASSUMED.turns_after_edit:g} turns; {ASSUMED.yielded:.0%} of the applications give a trajectory",
        "the judge is asked once about every answer to a math question, though rules decide some of them",
        "an operator of your own asks once and goes on from an edit",
    ]


def _measured(item: Instance, run: Run) -> _Mean | None:
    """Means of the same stage in this run: of its record, else of what is finished of it."""
    try:
        return _of_record(item, run) or _of_journal(item, run)
    except (TreadleError, KeyError, TypeError, ValueError):
        return None  # Left by another version: then it is reckoned.


def _of_record(item: Instance, run: Run) -> _Mean | None:
    stage = "rollouts" if item.stage.name == "rl" else item.stage.name
    same = [record for record in run.records() if record.stage == stage]
    if item.stage.name == "rl":
        # Those of a model that is measured, greedily or on other questions, are of another kind.
        same = [record for record in same if phase_of(Address.parse(record.address).qualifier)]
    like = replace(item.address, stage=stage)
    for record in sorted(same, key=lambda record: _unlike(Address.parse(record.address), like)):
        metrics = record.metrics
        if record.stage == "pools" and metrics["num_questions"]:
            return _mean(metrics["usage"], metrics["num_questions"], f"measured in {record.address}", "questions")
        if record.stage == "scores" and metrics.get("usage") and _is_of_all(metrics):
            return _mean(metrics["usage"], metrics["num_rollouts"], f"measured in {record.address}", "rollouts")
        if record.stage == "rollouts" and metrics["num_rollouts"]:
            return _mean(_usage_of(metrics), metrics["num_rollouts"], f"measured in {record.address}", "rollouts")
    return None


def _is_of_all(metrics: Mapping[str, Any]) -> bool:
    """Whether the usage is that of all judgements; an older version counted only what was not taken over."""
    return not metrics["num_judgements_missing"] and not metrics.get("num_judgements_reused")


def _unlike(address: Address, like: Address) -> tuple[bool, int]:
    """How little the rollouts of one instance say of another's: its own first, then those of near phases."""
    phase, wanted = phase_of(address.qualifier), phase_of(like.qualifier)
    if phase is None or wanted is None:
        return address != like, 0 if phase == wanted else MAX_PHASES
    return address != like, abs(phase - wanted)


def _of_journal(item: Instance, run: Run) -> _Mean | None:
    attempts = run.attempts(item.address)
    if not attempts:
        return None
    if isinstance(item.settings, ScoresSettings):
        return None  # What is finished are judgements; how many a rollout has is not known from them.
    rows = [
        orjson.loads(row) for row in run.shards(item.address, attempts[-1].journal_name).finished_rows(_MOST_SAMPLED)
    ]
    if not rows:
        return None
    where = f"measured in what is finished of {item.address}"
    if isinstance(item.settings, PoolsSettings):
        usage = total_usage(orjson.loads(row["question"]["usage"]) for row in rows)
        return _mean(usage, len(rows), where, "questions")
    usage = total_usage(_usage_of({**row["telemetry"], **row["row"]}) for row in rows)
    return _mean(usage, len(rows), where, "rollouts")


def _usage_of(counts: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Usage of a rollout, or of all of a stage, from its row or its metrics."""
    own = {"calls": counts["num_turns"], **{name: counts[name] for name in ("prompt_tokens", "completion_tokens")}}
    if not counts.get("summarizer_prompt_tokens"):
        return {"policy": own}
    tokens = {name: counts[f"summarizer_{name}"] for name in ("prompt_tokens", "completion_tokens")}
    return {"policy": own, "summarizer": {"calls": counts["calls_executed"], **tokens}}


def _mean(usage: Mapping[str, Mapping[str, int]], count: int, where: str, units: str) -> _Mean:
    roles = {role: {name: value / count for name, value in used.items()} for role, used in usage.items()}
    return _Mean(roles, f"{where} ({count:,} {units})")
