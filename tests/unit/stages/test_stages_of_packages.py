"""Stages of other packages that do not fit are refused by name before anything runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from treadle.core.config import Section
from treadle.core.errors import ConfigError
from treadle.core.runs.stage import Stage
from treadle.core.tables import TABLES, Table, column
from treadle.stages.entry import StageEntry
from treadle.stages.registry import stage_entries


class Options(Section):
    longest: int = 1


class Needy(Section):
    longest: int


def table(kind: str) -> Table:
    return Table(kind, 1, ("key",), pa.schema([column("key", pa.string(), "key")]), "Lengths.")


def stage(produces: str = "lengths", reads: str = "rollouts", name: str = "lengths") -> Stage:
    return Stage(
        name=name,
        version=1,
        settings=Options,
        consumes={"rollouts": reads},
        produces=(table(produces),),
        run=lambda context: {},
    )


def entry(made: Stage) -> StageEntry:
    return StageEntry(
        stage=made, table=Options, settings=lambda plan, address: Options(), inputs=lambda *_: {}, description="Count."
    )


@pytest.fixture(autouse=True)
def other_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    stage_entries()
    monkeypatch.setattr("treadle.core.runs.stage.TABLES", dict(TABLES))


def entries_with(monkeypatch: pytest.MonkeyPatch, given: Any, name: str = "lengths") -> Any:
    module = ModuleType("package_of_a_test")
    module.ENTRY = given  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "package_of_a_test", module)
    points = {name: "package_of_a_test:ENTRY"}
    monkeypatch.setattr("treadle.stages.registry.entry_point_places", lambda group: dict(points))
    monkeypatch.setattr("treadle.stages.registry.SHIPPED", {"scores": "x:ENTRY"})
    shipped = stage_entries()["scores"]
    monkeypatch.setattr(
        "treadle.stages.registry.from_module",
        lambda place, attribute, key: shipped if place == "x" else getattr(module, attribute),
    )
    return stage_entries.__wrapped__()


def test_stage_that_fits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(entries_with(monkeypatch, entry(stage(reads="scores")))) == ["scores", "lengths"]


def test_stage_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = entry(stage(reads="scores"))
    cases: list[tuple[str, Any, str]] = [
        ("scores", good, "cannot be the stage scores: this name is that of a shipped stage"),
        ("other", good, "is the stage 'lengths'; give both the same name"),
        ("a/b", entry(stage(name="a/b", reads="scores")), "has no name of a stage"),
        ("lengths", 3, "is no StageEntry"),
        ("lengths", replace(good, table=Needy), "key 'longest' has no default"),
        ("lengths", replace(good, table=3), "not derived from treadle.api.Section"),  # type: ignore[arg-type]
        ("lengths", replace(good, qualifiers=("modell",)), "no tuple of"),  # type: ignore[arg-type]
        ("lengths", entry(stage("scores", "scores")), "declares another table 'scores' than stage scores"),
        ("lengths", entry(stage(reads="rolouts")), "reads the table 'rolouts', which no stage produces; there are"),
    ]
    for name, given, said in cases:
        with pytest.raises(ConfigError, match=said):
            entries_with(monkeypatch, given, name)
