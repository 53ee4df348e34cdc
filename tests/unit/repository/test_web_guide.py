"""Configs in docs/guides/web.md are accepted."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from treadle.tasks.config import TreadleConfig

GUIDE = Path(__file__).parents[3] / "docs/guides/web.md"
BLOCKS = re.findall(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_guide_configs_are_valid(number: int) -> None:
    block = tomllib.loads(BLOCKS[number])
    models = {"policy": {"model": "m", "endpoints": [{"url": "http://localhost:9001/v1"}]}, **block.pop("models", {})}
    questions = block.pop("questions", {"sources": [{"path": "questions.jsonl", "domain": "qa", "dataset": "nq"}]})
    config = TreadleConfig.model_validate({"models": models, "questions": questions, **block})
    assert config.environment.search.web is not None


def test_guide_contains_configs() -> None:
    assert len(BLOCKS) >= 8
