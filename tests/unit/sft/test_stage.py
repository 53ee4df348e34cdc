"""The stage `sft` before its engine is started: what it refuses, and in which words."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tables.sft_tables import TEXT_MODE, run_with_rows, sft_row

from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.engines.base_model import base_model, folder_digest
from treadle.core.errors import ConfigError, RunError, StageFailed, TreadleError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.sft import stage
from treadle.sft.config import SftSettings
from treadle.sft.entry import SFT_STAGE
from treadle.sft.launch import EngineOptions, Listener, Training, TrainingFolder, TrainingStep


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = write_byte_tokenizer(tmp_path / "base")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def train(run: Run, model: Path | str, checkpoint: tuple[Address, ...] = (), **options: Any) -> None:
    settings = load_config(SftSettings, data={"options": {"model": str(model), **options}})
    inputs = {"sft_rows": (Address.parse("1/sft_rows"),), "checkpoint": checkpoint}
    execute(Instance(address=Address.parse("1/sft"), stage=SFT_STAGE, settings=settings, inputs=inputs), run)


def test_rows_of_another_tokenizer_are_refused(tmp_path: Path, base: Path) -> None:
    run = run_with_rows(tmp_path / "root", [sft_row("a"), sft_row("b")])
    with pytest.raises(
        ConfigError,
        match="made with tokenizer t, but that of sft.model = .*; set it, or sft_rows.tokenizer, to the other",
    ):
        train(run, base)


def test_training_fails_if_all_rows_lack_ids_or_are_too_long(tmp_path: Path, base: Path) -> None:
    run = run_with_rows(tmp_path / "root", [sft_row("a", **TEXT_MODE), sft_row("b", said=50)])
    with pytest.raises(StageFailed, match=r"0 of 2 rows can be trained on \(text_mode 1, too_long 1\)"):
        train(run, base, cutoff_tokens=20)


@pytest.mark.parametrize(
    ("model", "said"), [("./nowhere", "folder ./nowhere does not exist"), ("{tmp}", "has no config.json")]
)
def test_invalid_model_is_reported_by_name(tmp_path: Path, model: str, said: str) -> None:
    run = run_with_rows(tmp_path / "root", [sft_row("a")])
    with pytest.raises(TreadleError, match=said):
        train(run, model.format(tmp=tmp_path))


def test_missing_image_library_is_reported_before_training(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with_rows(tmp_path / "root", [sft_row("a", tokenizer_digest=ChatTokenizer.load(base).digest)])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(stage, "fine_tune", lambda *_, **__: pytest.fail("it was trained"))
    with pytest.raises(ConfigError, match="matplotlib: pip install"):
        train(run, base)


class Engine:
    """Replaces `fine_tune`: records the base model, and returns a folder with a tokenizer."""

    def __init__(self, tokenizer: Path, *, told: str, revision: str = "") -> None:
        self.began = False
        self.options = EngineOptions()
        self._prepared = {"tokenizer_digest": told, "revision": revision}
        self._tokenizer = tokenizer

    def __call__(
        self, folder: TrainingFolder, yaml: str, options: EngineOptions, listener: Listener, prompt: Any
    ) -> Training:
        self.options = options
        listener.prepared(self._prepared)
        self.began = True
        listener.begin(1, 0)
        shutil.copytree(self._tokenizer, folder.model)
        step = TrainingStep(**{name: 1 for name in TrainingStep.__slots__})
        versions = {"llamafactory": "0"}
        return Training(
            model=folder.model, steps=(step,), num_steps=1, num_epochs=1.0, num_trained_parameters=1, resumed_step=0,
            seconds=1.0, greedy=None, versions=versions, **self._prepared,
        )  # fmt: skip


def own_rows(root: Path, base: Path) -> Run:
    """Rows made with the tokenizer of `base`."""
    return run_with_rows(root, [sft_row("a", tokenizer_digest=ChatTokenizer.load(base).digest)])


def test_rows_with_another_tokenizer_than_the_hub_id_are_refused_before_a_step(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(base, told="another")
    monkeypatch.setattr(stage, "fine_tune", engine)
    with pytest.raises(
        ConfigError,
        match="but that of sft.model = org/name is another; set it, or sft_rows.tokenizer, to the other",
    ):
        train(own_rows(tmp_path / "root", base), "org/name")
    assert not engine.began


def test_checkpoint_with_another_tokenizer_than_its_rows_is_not_exported(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "fine_tune", Engine(base, told="t"))
    run = run_with_rows(tmp_path / "root", [sft_row("a")])
    with pytest.raises(StageFailed, match="chat template of the checkpoint differs from that of the rows"):
        train(run, "org/name")


def test_checkpoint_contains_the_commit_of_its_hub_id(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = ChatTokenizer.load(base).digest
    monkeypatch.setattr(stage, "fine_tune", Engine(base, told=digest, revision="c0ffee"))
    run = own_rows(tmp_path / "root", base)
    train(run, "org/name")
    record = run.record(Address.parse("1/sft"))
    assert record is not None
    (row,) = run.rows(record.outputs["checkpoint"]).rows()
    assert row["base_model"] == "org/name" and row["base_digest"] == "c0ffee"


def test_engine_sees_as_many_gpus_as_are_configured(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    engine = Engine(base, told=ChatTokenizer.load(base).digest)
    monkeypatch.setattr(stage, "fine_tune", engine)
    train(own_rows(tmp_path / "root", base), base, variant="cuda", devices=[3, 1])
    assert (engine.options.devices, engine.options.num_devices) == ((3, 1), 2)


def test_checkpoint_contains_no_local_paths(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "fine_tune", Engine(base, told=ChatTokenizer.load(base).digest))
    made = []
    for machine in ("one", "two"):
        cache = shutil.copytree(base, tmp_path / machine / "cache é")
        monkeypatch.setattr(stage, "base_model", lambda *_, cache=cache, **__: cache)
        run = own_rows(tmp_path / machine / "root é", base)
        train(run, "embedded", variant="cpu")
        record = run.record(Address.parse("1/sft"))
        assert record is not None
        made.append(run.rows(record.outputs["checkpoint"]).read_file("train.yaml"))
    assert made[0] == made[1] and b"model_name_or_path: embedded" in made[0] and b"./rows" in made[0]


def test_missing_checkpoint_is_requested(tmp_path: Path) -> None:
    run = run_with_rows(tmp_path / "root", [sft_row("a")])
    with pytest.raises(RunError, match="1/sft@first, which has not been run"):
        train(run, "1/sft@first", (Address.parse("1/sft@first"),))


def test_hub_id_is_unchanged_and_folders_are_identified_by_their_files(base: Path) -> None:
    assert base_model("org/name", (), key="x") == "org/name" and base_model(str(base), (), key="x") == base
    before = folder_digest(str(base))
    assert before and folder_digest("org/name") == "" and folder_digest("embedded") == ""
    (base / "model.safetensors").write_bytes(b"Weights")
    assert folder_digest(str(base)) != before
