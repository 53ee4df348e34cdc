"""Every configuration that we show can be loaded."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from treadle.core.config import load_config
from treadle.tasks.catalog import STAGES, flow_addresses
from treadle.tasks.config import TreadleConfig
from treadle.tasks.reference import pages

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [(page, text) for page in PAGES for text in re.findall(r"```toml\n(.*?)```", page.read_text(), re.S)]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_shipped_configuration_loads_and_makes_a_flow(path: Path) -> None:
    config = load_config(TreadleConfig, (path,))
    assert {address.stage for address in flow_addresses(config)} == set(STAGES)


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=lambda value: getattr(value, "name", "block"))
def test_a_configuration_in_the_docs_loads(page: Path, text: str) -> None:
    assert load_config(TreadleConfig, (), data=tomllib.loads(text))


@pytest.mark.parametrize("name", pages())
def test_the_generated_reference_is_that_of_the_code(name: str) -> None:
    assert (ROOT / "docs" / "reference" / name).read_text() == pages()[name], "run `make docs`"
