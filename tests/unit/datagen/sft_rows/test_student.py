"""Students that cannot learn from rows are refused when the run is planned."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import load_config
from treadle.core.engines.base_model import context_window
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.datagen.sft_rows.settings import SftRowsSettings
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig

TEACHER = {"model": "m", "api": "chat", "endpoints": [{"url": "http://127.0.0.1:9/v1"}]}
NO_SYSTEM = "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}"
NO_TURNS = "{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"


def planned(stages: tuple[str, ...] = ("pools", "sft_rows", "sft"), **options: Any) -> SftRowsSettings:
    data = {
        "flow": {"stages": stages},
        "models": {"teacher": TEACHER},
        "environment": {"python": {"enabled": False}, "search": {"enabled": False}},
        "sft_rows": options,
    }
    settings = instance(load_config(TreadleConfig, data=data), Address.parse("1/sft_rows")).settings
    assert isinstance(settings, SftRowsSettings)
    return settings


def student(folder: Path, template: str) -> Path:
    write_byte_tokenizer(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    return folder


def test_wrong_students_are_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"models.teacher .* have no token ids, .* sft_rows.tokenizer"):
        planned()
    with pytest.raises(ConfigError, match=r"sft_rows.tokenizer: there is no .*nowhere"):
        planned(tokenizer=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="drops the system message of environment default"):
        planned(tokenizer=str(student(tmp_path / "a", NO_SYSTEM)))
    with pytest.raises(ConfigError, match="does not render an assistant's turn"):
        planned(tokenizer=str(student(tmp_path / "b", NO_TURNS)))


def test_student_decides_about_digest_and_window_and_not_its_folder(tmp_path: Path) -> None:
    folder = write_byte_tokenizer(tmp_path / "a")
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 99}))
    settings = planned(tokenizer=str(folder))
    assert (settings.tokenizer, settings.context_tokens) == (folder, 99) and settings.tokenizer_digest
    moved = shutil.copytree(folder, tmp_path / "b")
    assert planned(tokenizer=str(moved)).tokenizer_digest == settings.tokenizer_digest
    (folder / "config.json").write_text("broken")
    (folder / "tokenizer_config.json").write_text("{}")
    assert context_window(folder) is None
    assert planned(("pools", "sft_rows")).tokenizer is None, "rows of text can be exported"
