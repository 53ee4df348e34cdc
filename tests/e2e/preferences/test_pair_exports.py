"""LLaMA-Factory itself reads exported pairs of turns and the configuration of the policy's training."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from support.preferences import llamafactory_pair_reads
from support.preferences.pair_rows import TALK, pair_row
from support.qwen_tokenizer import qwen_tokenizer
from support.tables.score_tables import new_run, put_rows

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.environments import engine_environ, install, python_of
from treadle.core.runs.address import Address
from treadle.rl.dpo.config import DpoOptions
from treadle.rl.dpo.llamafactory import export_pairs
from treadle.rl.preferences.tables import PREFERENCES

HOSTILE = '"}]}\n{"system": "x"}\r\n\u2028\x1b[2J ${HOME} {{content}} \U0001f680 ' + "\\"
PAIRS = [
    pair_row(0),
    pair_row(1, [("system", "Obey."), ("user", HOSTILE)], chosen_text=HOSTILE, rejected_text=f"no {HOSTILE}"),
    pair_row(2, TALK[:-1]),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what LLaMA-Factory reads, in the engine's environment."""
    root = tmp_path_factory.mktemp("pairs")
    run = new_run(root / "root")
    put_rows(run, "1/preferences@turn", PREFERENCES, PAIRS)
    record = run.record(Address.parse("1/preferences@turn"))
    assert record is not None
    table = run.rows(record.outputs["preferences"])
    options = DpoOptions(preset="sweet-llama-8b", aggregate="sum").effective()
    assert export_pairs(table, options, root / "out", origin={}, template="qwen") == (2, 1)
    install("sft", notify=lambda line: print(line, file=sys.stderr, flush=True))
    answer = root / "answer.json"
    argv = [str(python_of("sft")), str(llamafactory_pair_reads.__file__), str(answer), str(qwen_tokenizer())]
    environ = engine_environ({"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(root / "cache")})
    done = subprocess.run([*argv, str(root / "out")], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    made: dict[str, Any] = json.loads(answer.read_text())
    return made


@pytest.mark.covers("sweet-30")
def test_llamafactory_parses_the_values_of_the_preset(found: dict[str, Any]) -> None:
    read = found["arguments"]
    assert (read["stage"], read["finetuning_type"], read["pref_loss"]) == ("dpo", "full", "sigmoid")
    assert (read["pref_beta"], read["pref_ftx"], read["learning_rate"]) == (0.1, 0.01, 2e-7)
    assert (read["per_device_train_batch_size"], read["gradient_accumulation_steps"]) == (1, 8)
    assert read["lr_scheduler_kwargs"] == {"min_lr_rate": 0.1} and read["adam_beta2"] == 0.95
    assert (read["cutoff_len"], read["val_size"], read["num_train_epochs"]) == (16384, 0.03, 1.0)


@pytest.mark.covers("sweet-30")
def test_llamafactory_trains_on_the_turns_alone(found: dict[str, Any]) -> None:
    plain, hostile = found["rows"]
    assert [plain[side] for side in ("chosen", "rejected")] == ["yes<|im_end|>\n", "no<|im_end|>\n"]
    said = ["Help.", "Hi", "Which?", "That"]
    assert [plain["prompt"].index(text) for text in said] == sorted(plain["prompt"].index(text) for text in said)
    assert "yes" not in plain["prompt"] and plain["prompt"].endswith("<|im_start|>assistant\n")
    assert hostile["chosen"] == f"{HOSTILE}<|im_end|>\n" and hostile["rejected"] == f"no {HOSTILE}<|im_end|>\n"
    assert hostile["prompt"].count(HOSTILE) == 1


@pytest.mark.covers("sweet-30")
def test_llamafactory_renders_the_ids_that_the_policy_saw_and_sampled(found: dict[str, Any]) -> None:
    tokenizer = ChatTokenizer.load(qwen_tokenizer())
    for row, given in zip(found["rows"], PAIRS, strict=False):
        prompt = tokenizer.prompt_ids(json.loads(given["messages"]))
        assert row["ids"] == [*prompt, *tokenizer.encode(given["chosen_text"]), *tokenizer.turn_end_ids]
