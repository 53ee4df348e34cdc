"""Fine-tuning as a stage, for real: LLaMA-Factory trains SmolLM2 on the CPU, and vLLM serves what came of it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sft_tables import run_with_rows, sft_row
from support.sft_training_rows import make_rows

from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.engines.config import VllmServer
from treadle.core.engines.environments import install
from treadle.core.engines.serving import embedded_folder, serve
from treadle.core.execute import execute
from treadle.core.records import StageRecord
from treadle.core.runs import Run
from treadle.core.stage import Address, Instance
from treadle.sft.config import SftSettings
from treadle.sft.stage import SFT

NUM_ROWS = 12
CLOSE_CALL = 0.15
"""Margin of log-probabilities within which two engines may choose differently: a logit of 16 to 32 has steps of 0.125
in the 16 bits in which transformers computes here."""


@pytest.fixture(scope="module")
def trained(serve_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, StageRecord]]:
    """A run with the checkpoint of a short training."""
    install("sft")
    tokenizer = ChatTokenizer.load(embedded_folder("tokenizer"))
    rows = [
        sft_row(f"r{index}", **{**_counts(row), "tokenizer_digest": tokenizer.digest})
        for index, row in enumerate(make_rows(tokenizer, NUM_ROWS))
    ]
    run = run_with_rows(tmp_path_factory.mktemp("sft"), rows)
    options = {"model": "embedded", "batch_size": 4, "learning_rate": 1e-4, "save_steps": 2}
    settings = load_config(SftSettings, data={"options": options})
    inputs = {"sft_rows": (Address.parse("1/sft_rows"),)}
    yield run, execute(Instance(address=Address.parse("1/sft"), stage=SFT, settings=settings, inputs=inputs), run)


def _counts(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in row if name.startswith(("input_ids", "labels", "num_"))}


def test_a_training_makes_a_checkpoint_with_the_tokenizer_of_its_base(trained: tuple[Run, StageRecord]) -> None:
    run, record = trained
    assert record.metrics["steps"] == NUM_ROWS // 4 and record.metrics["rows"] == NUM_ROWS
    assert record.metrics["last_loss"] < record.metrics["first_loss"]
    (row,) = run.rows(record.outputs["checkpoint"]).rows()
    folder = run.rows(record.outputs["checkpoint"]).folder("model")
    assert row["tokenizer_digest"] == ChatTokenizer.load(folder).digest
    assert {"rows.svg", "report.md", "train.yaml"} <= set(run.rows(record.outputs["checkpoint"]).file_names())
    assert not (run.storage.directory("runs") / run.run_id / "workspaces" / "1").exists() or not list(
        (run.storage.directory("runs") / run.run_id / "workspaces").rglob("events.jsonl")
    )


def test_vllm_serves_the_checkpoint_and_says_what_transformers_says(trained: tuple[Run, StageRecord]) -> None:
    run, record = trained
    folder = run.rows(record.outputs["checkpoint"]).folder("model")
    made = run.record(Address.parse("1/sft_rows"))
    assert made is not None
    first = next(run.rows(made.outputs["sft_rows"]).rows(["input_ids", "num_prompt_tokens"]))
    prompt = first["input_ids"][: first["num_prompt_tokens"]]
    with serve(VllmServer(model=str(folder), max_model_len=512, dtype="float32"), model_name="tuned") as served:
        body = {
            "model": "tuned",
            "prompt": prompt,
            "max_tokens": len(record.metrics["greedy_ids"]),
            "temperature": 0.0,
            "return_token_ids": True,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"{served.url}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            ids = json.load(reply)["choices"][0]["token_ids"]
    expected = record.metrics["greedy_ids"]
    same = next((place for place, pair in enumerate(zip(ids, expected, strict=True)) if pair[0] != pair[1]), None)
    assert same is None or record.metrics["greedy_margins"][same] < CLOSE_CALL, (ids, expected)
