"""Whole texts, published or rewritten, become rows on which real LLaMA-Factory trains, with the same masks."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.servers.hosted_service import hosted
from support.tables.score_tables import new_run
from support.teacher import rewrite
from support.training.sft_training_rows import as_batch

from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.engines.config import Machine
from treadle.core.engines.environments import engine_environ, python_of
from treadle.core.engines.serving import embedded_folder
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.sft.config import SftOptions
from treadle.sft.launch import TrainingFolder, store_rows
from treadle.sft.llamafactory_config import plan_training
from treadle.sft.training_plan import Paths
from treadle.tasks.catalog import flow_instances
from treadle.tasks.config import TreadleConfig

pytestmark = pytest.mark.sweep

LABEL_READER = Path(__file__).parents[1] / "support" / "training" / "sft_label_reader.py"
SMALL = """
import shutil, sys
from pathlib import Path
from transformers import AutoConfig, AutoModelForCausalLM
base, target = map(Path, sys.argv[1:])
shutil.copytree(base, target, ignore=shutil.ignore_patterns("*.safetensors"))
config = AutoConfig.from_pretrained(base)
config.update(dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16))
AutoModelForCausalLM.from_config(config).save_pretrained(target)
"""
IDS = ("input_ids", "labels", "num_tokens", "num_prompt_tokens", "num_target_tokens")
OPTIONS = {"batch_size": 2, "finetuning_type": "lora", "learning_rate": 1e-3, "precision": "fp32"}
"""Of the training; in fp32, which no CPU emulates."""
WHITE_SPACE = (("\n", "\n\n"), (" ", "\n"), ("", "\n\n\n"), ("\n\n", ""))
"""White space before and after observations: the original masks the first kind only."""


def published_row(name: str, before: str, after: str) -> dict[str, str]:
    """Return a row as Agent Foundation Models publishes them, of three searches."""
    steps = "".join(
        f"<think>step {n}</think>\n<wiki_search>query {n} of {name}</wiki_search>{before}"
        f"<observation>\nDoc 1 (Title: {name})\nfact {n} of {name}\n</observation>{after}"
        for n in range(3)
    )
    text = f"{steps}<think>done</think>\n<answer>{name}</answer>"
    return {"instruction": "Search one by one.", "input": name, "output": text}


def in_sft_environment(*words: str) -> str:
    """Run Python in the environment of the engine `sft` and return what it prints."""
    done = subprocess.run(
        [str(python_of("sft", "cpu")), *words],
        env=engine_environ({"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "passive"}),
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def model(sft_environment: Path, serve_environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model of a few layers with the tokenizer of the embedded one, whose rows are too long for two cores."""
    folder = tmp_path_factory.mktemp("small") / "model"
    in_sft_environment("-c", SMALL, str(embedded_folder("model")), str(folder))
    return folder


def config(folder: Path, url: str, source: str, model: Path) -> TreadleConfig:
    names = ("good", "chain", "good again", "changed")
    rows = [published_row(name, *spaces) for name, spaces in zip(names, WHITE_SPACE, strict=True)]
    (folder / "mhqa.json").write_text(json.dumps(rows))
    texts = [{"path": str(folder / "mhqa.json")}]
    sft_rows: dict[str, Any] = {"tokenizer": str(model)}
    data: dict[str, Any] = {
        "flow": {"stages": ["sft_rows", "sft"]},
        "sft_rows": sft_rows,
        "sft": {"model": str(model), **OPTIONS},
    }
    if source == "texts":
        sft_rows["texts"] = texts
    else:
        data["flow"]["stages"].insert(0, "conversion")
        data["models"] = {"teacher": {"model": "scripted", "api": "chat", "endpoints": [{"url": url}]}}
        data["environments"] = {
            "parallel": {"type": "planning", "dialect": "gap", "instructions": "Plan, search, answer."}
        }
        data["conversion"] = {
            "teacher": {"model": "teacher"},
            "environment": "parallel",
            "texts": texts,
            "attempts": 1,
            "parallel_share": None,
        }
    return load_config(TreadleConfig, data=data)


async def made(folder: Path, source: str, model: Path) -> Run:
    """Return a run whose flow was made for real, from the texts to the checkpoint."""
    run = new_run(folder / "run")
    async with hosted(rewrite) as server:
        for one in flow_instances(config(folder, server.url, source, model)):
            await asyncio.to_thread(execute, one, run)
    return run


def labels_of_the_trainer(
    folder: TrainingFolder, model: Path, rows: list[dict[str, Any]]
) -> list[tuple[list[int], list[int]]]:
    """Return the ids and labels that reach the model in a training by LLaMA-Factory on these rows."""
    store_rows(folder, [as_batch(rows)])
    paths = Paths(model=str(model), rows=folder.rows, output=folder.output, deepspeed=folder.deepspeed)
    longest = max(row["num_tokens"] for row in rows)
    plan = plan_training(SftOptions.model_validate(OPTIONS), paths, Machine(variant="cpu"), longest_row=longest, seed=1)
    folder.config.write_text(plan.yaml())
    prompt = json.dumps(rows[0]["input_ids"][: rows[0]["num_prompt_tokens"]])
    said = in_sft_environment(str(LABEL_READER), str(folder.config), str(folder.parquet), str(folder.model), prompt)
    batches = json.loads(said.splitlines()[-1])["batches"]
    return [(ids, labels) for batch in batches for ids, labels in batch if ids]


def check_masks(row: Mapping[str, Any], tokenizer: ChatTokenizer) -> None:
    """Check that the loss is on all that the model writes, and on nothing of observations."""
    pairs = list(zip(row["input_ids"], row["labels"], strict=True))[row["num_prompt_tokens"] :]
    learnt = tokenizer.decode([one for one, label in pairs if label >= 0])
    masked = tokenizer.decode([one for one, label in pairs if label < 0])
    whole = tokenizer.decode([one for one, _ in pairs])
    assert masked.count("<observation>") == masked.count("</observation>") == masked.count("Doc 1") == 3
    assert not [text for text in ("observation", "Doc 1", "fact") if text in learnt]
    for written in ("<think", "<plan", "T1: ", "<wiki_search", "query ", "<answer", "</answer>"):
        assert learnt.count(written) == whole.count(written), written


@pytest.mark.covers("planning-15")
@pytest.mark.parametrize(("source", "num_rows"), [("conversion", 3), ("texts", 4)])
async def test_trainer_masks_observations_of_whole_texts(
    model: Path, tmp_path: Path, source: str, num_rows: int
) -> None:
    run = await made(tmp_path, source, model)
    record = run.record(Address.parse("1/sft_rows"))
    trained = run.record(Address.parse("1/sft"))
    assert record is not None and trained is not None
    assert trained.metrics["rows"] == num_rows and trained.metrics["steps"] == 2
    tokenizer = ChatTokenizer.load(model)
    rows = list(run.rows(record.outputs["sft_rows"]).rows())
    assert len(rows) == num_rows
    for row in rows:
        check_masks(row, tokenizer)
    read = labels_of_the_trainer(
        TrainingFolder(tmp_path / "reading"), model, [{name: row[name] for name in IDS} for row in rows]
    )
    assert sorted(read) == sorted((row["input_ids"], row["labels"]) for row in rows)
