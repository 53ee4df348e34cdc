"""Engines of a user, in one file: trained with, killed, resumed, checked, and wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.sweep import sampled
from support.tables import rl_tables, sft_tables
from support.training import own_engines

from treadle.core.chat import ChatTokenizer
from treadle.core.config import load_config
from treadle.core.errors import ConfigError, EngineError, StageFailed, TreadleError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.sft.config import SftSettings
from treadle.sft.entry import SFT_STAGE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder to work in; the current one is that of the engines' file."""
    monkeypatch.chdir(Path(own_engines.__file__).parent)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Path:
    return rl_tables.write_policy(folder / "start")


def engine(name: str, **keys: Any) -> dict[str, Any]:
    return {"type": f"own_engines.py:{name}", **keys}


def reinforce(run: Run, start: Path, fault: str = "", **options: Any) -> StageRecord:
    own = engine("CopyRl", strength=2.0, fault=fault, trace=str(start.parent / "trace"))
    return execute(rl_tables.instance(start, **{"engine": own, "trackers": ["tensorboard"], **options}), run)


def fine_tune(run: Run, start: Path, fault: str = "", **options: Any) -> StageRecord:
    own = {"model": str(start), "engine": engine("CopySft", fault=fault), "variant": "cpu", **options}
    settings = load_config(SftSettings, data={"options": own})
    inputs = {"sft_rows": (Address.parse("1/sft_rows"),)}
    return execute(Instance(address=Address.parse("1/sft"), stage=SFT_STAGE, settings=settings, inputs=inputs), run)


@pytest.fixture
def rl_run(folder: Path) -> Run:
    return rl_tables.run_with_rows(folder / "root")


@pytest.fixture
def sft_run(folder: Path, start: Path) -> Run:
    digest = ChatTokenizer.load(start).digest
    return sft_tables.run_with_rows(folder / "root", [sft_tables.sft_row("a", tokenizer_digest=digest)])


def test_rl_engine_of_a_user_is_killed_resumed_and_checked(rl_run: Run, start: Path) -> None:
    with pytest.raises(EngineError, match="signal 9"):
        reinforce(rl_run, start, "dies")
    record = reinforce(rl_run, start)
    assert record.metrics["resumed_step"] == 2 and record.metrics["engine"] == "own_engines.py:CopyRl 1.2, cpu"
    assert (record.metrics["first_reward"], record.metrics["last_reward"]) == (0.2, 1.2)
    checkpoint = rl_run.rows(record.outputs["checkpoint"])
    (row,) = checkpoint.rows()
    assert (row["engine"], row["num_steps"], row["chosen_step"]) == ("own_engines.py:CopyRl 1.2, cpu", 6, 6)
    assert json.loads((checkpoint.folder("model") / "config.json").read_text())["trained"] is True
    assert b"<svg" in checkpoint.read_file("curves.svg")
    assert json.loads(checkpoint.read_file("plan.json"))["options"]["engine"]["strength"] == 2.0
    assert [row["step"] for row in rl_run.rows(record.outputs["rl_rollouts"]).rows()] == [1, 2, 3, 4, 5, 6]
    # Steps 1 and 2 are not taken again; the trackers of the configuration reach the engine.
    trace = (start.parent / "trace").read_text().splitlines()
    assert trace == [f"{step} ['tensorboard']" for step in range(1, 7)]
    assert reinforce(rl_run, start).reused


def test_sft_engine_of_a_user_is_killed_resumed_and_checked(sft_run: Run, start: Path) -> None:
    with pytest.raises(EngineError, match="signal 9"):
        fine_tune(sft_run, start, "dies")
    record = fine_tune(sft_run, start)
    assert (record.metrics["resumed_step"], record.metrics["steps"], record.metrics["last_loss"]) == (2, 4, 0.25)
    checkpoint = sft_run.rows(record.outputs["checkpoint"])
    (row,) = checkpoint.rows()
    assert row["engine"] == "own_engines.py:CopySft 1.2, cpu" and record.metrics["greedy_ids"] == [7, 8]
    assert json.loads((checkpoint.folder("model") / "config.json").read_text())["trained"] is True
    assert checkpoint.read_file("train.yaml").startswith(b"# Written by Treadle for own_engines.py:CopySft.\n")
    assert fine_tune(sft_run, start).reused


WRONG = [
    ("unprepared", EngineError, "was not prepared: the engine wrote no event `prepared`"),
    ("no model", EngineError, "exported no model: there is no folder /"),
    ("garbage", EngineError, r"wrote an event that cannot be used \(step.step: Input should be a valid integer"),
]
WRONG_RL = [
    ("refused", ConfigError, "CopyRl refuses the configuration of rl: there is no key 'x'"),
    ("no facts", EngineError, r"wrote an event that cannot be used \(end.step is None\)"),
    ("no name", EngineError, r"wrote an event that cannot be used \(it has no name: \[1, 2\]\)"),
    ("stops", EngineError, "took no step"),
    ("freezes", EngineError, r"hangs: it sent no events for 5 s \(stall_timeout_s\)"),
    ("other template", StageFailed, "tokenizer or chat template"),
]


@pytest.mark.parametrize(("fault", "error", "said"), [*WRONG, *WRONG_RL])
def test_wrong_rl_engine_ends_in_one_error(
    rl_run: Run, start: Path, fault: str, error: type[TreadleError], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        reinforce(rl_run, start, fault, stall_timeout_s=5.0 if fault == "freezes" else 60.0)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(("fault", "error", "said"), sampled(WRONG, WRONG[:2]))
def test_wrong_sft_engine_ends_in_one_error(
    sft_run: Run, start: Path, fault: str, error: type[TreadleError], said: str
) -> None:
    with pytest.raises(error, match=said):
        fine_tune(sft_run, start, fault)


def test_training_with_an_invalid_event_starts_again(rl_run: Run, start: Path) -> None:
    with pytest.raises(EngineError, match="cannot be used"):
        reinforce(rl_run, start, "garbage")
    metrics = reinforce(rl_run, start).metrics
    assert (metrics["resumed_step"], metrics["steps"], metrics["rollouts"]) == (0, 6, 48)
