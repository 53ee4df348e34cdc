"""Build the section with the action space: trajectories of all models as points in a plane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from treadle.core.errors import ConfigError, TreadleError
from treadle.report.page.document import Chart, Section
from treadle.report.radar import MAX_DRAWN
from treadle.tasks.analysis.action_space import RolloutTable, action_space, configured_encoder
from treadle.tasks.page.models import EvaluatedModel
from treadle.tasks.summaries.report_tables import report_tables

_READING = (
    "Each point is a trajectory; near points are trajectories that act alike. Distances between groups, and the axes, "
    "have no meaning."
)


def action_space_section(models: Sequence[EvaluatedModel]) -> tuple[list[Section], list[str]]:
    """Return the section, or a note on why it is missing. Raises ConfigError without scikit-learn."""
    labels = [model.label for model in models]
    tables = list(_tables(models))
    known = [label for label in labels if any(label == one for one, _ in tables)]
    if not known:
        return [], ["The action space is not drawn: the rollouts behind the report are no longer there."]
    sources = [model.source for model in models]
    encoder = next(filter(None, (configured_encoder(source.run) for source in sources)), None)
    try:
        space = action_space([table for _, table in tables], models=known[:MAX_DRAWN], encoder=encoder)
    except ConfigError:
        raise
    except TreadleError as error:
        return [], [f"The action space is not drawn: {error}"]
    picture = replace(space, models=tuple(labels)).svg
    description = f"Points of {', '.join(known[:MAX_DRAWN])} in a plane"
    chart = Chart("What the models do", description, picture, space.caption)
    return [Section("action-space", "Action space", _READING, [chart])], []


def _tables(models: Sequence[EvaluatedModel]) -> Iterator[tuple[str, RolloutTable]]:
    """Yield the rollouts behind each report, with the label of their model."""
    for model in {id(model.report): model for model in models}.values():
        source, suffix = model.source, model.source.named("")
        for scores, prefix in report_tables(model.report):
            maker = source.maker(scores)
            for ref in maker.inputs.get("rollouts", ()) if maker is not None else ():
                rows = source.table(ref.artifact, ref.address)
                first = next(source.rows(ref.artifact, ref.address, ["model"]), None)
                if rows is not None and first is not None:
                    yield f"{prefix}{first['model']}{suffix}", RolloutTable(rows, prefix, suffix)
