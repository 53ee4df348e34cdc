"""The stage `rl` with a pool of experience: what the engine gets, what the checkpoint keeps, and how flows bind it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.experience.scripted_author import records
from support.tables.rl_tables import instance, run_with_rows, scripted, workspace_of, write_policy
from support.tables.score_tables import put_rows

from treadle.core.config import load_config
from treadle.core.errors import ConfigError, EngineError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.rl.experience.files import ExperienceFiles
from treadle.rl.experience.record import Experience, read_records
from treadle.rl.experience.settings import ExperienceSettings
from treadle.rl.experience.tables import EXPERIENCE
from treadle.tasks import catalog
from treadle.tasks.config import TreadleConfig

SERVER = {"endpoints": [{"url": "http://127.0.0.1:1/v1"}]}
MODELS = {name: {"model": name, **SERVER} for name in ("base", "author", "checker")}


def rows() -> list[dict[str, Any]]:
    """Return a table with a stored record, and one that the validator refused."""
    made = []
    for record, status in zip(records("seven", "eight"), ("stored", "refused"), strict=True):
        data = record.as_json()
        del data["step"]
        made.append({**data, "record_key": record.key, "status": status, "source": "rollouts"})
    return made


def test_engine_gets_the_stored_records_and_the_checkpoint_has_the_pool_at_its_end(tmp_path: Path) -> None:
    start, run = write_policy(tmp_path / "start"), run_with_rows(tmp_path / "root")
    pool = put_rows(run, "1/experience", EXPERIENCE, rows())
    bound = instance(start, experience={"rollout_mode": "all"}, max_steps=2)
    settings = bound.settings.model_copy(update={"experience": ExperienceSettings()})
    bound = replace(bound, settings=settings, inputs={**bound.inputs, "experience": (pool,)})
    with scripted(tmp_path, at=2, do="exit 3"), pytest.raises(EngineError):
        execute(bound, run)
    job = json.loads((workspace_of(run) / "job.json").read_text())
    files = ExperienceFiles.of_job(job)
    assert files is not None and [one.advice for one in files.records(before_step=1)] == ["seven"]
    for step in (2, 9):
        files.store.add_batch([Experience("lesson", f"step {step}", "a", step=step)], "step", step)
    with scripted(tmp_path):
        record = execute(bound, run)
    path = tmp_path / "experience.jsonl"
    path.write_bytes(run.rows(record.outputs["checkpoint"]).read_file("experience.jsonl"))
    assert [(one.advice, one.step) for one in read_records([path])] == [("seven", 0), ("a", 2)]


def config(**more: Any) -> TreadleConfig:
    data = {"models": MODELS, "environment": {"search": {"enabled": False}}, **more}
    return load_config(TreadleConfig, data=data)


def made(place: str, **more: Any) -> Any:
    return catalog.instance(config(**more), Address.parse(place))


def test_training_reads_a_pool_only_if_it_begins_with_one() -> None:
    place, pool = "1/rl@phase-1", (Address.parse("1/experience"),)
    start: dict[str, Any] = {"start": "embedded"}
    assert "experience" not in made(place, rl=start).inputs and made(place, rl=start).settings.experience is None
    bound = made(place, rl={**start, "experience": {"rollout_mode": "all"}})
    assert bound.inputs["experience"] == pool and bound.settings.experience.summariser is None
    grown = {"rollout_mode": "all", "update_steps": 2, "initial": False}
    models = {"summariser": {"model": "author"}, "validator": {"model": "checker"}, "workspace": "w"}
    bound = made(place, rl={**start, "experience": grown}, experience=models)
    assert "experience" not in bound.inputs
    own = bound.settings.experience
    assert (own.summariser.name, own.validator.name, own.options.workspace) == ("author", "checker", "w")
    with pytest.raises(ConfigError, match="1/rl@phase-1: no model summarises rollouts"):
        made(place, rl={**start, "experience": grown})


def test_stage_reads_the_rollouts_of_the_policy_and_their_scores() -> None:
    bound = made("1/experience", experience={"summariser": {"model": "author"}})
    texts = {name: [str(one) for one in addresses] for name, addresses in bound.inputs.items()}
    assert texts == {
        "questions": ["1/questions"],
        "rollouts": ["1/rollouts@base"],
        "scores": ["1/scores@base"],
        "checkpoint": [],
    }
    assert bound.settings.validator.name == bound.settings.summariser.name == "author"


def test_existing_pool_alone_needs_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the pool would be empty; set experience.pool"):
        made("1/experience", experience={"initialise": False})
    path = tmp_path / "pool.jsonl"
    path.write_text("")
    bound = made("1/experience", experience={"initialise": False, "pool": [str(path)]})
    assert set(bound.inputs) == {"questions"} and bound.settings.summariser is None
    path.write_text("\n")
    again = made("1/experience", experience={"initialise": False, "pool": [str(path)]})
    assert again.settings.pool_digests != bound.settings.pool_digests
