"""Fine-tuning of the embedded model by real LLaMA-Factory: killed and resumed, labels read back, LoRA merged."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.runs.processes import end_family, kill_alone, remaining, until
from support.training.sft_training_rows import as_batch, make_rows

from treadle.core.chat import ChatTokenizer
from treadle.core.engines.config import Machine
from treadle.core.engines.environments import engine_environ, python_of
from treadle.core.engines.serving import embedded_folder
from treadle.core.errors import EngineError
from treadle.sft.config import SftOptions
from treadle.sft.launch import EngineOptions, Listener, TrainingFolder, fine_tune, store_rows
from treadle.sft.llamafactory_config import plan_training, torchrun_arguments
from treadle.sft.training_plan import Paths

GOLDEN = Path(__file__).parents[1] / "unit" / "golden"
CHECKS = Path(__file__).parents[1] / "support" / "training" / "sft_checks.py"
LABEL_READER = Path(__file__).parents[1] / "support" / "training" / "sft_label_reader.py"

PARENT = """
import sys
from pathlib import Path
from treadle.sft.launch import EngineOptions, TrainingFolder, fine_tune
folder = TrainingFolder(Path(sys.argv[1]))
fine_tune(folder, Path(sys.argv[2]).read_text(), EngineOptions(variant="cpu"))
"""


@pytest.fixture
def folder(sft_environment: Path, serve_environment: Path, tmp_path: Path) -> Iterator[TrainingFolder]:
    """Yield a training's folder; its states are large and are removed at once."""
    yield TrainingFolder(tmp_path / "training")
    shutil.rmtree(tmp_path / "training", ignore_errors=True)


def config_of(folder: TrainingFolder, model: Path, rows: list[dict[str, Any]], **options: Any) -> str:
    paths = Paths(model=str(model), rows=folder.rows, output=folder.output, deepspeed=folder.deepspeed)
    longest = max(row["num_tokens"] for row in rows)
    return plan_training(SftOptions(**options), paths, Machine(variant="cpu"), longest_row=longest, seed=1).yaml()


def test_killed_training_resumes_and_keeps_the_base_tokenizer(folder: TrainingFolder, tmp_path: Path) -> None:
    base = embedded_folder("model")
    tokenizer = ChatTokenizer.load(base)
    rows = make_rows(tokenizer, 8)
    assert store_rows(folder, [as_batch(rows)]) == 8
    config = config_of(folder, base, rows, batch_size=2, save_steps=2, learning_rate=2e-4)
    (tmp_path / "given.yaml").write_text(config)

    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder.path), str(tmp_path / "given.yaml")])
    try:
        saved = '"event": "saved"'
        until(lambda: parent.poll() is not None or saved in text(folder.events), "a state is saved", limit_s=400)
        orphans = kill_alone(parent)
        assert orphans
        until(lambda: not remaining(orphans), "the training has ended with Treadle", limit_s=10.0)
    finally:
        end_family(parent)
    assert not folder.trained.exists(), "it was over before it was killed"

    prompt = rows[1]["input_ids"][: rows[1]["num_prompt_tokens"]]
    begins: list[tuple[int, int]] = []
    done = fine_tune(
        folder,
        config,
        EngineOptions(variant="cpu"),
        Listener(begin=lambda num_steps, resumed: begins.append((num_steps, resumed))),
        prompt=prompt,
    )
    assert begins == [(4, 2)] and done.resumed_step == 2
    assert [step.step for step in done.steps] == [1, 2, 3, 4] and done.num_epochs == 1.0
    assert done.steps[-1].loss < 0.7 * done.steps[0].loss
    assert done.greedy is not None and len(done.greedy.ids) == 16
    assert ChatTokenizer.load(done.model).digest == tokenizer.digest
    tuned = orjson.loads((done.model / "config.json").read_bytes())
    assert tuned["dtype"] == "bfloat16" and tuned["use_cache"] is True
    assert not list(done.model.glob("*.bin"))


