"""Summarize a finished stage for terminal and UI: yield, rejection reasons, tokens, cost, projection, curves.

Everything comes from the stage's record, mainly its metrics, and for `rl` also from its telemetry, if that still
exists; the only table read is `questions`, two columns of it.
Prices are taken from the run's current configuration, so they may be added or corrected later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from treadle.core.config import load_config
from treadle.core.errors import ArtifactError, ConfigError
from treadle.core.figures import Figures, money
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import phase_name
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.datagen.pools.report import pool_figures, pool_sentences
from treadle.datagen.pools.rows import tokens_of
from treadle.environments.registry import environment_name
from treadle.environments.rollouts.report import rollout_warnings
from treadle.environments.rollouts.settings import selected_questions
from treadle.rl.training.curves import end_steps, sparkline
from treadle.rl.training.tables import RL_LOG
from treadle.stages.registry import stage_entries
from treadle.stages.report import StageReport
from treadle.tasks.config import TreadleConfig
from treadle.tasks.summaries.report_tables import telemetry_rows

Metrics = Mapping[str, Any]

_CURVE_BLOCKS = 24
_SHOWN = {
    "reward": "reward",
    "score": "score",
    "calls": "calls",
    "length": "length in tokens",
}
"""Log column -> label."""


def stage_report(record: StageRecord, run: Run) -> StageReport | None:
    """Return the report of a stage; None if the stage has none or another version wrote its metrics."""
    makers = {"rollouts": _rollouts, "pools": _pools, "sft_rows": _sft_rows, "selection": _selection, "rl": _rl}
    entry = stage_entries().get(record.stage)
    make = makers.get(record.stage) or (entry.report if entry is not None else None)
    try:
        return make(record, run) if make is not None else None
    except (KeyError, TypeError):
        return None  # Metrics of another version: the record shows them unchanged.


def _rollouts(record: StageRecord, run: Run) -> StageReport | None:
    entries = record.settings["environment"].get("tools", {})
    tools = [name for name, entry in entries.items() if entry.get("max_calls") != 0]
    sentences = rollout_warnings(record.metrics, environment_name(record.settings), tools)
    return StageReport(sentences, []) if sentences else None


def _pools(record: StageRecord, run: Run) -> StageReport:
    gate = next((one for one in run.records() if one.stage == "sft_rows" and _reads(one, record)), None)
    accepted = _group(gate.metrics, "accepted.") if gate is not None else None
    metrics, costs = record.metrics, role_costs(record, run)
    imported = [f"Imported from {record.imported_from}."] if record.imported_from is not None else []
    return StageReport(
        [*imported, *pool_sentences(metrics), *_projection(record, run, metrics["num_correct"], "right")],
        pool_figures(metrics, accepted, costs),
    )


def _sft_rows(record: StageRecord, run: Run) -> StageReport:
    metrics = record.metrics
    text_mode = f", {metrics['text_mode_rows']:,} without token ids" if metrics["text_mode_rows"] else ""
    sentences = [
        f"{metrics['rows']:,} rows from {metrics['trajectories']:,} trajectories, of which {metrics['accepted']:,} "
        f"passed the quality gate{text_mode}.",
        f"{metrics['tokens']:,} tokens, {metrics['target_tokens']:,} of them targets.",
    ]
    pools = next((one for one in run.records() if one.stage == "pools" and _reads(record, one)), None)
    if pools is not None:
        sentences += _projection(pools, run, metrics["accepted"], "accepted")
    by_call = {name: _group(metrics, f"calls.{name}.") for name in ("initial", "rows")}
    calls = sorted({*by_call["initial"], *by_call["rows"]}, key=int)
    return StageReport(
        sentences,
        [
            _counts("Why trajectories were rejected", "reason", "trajectories", _group(metrics, "reason.")),
            _counts("Accepted, but not made into rows", "why", "trajectories", _group(metrics, "left_out.")),
            _operators(metrics),
            Figures(
                "Tool calls",
                ("calls", "initial rollouts", "rows"),
                tuple((name, by_call["initial"].get(name, 0), by_call["rows"].get(name, 0)) for name in calls),
            ),
            _counts("Data sets", "data set", "rows", _group(metrics, "dataset.")),
        ],
    )


def _selection(record: StageRecord, run: Run) -> StageReport:
    return StageReport(selection_sentences(record.metrics), selection_figures(record.metrics))


def _rl(record: StageRecord, run: Run) -> StageReport:
    log = telemetry_rows(record, run, RL_LOG.kind)
    return StageReport(rl_sentences(record.metrics), rl_figures(log), rl_steps(log))


def _operators(metrics: Metrics) -> Figures:
    accepted, turned = _group(metrics, "accepted."), _group(metrics, "corrected.")
    rows = tuple((name, accepted[name], turned.get(name, "-")) for name in sorted(accepted))
    return Figures("Accepted by operator", ("operator", "accepted", "wrong turned right"), rows)


def _counts(title: str, name: str, unit: str, counts: Mapping[str, int]) -> Figures:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Figures(title, (name, unit), tuple((code, count) for code, count in ranked if count))


def _group(metrics: Metrics, prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): count for name, count in metrics.items() if name.startswith(prefix)}


def _reads(reader: StageRecord, made: StageRecord) -> bool:
    """Return whether `reader` was made from the current result of `made`."""
    outputs = set(made.outputs.values())
    return any(ref.artifact in outputs for refs in reader.inputs.values() for ref in refs)


def role_models(record: StageRecord, run: Run) -> dict[str, ModelSettings]:
    """Return role -> its model with prices from the run's current configuration, for `pools` and `rollouts`."""
    try:
        models = load_config(TreadleConfig, base=run.config()).models
    except ConfigError:
        return {}
    names = {role: one["name"] for role, one in record.settings.get("roles", {}).items()}
    if "model_name" in record.settings:
        names = {"policy": record.settings["model_name"], **names}
        if helper := record.settings["environment"].get("search", {}).get("summarizer"):
            names["summarizer"] = helper
    return {role: models[name] for role, name in names.items() if name in models}


