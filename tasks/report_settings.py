"""Settings of the stage `report`: those of the configuration, and what the registry of benchmarks says of its data."""

from __future__ import annotations

from typing import Literal

from treadle.core.stage import Address
from treadle.eval.config import ReportSettings
from treadle.eval.summary import check_names
from treadle.tasks.config import TreadleConfig, overridden


def report_settings(config: TreadleConfig, address: Address) -> ReportSettings:
    """The settings with headline and areas of the data sets that the sources name.

    Raises ConfigError where one has the name of an average, before anything is run for it.
    """
    settings: ReportSettings = overridden(config, address, config.report)
    questions = config.questions
    names = sorted({source.dataset_name for source in questions.sources if source.source_field is None})
    check_names(names)
    marked = tuple(name for name in names if questions.benchmark_of(name).headline)
    areas: dict[str, Literal["math", "knowledge"]] = {}
    for source in questions.sources:
        name = source.dataset_name
        domain = source.domain or questions.domains.get(name) or questions.benchmark_of(name).domain
        if source.source_field is None and domain is not None:
            areas[name] = "math" if domain == "math" else "knowledge"
    return settings.model_copy(update={"headline": settings.headline or marked, "areas": {**areas, **settings.areas}})
