"""The world of the demo that makes its own tasks: one ledger for the run and for its service."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from treadle.core.config import load_config
from treadle.core.errors import StorageError
from treadle.demo.evolve.world import SERVED, LedgerWorld
from treadle.environments.service.settings import EnvironmentServiceConfig
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.toml_lines import toml_lines

CONFIG = Path(__file__).resolve().parents[4] / "configs" / "evolve-small.toml"


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Any]:
    said, tables = LedgerWorld(num_train=80).write(tmp_path)
    assert said == "80 tasks of a ledger to train on and 20 held out"
    return tables


def test_the_service_has_the_ledger_of_the_run(tables: dict[str, Any], tmp_path: Path) -> None:
    served = load_config(EnvironmentServiceConfig, (tmp_path / "service.toml",)).environments["ledger"]
    config = load_config(TreadleConfig, (CONFIG,), data=tables)
    assert config.environment.model_dump() == served.model_dump()
    assert served.model_dump()["num_tasks"] == 80


def test_companions_are_ready_where_the_run_looks_for_them(tables: dict[str, Any]) -> None:
    service, helpers = tables["companions"]
    assert service["ready_url"] == f"{tables['environments'][SERVED]['url']}/healthz"
    port = urlsplit(service["ready_url"]).port
    assert service["command"][-2:] == ["--port", str(port)]
    labels = tables["rl"]["credit"]["model"]["endpoints"][0]["url"]
    urls = {labels, *(model["endpoints"][0]["url"] for model in tables["models"].values())}
    assert urls == {helpers["ready_url"].replace("/health", "/v1")}
    assert urlsplit(labels).port not in (port, None)


def test_tables_can_be_written_as_a_file(tables: dict[str, Any]) -> None:
    assert tomllib.loads("\n".join(toml_lines(tables))) == tables


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="service.toml cannot be written"):
        LedgerWorld(num_train=8).write(tmp_path / "file")
