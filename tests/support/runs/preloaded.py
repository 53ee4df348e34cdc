"""Modules that processes import which fork for every command, so that no command imports them again."""

from __future__ import annotations

import importlib

MODULES = (
    "aiohttp", "jinja2.sandbox", "matplotlib.backends.backend_svg", "matplotlib.figure", "matplotlib.style",
    "numpy.polynomial", "numpy.random", "pandas", "pyarrow.dataset", "pyarrow.pandas_compat", "pyarrow.parquet",
    "rich.progress", "rich.table", "Stemmer", "tantivy", "tokenizers", "treadle.agent.sandbox.pool",
    "treadle.agent.tools.python", "treadle.cli.main", "treadle.cli.views.lineage", "treadle.cli.views.progress",
    "treadle.cli.views.summary", "treadle.cli.views.tables", "treadle.core.llm.pool",
    "treadle.environments.question.kind", "treadle.environments.scorers.math", "treadle.report.terminal",
    "treadle.retriever.bm25", "treadle.tasks.doctor", "treadle.tasks.page.build", "treadle.tasks.planning.flow_part",
    "treadle.tasks.planning.run_setup", "treadle.tasks.run_instances",
)  # fmt: skip


def preload() -> None:
    """Import all of them, and the shipped stages."""
    from treadle.stages.registry import SHIPPED

    for name in (*MODULES, *(place.partition(":")[0] for place in SHIPPED.values())):
        importlib.import_module(name)
