"""Summarize finished pools for terminal and UI: yield, operators, tokens, cost, projection to all questions.

Prices are those of the run's current configuration, so they may be added or corrected later.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from treadle.core.errors import ArtifactError
from treadle.core.figures import money
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.environments.rollouts.settings import selected_questions
from treadle.stages.report import StageReport, group, reads


def pools_report(record: StageRecord, run: Run, models: Mapping[str, ModelSettings]) -> StageReport:
    """Return yield and cost, and the results of the operators."""
    from treadle.datagen.pools.report import pool_figures, pool_sentences

    gate = next((one for one in run.records() if one.stage == "sft_rows" and reads(one, record)), None)
    accepted = group(gate.metrics, "accepted.") if gate is not None else None
    metrics, costs = record.metrics, role_costs(record, models)
    imported = [f"Imported from {record.imported_from}."] if record.imported_from is not None else []
    return StageReport(
        [*imported, *pool_sentences(metrics), *projection(record, run, models, metrics["num_correct"], "right")],
        pool_figures(metrics, accepted, costs),
    )


def role_costs(record: StageRecord, models: Mapping[str, ModelSettings]) -> dict[str, float | None]:
    """Return the cost of each role; None if its model has no prices. `models` is from the run's configuration today."""
    models = {role: models[one["name"]] for role, one in record.settings["roles"].items() if one["name"] in models}
    return {
        role: models[role].cost(used["prompt_tokens"], used["completion_tokens"])
        if role in models and models[role].is_priced
        else None
        for role, used in record.metrics["usage"].items()
    }


def projection(
    pools: StageRecord, run: Run, models: Mapping[str, ModelSettings], num_good: int, adjective: str
) -> list[str]:
    """Return the cost per good trajectory, and the projected yield and cost for all questions.

    Empty for imported pools, whose cost is unknown.
    """
    from treadle.datagen.pools.rows import tokens_of

    if pools.imported_from is not None:
        return []
    metrics = pools.metrics
    tokens, num_questions = tokens_of(metrics["usage"]), metrics["num_questions"]
    costs = list(role_costs(pools, models).values())
    known = [cost for cost in costs if cost is not None]
    spent = sum(known) if known and len(known) == len(costs) else None
    if not num_good:
        return [f"No trajectory is {adjective}; {tokens:,} tokens were used."]
    cost = f", cost {money(spent / num_good)}" if spent is not None else ""
    sentences = [f"Per {adjective} trajectory: {tokens / num_good:,.0f} tokens{cost}."]
    whole = num_questions_without_limits(pools, run)
    if whole is not None and whole > num_questions:
        factor = whole / num_questions
        cost = f", cost {money(spent * factor)}" if spent is not None else ""
        sentences.append(
            f"Projected to all {whole:,} questions: about {num_good * factor:,.0f} {adjective} trajectories for "
            f"{tokens * factor:,.0f} tokens{cost}."
        )
    return sentences


def num_questions_without_limits(record: StageRecord, run: Run) -> int | None:
    """Return the number of questions in the stage's data sets and split, ignoring its limits; None if unknown."""
    options = record.settings["options"]
    everything = SimpleNamespace(
        datasets=options["datasets"], split=options["split"], max_questions=None, max_questions_per_dataset=None
    )
    try:
        tables = [run.rows(ref.artifact) for ref in record.inputs["questions"]]
    except ArtifactError:
        return None
    return sum(1 for _ in selected_questions(everything, tables, ("dataset", "split")))