def test_labels_reach_the_model_unchanged_and_adapters_are_merged(folder: TrainingFolder) -> None:
    base = embedded_folder("model")
    rows = make_rows(ChatTokenizer.load(base), 6)
    store_rows(folder, [as_batch(rows)])
    config = config_of(
        folder, base, rows, batch_size=3, finetuning_type="lora", learning_rate=1e-2, lr_scheduler_type="constant"
    )
    folder.config.write_text(config)
    prompt = json.dumps(rows[0]["input_ids"][: rows[0]["num_prompt_tokens"]])
    program = [str(python_of("sft", "cpu")), str(LABEL_READER)]
    done = subprocess.run(
        [*program, str(folder.config), str(folder.parquet), str(folder.model), prompt],
        env=engine_environ({"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "passive"}),
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout.splitlines()[-1])

    trained = [(tuple(ids), tuple(labels)) for batch in answer["batches"] for ids, labels in batch if ids]
    assert sorted(trained) == sorted((tuple(row["input_ids"]), tuple(row["labels"])) for row in rows)
    padding = [label for batch in answer["batches"] for ids, labels in batch if not ids for label in labels]
    assert padding and set(padding) == {-100}
    assert {row["num_tokens"] - row["num_prompt_tokens"] - row["num_target_tokens"] for row in rows[:3]} != {0}

    steps = events_of(folder, "step")
    # The frozen weights under the adapters stay in bf16, by hand they are in fp32.
    assert len(steps) == 2 and steps[0]["loss"] == pytest.approx(answer["loss_by_hand"], rel=5e-3)

    (merged,), (margin,) = answer["merged"]["ids"], answer["merged"]["margins"]
    alone, alone_margin = answer["with_adapter"]
    assert merged == alone or min(margin, alone_margin) < 0.1
    assert margin == pytest.approx(alone_margin, abs=0.3), "the adapter's effect is in the merged weights"
    unknown, wrong_type, wrong_choice = answer["refusals"]
    assert "unknown key 'lerning_rate' (did you mean 'learning_rate'?)" in unknown and "'lora_rnk'" in unknown
    assert "'learning_rate'" in wrong_type and "'fast'" in wrong_type
    assert "finetuning_type" in wrong_choice


@pytest.fixture(scope="module")
def checks(sft_environment: Path) -> dict[str, Any]:
    """Return what a process in the engine's environment reports without training."""
    done = subprocess.run(
        [str(python_of("sft", "cpu")), str(CHECKS), json.dumps({"golden": str(GOLDEN)})],
        env=engine_environ({"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}),
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_llamafactory_accepts_the_golden_configs(checks: dict[str, Any]) -> None:
    """The CPU build has no DeepSpeed and no Liger, so the config with ZeRO-3 is only checked for that error."""
    said = checks["golden"]
    assert "The 'deepspeed>=" in said.pop("sft-et-agent-7b.yaml") and set(said.values()) == {""}
    assert set(checks["without_kernels"]) == {path.name for path in GOLDEN.glob("sft-*.yaml")}
    assert set(checks["without_kernels"].values()) == {""}


def test_sharded_weights_are_counted_and_seen_to_change(checks: dict[str, Any]) -> None:
    moved = {"parameters": 9, "still": 0.0, "moved": 1.0, "finite": True, "unknown": True, "poisoned": True}
    assert checks["motion"] == moved


@pytest.mark.sweep
def test_training_that_changes_no_weight_is_an_error(folder: TrainingFolder) -> None:
    rows = make_rows(ChatTokenizer.load(embedded_folder("tokenizer")), 2)
    store_rows(folder, [as_batch(rows)])
    lora = {"finetuning_type": "lora", "lora_rank": 1, "warmup_ratio": 0.0, "lr_scheduler_type": "constant"}
    config = config_of(
        folder, embedded_folder("model"), rows, batch_size=1, learning_rate=1.0, logging_steps=10, **lora
    )
    with pytest.raises(EngineError, match=r"learnt nothing \(NothingLearned: the weights did not change in 2 steps\)"):
        fine_tune(folder, config.replace("learning_rate: 1.0\n", "learning_rate: 0.0\n"), EngineOptions(variant="cpu"))
    assert not folder.output.exists() and (folder.nothing_learned / "checkpoint-2").is_dir()
    assert [step["step"] for step in events_of(folder, "step")] == [2], "the last step is logged"


def test_diverged_torchrun_training_leaves_no_resumable_state(
    folder: TrainingFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The model is a hub model, so that its commit and tokenizer are reported, too."""
    base, commit = embedded_folder("model"), "c" * 40
    cached = tmp_path / "hub" / "hub" / "models--org--name"
    for path in (cached / "snapshots" / commit, cached / "refs"):
        path.mkdir(parents=True)
    for path in base.iterdir():
        (cached / "snapshots" / commit / path.name).symlink_to(path)
    (cached / "refs" / "main").write_text(commit)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    rows = make_rows(ChatTokenizer.load(base), 3)
    store_rows(folder, [as_batch(rows)])
    lora = {"finetuning_type": "lora", "lora_rank": 1, "warmup_ratio": 0.0, "lr_scheduler_type": "constant"}
    config = config_of(
        folder, Path("org/name"), rows, batch_size=1, learning_rate=1e30, logging_steps=10, save_steps=2, **lora
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        alone = SftOptions(main_port=probe.getsockname()[1], ddp_timeout_s=180_000_000)
    torchrun = tuple(torchrun_arguments(alone, Machine(variant="cpu")))
    told: list[Mapping[str, Any]] = []
    with pytest.raises(EngineError, match=r"diverged \(Diverged: weights are not finite at step 2\); lower learning"):
        fine_tune(folder, config, EngineOptions(variant="cpu", torchrun=torchrun), Listener(prepared=told.append))
    assert (folder.output / "checkpoint-2").is_dir() and folder.newest_state() is None
    assert (told[0]["revision"], told[0]["tokenizer_digest"]) == (commit, ChatTokenizer.load(base).digest)
    assert "distributed training: True" in text(folder.logs / "prepare.log")


def events_of(folder: TrainingFolder, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(orjson.loads, folder.events.read_bytes().splitlines()) if line["event"] == kind]


def test_unreachable_hub_fails_in_one_line_before_training(
    folder: TrainingFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    rows = make_rows(ChatTokenizer.load(embedded_folder("tokenizer")), 2)
    store_rows(folder, [as_batch(rows)])
    config = config_of(folder, Path("org/name"), rows, batch_size=2)
    with pytest.raises(
        EngineError, match=r"^sft\.model cannot be fetched from the model hub \(.*set a local folder"
    ) as caught:
        fine_tune(folder, config, EngineOptions(variant="cpu", offline=False))
    assert "\n" not in str(caught.value) and not (folder.logs / "train.log").exists()


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
