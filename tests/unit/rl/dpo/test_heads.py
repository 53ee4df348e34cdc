"""Models that are no language models for text are refused for a training on preferences, before it starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.rl.dpo.heads import check_language_model
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig

CRITIC = Address.parse("1/dpo@critic")


def critic_of(folder: Path, **config: Any) -> TreadleConfig:
    """Return a configuration whose critic is trained from a folder with this `config.json`."""
    (folder / "config.json").write_text(json.dumps(config))
    data = {
        "flow": {"recipe": "sweet", "stages": ["rollouts", "scores", "preferences", "dpo"]},
        "models": {"agent": {"model": "agent", "endpoints": [{"url": "http://127.0.0.1:1/v1"}]}},
        "environment": {"search": {"enabled": False}},
        "dpo": {"model": str(folder)},
    }
    return load_config(TreadleConfig, data=data)


def test_regression_head_is_refused_by_name(tmp_path: Path) -> None:
    config = critic_of(tmp_path, architectures=["LlamaForSequenceClassification"], num_labels=1)
    said = "1/dpo@critic: dpo.model = .* is a LlamaForSequenceClassification, which has a regression head"
    with pytest.raises(ConfigError, match=said):
        instance(config, CRITIC)


def test_model_of_pictures_is_refused_by_name(tmp_path: Path) -> None:
    config = critic_of(tmp_path, architectures=["Qwen2VLForConditionalGeneration"], vision_config={})
    with pytest.raises(ConfigError, match="is a Qwen2VLForConditionalGeneration, which reads pictures"):
        instance(config, CRITIC)


def test_language_model_and_files_that_only_the_trainer_can_judge_are_accepted(tmp_path: Path) -> None:
    assert instance(critic_of(tmp_path, architectures=["LlamaForCausalLM"]), CRITIC).settings.is_critic
    for text in ("[]", "{", '{"architectures": null}'):
        (tmp_path / "config.json").write_text(text)
        check_language_model(tmp_path / "config.json", "dpo.model")
    check_language_model(tmp_path / "missing.json", "dpo.model")
