"""Resolve the settings of the stage `report` from the configuration and the benchmark registry."""

from __future__ import annotations

from typing import Literal

from treadle.core.errors import ConfigError
from treadle.core.llm.config import ModelSettings
from treadle.core.runs.address import Address
from treadle.datagen.questions.benchmarks import SCORED_DOMAINS
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.environments.registry import traits_of
from treadle.eval.config import ReportSettings
from treadle.eval.figures.prices import TokenPrices
from treadle.stages.plan import Plan


def report_settings(plan: Plan, address: Address) -> ReportSettings:
    """Return the settings with headline and areas of the data sets in the sources filled in.

    Data sets without gold answers are in no area. Raises ConfigError if a data set has the name of an average or tasks
    of several environments, or if `headline` or `areas` names a data set that is neither a source nor a registered
    benchmark.
    """
    from treadle.report.summary import check_environments, check_names

    settings = plan.options(address, ReportSettings)
    questions = plan.section("questions", QuestionsSettings)
    names = sorted({source.dataset_name for source in questions.sources if source.source_field is None})
    check_names(names)
    used: dict[str, set[str]] = {}
    for source in questions.sources:
        if source.source_field is None:
            used.setdefault(source.dataset_name, set()).add(source.environment)
    check_environments(used)
    marked = tuple(name for name in names if questions.benchmark_of(name).headline)
    has_answers = {name: traits_of(one).has_answers for name, one in plan.environments().items()}
    said: dict[str, set[Literal["math", "knowledge"]]] = {}
    for source in questions.sources:
        name = source.dataset_name
        domain = questions.domain_of(name, source)
        if source.source_field is None and domain in SCORED_DOMAINS and has_answers[source.environment]:
            said.setdefault(name, set()).add("math" if domain == "math" else "knowledge")
    # If the sources of a data set are of different areas, its area is derived from its questions.
    areas = {name: area for name, (area, *others) in said.items() if not others}
    if names and all(source.source_field is None for source in questions.sources):
        _check_known(settings, names, questions)
    known = {name: _prices(model) for name, model in plan.models.items() if model.is_priced}
    update = {
        "headline": settings.headline or marked,
        "areas": {**areas, **settings.areas},
        "model_prices": known,
    }
    return settings.model_copy(update=update)


def _prices(model: ModelSettings) -> TokenPrices:
    return TokenPrices(
        prompt_per_million=model.prompt_price_per_million or 0.0,
        completion_per_million=model.completion_price_per_million or 0.0,
    )


def _check_known(settings: ReportSettings, names: list[str], questions: QuestionsSettings) -> None:
    """Raise ConfigError if `headline` or `areas` names a data set that is neither a source nor a registered benchmark.

    A misspelt name would silently change what averages cover. A known benchmark may be absent from the sources.
    """
    for key, said in (("headline", settings.headline), ("areas", tuple(settings.areas))):
        if unknown := [name for name in said if name not in names and questions.benchmark_of(name).domain is None]:
            raise ConfigError(
                f"report.{key} names data set {unknown[0]!r}, which no source of questions has; there are "
                f"{', '.join(names)}"
            )
