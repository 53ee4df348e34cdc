"""Models of a resumed run: judges may change, the agents stay the initial ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run, run_exists
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.tasks.catalog import semantic_of
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.order import flow_addresses
from treadle.tasks.planning.run_setup import open_run, with_run_defaults

MODELS: dict[str, Any] = {name: {"model": name} for name in ("a", "b")}


def config(**tables: Any) -> TreadleConfig:
    alone = {"environment": {"search": {"enabled": False}}}
    return load_config(TreadleConfig, data={"models": MODELS, **alone, **tables})


def begin(root: Path, made: TreadleConfig) -> Run:
    """Return a run at which work has begun."""
    run = Run.create(root, "r", made.model_dump(mode="json"), semantic_of(made))
    run.storage.put(run.key("journal/1/rollouts@a/f/00000001.journal"), b"")
    return run


def agents(root: Path, resumed: TreadleConfig) -> list[str | None]:
    """Those of the run when it is resumed with a configuration."""
    resumed = with_run_defaults(resumed, root, "r", ask=False)
    open_run(root, "r", resumed)
    return [address.qualifier for address in flow_addresses(resumed) if address.stage == "rollouts"]


JUDGED_BY_A = {"scores": {"judges": {"models": ["a"]}}}
MORE = {"models": {**MODELS, "c": {"model": "c"}}}


@pytest.mark.parametrize("change", [{}, JUDGED_BY_A, MORE, {**MORE, "scores": {"judges": {"models": ["c"]}}}])
def test_agents_of_a_run_are_kept(tmp_path: Path, change: dict[str, Any]) -> None:
    begin(tmp_path, config())
    assert agents(tmp_path, config(**change)) == ["a", "b"]
    assert agents(tmp_path, config()) == ["a", "b"]


def test_removed_judge_stays_a_non_agent(tmp_path: Path) -> None:
    begin(tmp_path, config(**JUDGED_BY_A))
    assert agents(tmp_path, config()) == ["b"]


def test_other_agents_are_refused(tmp_path: Path) -> None:
    begin(tmp_path, config())
    for models in (["a"], ["b", "a"], ["a", "b", "c"]):
        with pytest.raises(RunError, match="flow.models"):
            agents(tmp_path, config(**MORE, flow={"models": models}))
    with pytest.raises(RunError, match=r"flow.models|models\.b"):
        agents(tmp_path, config(models={"a": {"model": "a"}}))


def test_model_named_again_keeps_its_role(tmp_path: Path) -> None:
    begin(tmp_path, config(**MORE, flow={"models": ["a", "b"]}))
    named = {"flow": {"models": ["a", "b"]}}
    with pytest.raises(RunError, match=r"models\.c\.model"):
        agents(tmp_path, config(models={**MODELS, "c": {"model": "another"}}, **named))
    assert agents(tmp_path, config(**named)) == ["a", "b"]


def test_rules_that_score_phases_are_locked(tmp_path: Path) -> None:
    begin(tmp_path, config())
    for scores in ({"f1_threshold": 0.5}, {"symbolic": False}):
        with pytest.raises(RunError, match="choose a new run id"):
            agents(tmp_path, config(scores=scores))
    address = "1/scores@a"
    assert str(Address.parse(address)) in {str(one) for one in flow_addresses(config())}
    with pytest.raises(RunError, match="choose a new run id"):
        agents(tmp_path, config(overrides={address: {"f1_threshold": 0.5}}))


def test_damaged_tokenizer_is_refused_before_a_run_is_made(tmp_path: Path) -> None:
    folder = write_byte_tokenizer(tmp_path / "tokenizer")
    made = config(models={"a": {"model": "a", "tokenizer": str(folder)}})
    whole = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be used"):
        open_run(tmp_path, "r", made)
    assert not run_exists(tmp_path, "r")
    (folder / "tokenizer.json").write_text(whole)
    open_run(tmp_path, "r", made)
    (folder / "tokenizer.json").write_text('{"model": 1}')
    open_run(tmp_path, "r", made)
