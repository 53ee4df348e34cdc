"""The stage `dpo` around its engine: what it refuses, what it writes, and what its report says."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from support.preferences.pair_rows import pair_row
from support.tables.score_tables import new_run, put_rows

from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.engines.training import EngineOptions, Greedy
from treadle.core.engines.training_run import TrainingListener
from treadle.core.errors import ConfigError, StageFailed
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.rl.dpo import stage
from treadle.rl.dpo.config import DpoSettings
from treadle.rl.dpo.entry import DPO_STAGE
from treadle.rl.dpo.figures import dpo_report
from treadle.rl.dpo.launch import DpoFolder, PairStep, PairTraining, PairValidation
from treadle.rl.preferences.tables import PREFERENCES


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = write_byte_tokenizer(tmp_path / "base")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    return folder


class Engine:
    """Replaces `train_on_pairs`: reports two steps and copies the base model."""

    def __init__(self, base: Path, *, greedy: tuple[int, ...] = (1, 2)) -> None:
        self.plan: dict[str, Any] = {}
        self._base = base
        self._greedy = greedy

    def __call__(
        self,
        folder: DpoFolder,
        plan: dict[str, Any],
        options: EngineOptions,
        engine: Any,
        listener: TrainingListener[PairStep],
        prompt: Any,
    ) -> PairTraining:
        self.plan = plan
        folder.config.write_bytes(b'{"model": "/here", "arguments": {"output_dir": "/here/output"}}')
        listener.begin(2, 0)
        shutil.copytree(self._base, folder.model)
        steps = tuple(
            PairStep(number, 2, 0.7 - number / 10, number / 2, 0.1 * number, 4, 1e-5, 1.0, number / 2, float(number))
            for number in (1, 2)
        )
        for step in steps:
            listener.step(step)
        return PairTraining(
            model=folder.model, steps=steps, num_steps=2, num_epochs=1.0, num_trained_parameters=9, resumed_step=0,
            seconds=2.0, greedy=Greedy(self._greedy, (5.0, 5.0)), live_greedy=Greedy((1, 2), (5.0, 5.0)),
            versions={"trl": "1.16.0"}, revision="",
            validations=(PairValidation(2, 1.0, 0.6, 0.75, 0.2, 4, 3),),
        )  # fmt: skip


def train(folder: Path, base: Path, **options: Any) -> tuple[Run, StageRecord]:
    run = new_run(folder / "root")
    digest = ChatTokenizer.load(base).digest
    put_rows(run, "1/preferences@turn", PREFERENCES, [pair_row(n, tokenizer_digest=digest) for n in range(8)])
    given = {"model": str(base), "aggregate": "sum", "holdout_share": 0.3, "variant": "cpu", **options}
    settings = load_config(DpoSettings, data={"options": given})
    inputs = {"preferences": (Address.parse("1/preferences@turn"),), "checkpoint": ()}
    address = Address.parse("1/dpo@policy")
    return run, execute(Instance(address=address, stage=DPO_STAGE, settings=settings, inputs=inputs), run)


def test_checkpoint_log_and_report_are_those_of_the_training(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(base)
    monkeypatch.setattr(stage, "train_on_pairs", engine)
    run, record = train(tmp_path, base)
    assert engine.plan["aggregate"] == "sum" and engine.plan["arguments"]["eval_strategy"] == "epoch"
    rows = run.rows(record.outputs["checkpoint"])
    (row,) = rows.rows()
    assert (row["name"], row["num_steps"], row["first_loss"], row["num_rows"]) == ("1/dpo@policy", 2, 0.6, 6)
    assert row["engine"] == "trl 1.16.0, cpu" and rows.folder("model").is_dir()
    assert (record.metrics["held_out_right"], record.metrics["held_out_pairs"]) == (3, 4)
    report = dpo_report(record, run, {})
    assert "Of 4 held-out pairs, 3 are in the right order (75.0%)" in " ".join(report.sentences)
    assert [step["accuracy"] for step in report.steps] == [0.5, 1.0]
    assert "/here" not in (rows.folder("model").parent / "plan.json").read_text()


def test_pairs_beyond_the_window_of_the_model_are_left_out_and_reported(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base / "config.json").write_text('{"max_position_embeddings": 8}')
    monkeypatch.setattr(stage, "train_on_pairs", Engine(base))
    run, record = train(tmp_path, base, holdout_share=0.0, max_rows=4)
    assert (record.metrics["rows"], record.metrics["longest_row"] <= 8) == (4, True)
    assert dpo_report(record, run, {}).sentences[-2:] == [
        "2 pairs left out (over_limit): max_rows allows no more.",
        "2 pairs left out (over_window): they are longer than the context window of the model.",
    ]


def test_pairs_of_another_tokenizer_are_refused(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "train_on_pairs", lambda *_, **__: pytest.fail("it was trained"))
    other = write_byte_tokenizer(tmp_path / "other")
    (other / "config.json").write_text("{}")
    (other / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(ConfigError, match="the pairs were made with tokenizer .*, but that of dpo.model = "):
        train(tmp_path, base, model=str(other))


def test_exported_model_that_continues_differently_is_refused(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "train_on_pairs", Engine(base, greedy=(1, 9)))
    with pytest.raises(StageFailed, match="1/dpo@policy: the exported policy continues differently"):
        train(tmp_path, base)