def role_costs(record: StageRecord, run: Run) -> dict[str, float | None]:
    """Return role -> its cost in `pools`; None if its model has no prices."""
    models = role_models(record, run)
    return {
        role: models[role].cost(used["prompt_tokens"], used["completion_tokens"])
        if role in models and models[role].is_priced
        else None
        for role, used in record.metrics["usage"].items()
    }


def _projection(pools: StageRecord, run: Run, num_good: int, adjective: str) -> list[str]:
    """Return the cost per good trajectory, and the projected yield and cost for all questions.

    Empty for imported pools, whose cost is unknown.
    """
    if pools.imported_from is not None:
        return []
    metrics = pools.metrics
    tokens, num_questions = tokens_of(metrics["usage"]), metrics["num_questions"]
    costs = list(role_costs(pools, run).values())
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


_SELECTED_GROUPS = re.compile(r"selected_(\w+)")
"""Name of the metric that counts the groups of a selection method with selected questions."""


def selection_sentences(metrics: Metrics) -> list[str]:
    """Return how many questions were selected of how many."""
    name = next((match[1] for match in map(_SELECTED_GROUPS.fullmatch, metrics) if match), None)
    groups = ""
    if name is not None:
        # Under quotas each domain has its own groups.
        first = "" if _group(metrics, f"{name}.") else "the first "
        groups = f", from {first}{metrics[f'selected_{name}']:,} of {metrics[name]:,} {name}"
    return [
        f"{metrics['rows']:,} of {metrics['questions']:,} questions are selected{groups}; "
        f"{metrics['rollouts']:,} rollouts decided.",
    ]


def selection_figures(metrics: Metrics) -> list[Figures]:
    """Return why questions were left out, and what happened to those that earlier phases trained on."""
    left_out = {name.replace("_", " "): count for name, count in _group(metrics, "left_out.").items()}
    overlap = _group(metrics, "overlap.")
    phases = sorted({name.partition(".")[0] for name in overlap}, key=int)
    rows = []
    for phase in phases:
        outcomes = {name.partition(".")[2]: count for name, count in overlap.items() if name.startswith(f"{phase}.")}
        rest = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in outcomes.items() if n and name != "selected")
        rows.append((phase_name(int(phase)), sum(outcomes.values()), outcomes.get("selected", 0), rest or "-"))
    return [
        _counts("Why questions were left out", "reason", "questions", left_out),
        Figures("Questions of earlier phases", ("phase", "questions", "selected again", "others"), tuple(rows)),
    ]


def rl_sentences(metrics: Metrics) -> list[str]:
    """Return what was trained on how many questions, and which step's policy is the result."""
    sentences = [
        f"{metrics['steps']:,} steps over {metrics['rows']:,} questions by {metrics['engine']}, "
        f"{metrics['rollouts']:,} rollouts; reward {metrics['reward_rule']}.",
        f"In {metrics['equal_groups']:,} of {metrics['groups']:,} groups all rewards were equal, so they gave no "
        "training signal.",
    ]
    handed_over = f"The policy of step {metrics['chosen_step']:,} is exported"
    if (score := metrics.get("validation_score")) is None:
        return [*sentences, f"{handed_over}."]
    questions = metrics["validation_questions"]
    return [*sentences, f"{handed_over}: score {score:.3f} on {questions:,} held-out questions, greedily."]


def rl_figures(log: Sequence[Metrics]) -> list[Figures]:
    """Return means over the first and the last steps, and a curve over all of them."""
    span = end_steps(len(log))
    rows = []
    for name, values in _shown_values(log).items():
        ends = (_number(_mean(values[:span])), _number(_mean(values[-span:])))
        rows.append((name, *ends, sparkline(_blocks(values), _CURVE_BLOCKS)))
    header = ("mean of", f"first {span:,} steps", f"last {span:,} steps", "curve")
    return [Figures("Rollouts in training", header, tuple(rows))] if log else []


def rl_steps(log: Sequence[Metrics]) -> list[dict[str, Any]]:
    """Return a row per step, for a page that sorts and filters them."""
    shown = _shown_values(log)
    return [
        {"step": step["step"], **{name: _rounded(values[place]) for name, values in shown.items()}}
        for place, step in enumerate(log)
    ]


def _shown_values(log: Sequence[Metrics]) -> dict[str, list[float | None]]:
    """Return label -> value at each step: the general figures, then the parts of the rewards that change."""
    shown: dict[str, list[float | None]] = {label: [step[column] for step in log] for column, label in _SHOWN.items()}
    parts = [{part["name"]: part["value"] for part in step["parts"]} for step in log]
    for name in dict.fromkeys(name for of_step in parts for name in of_step):
        values = [of_step.get(name) for of_step in parts]
        if len({*values} - {None}) > 1:
            shown.setdefault(name, values)
    return shown


def _blocks(values: Sequence[float | None]) -> list[float | None]:
    """Return the means of equal parts of the values, one per block of the curve."""
    number = min(len(values), _CURVE_BLOCKS)
    cuts = [len(values) * place // number for place in range(number + 1)] if number else []
    return [_mean(values[begin:end]) for begin, end in zip(cuts, cuts[1:], strict=False)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
