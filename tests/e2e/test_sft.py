"""Adapters fine-tuned as a real stage: LLaMA-Factory trains SmolLM2 on the CPU, and vLLM serves the result.

All weights are trained in test_demo.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.servers.served_ids import check_loaded_ids, check_served_ids
from support.tables.sft_tables import run_with_rows, sft_row
from support.training.sft_training_rows import make_rows

from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.engines.environments import install
from treadle.core.engines.serving import embedded_folder
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.sft.config import SftSettings
from treadle.sft.entry import SFT_STAGE

NUM_ROWS = 12


@pytest.fixture(scope="module")
def trained(serve_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, StageRecord]]:
    """Yield a run with the checkpoint of a short training."""
    install("sft")
    tokenizer = ChatTokenizer.load(embedded_folder("tokenizer"))
    rows = [
        sft_row(f"r{index}", **{**_counts(row), "tokenizer_digest": tokenizer.digest})
        for index, row in enumerate(make_rows(tokenizer, NUM_ROWS))
    ]
    run = run_with_rows(tmp_path_factory.mktemp("sft"), rows)
    options = {"model": "embedded", "batch_size": 4, "finetuning_type": "lora", "learning_rate": 5e-3, "save_steps": 2}
    settings = load_config(SftSettings, data={"options": options})
    inputs = {"sft_rows": (Address.parse("1/sft_rows"),)}
    yield run, execute(Instance(address=Address.parse("1/sft"), stage=SFT_STAGE, settings=settings, inputs=inputs), run)


def _counts(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in row if name.startswith(("input_ids", "labels", "num_"))}


def test_training_writes_a_checkpoint_with_the_base_tokenizer(trained: tuple[Run, StageRecord]) -> None:
    run, record = trained
    assert record.metrics["steps"] == NUM_ROWS // 4 and record.metrics["rows"] == NUM_ROWS
    assert record.metrics["last_loss"] < record.metrics["first_loss"]
    (row,) = run.rows(record.outputs["checkpoint"]).rows()
    folder = run.rows(record.outputs["checkpoint"]).folder("model")
    assert row["finetuning_type"] == "lora" and not list(folder.glob("adapter*"))
    assert row["tokenizer_digest"] == ChatTokenizer.load(folder).digest
    assert {"rows.svg", "report.md", "train.yaml"} <= set(run.rows(record.outputs["checkpoint"]).file_names())
    assert not (run.storage.directory("runs") / run.run_id / "workspaces" / "1").exists() or not list(
        (run.storage.directory("runs") / run.run_id / "workspaces").rglob("events.jsonl")
    )


def test_vllm_serves_merged_adapters_and_matches_transformers(trained: tuple[Run, StageRecord]) -> None:
    check_served_ids(*trained)


def test_next_engine_loads_the_checkpoint_and_matches(trained: tuple[Run, StageRecord], trl_environment: Path) -> None:
    check_loaded_ids(*trained, "trl")
