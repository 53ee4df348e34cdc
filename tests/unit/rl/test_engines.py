"""Engines of training as entries of registries: how they are named, what is refused, and what fingerprints see."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.training import own_engines

from treadle.core.config import load_config, semantic_dump
from treadle.core.engines.config import Machine
from treadle.core.engines.training import find_machine
from treadle.core.errors import ConfigError
from treadle.rl.config import RlOptions
from treadle.rl.curriculum import PhaseRollouts
from treadle.rl.selection.settings import SelectionOptions
from treadle.rl.training.phase_check import check_training
from treadle.rl.training.plan import RlPlan
from treadle.rl.training_engine import RL_ENGINES
from treadle.sft.config import SftOptions
from treadle.tasks.config import TreadleConfig

MODULE = "support.training.own_engines"


def rl(engine: Any, **keys: Any) -> RlOptions:
    return load_config(RlOptions, data={"engine": engine, "variant": "cpu", **keys})


def test_engine_without_keys_is_its_type_in_dumps_and_fingerprints() -> None:
    for options in (RlOptions(), rl("trl"), rl({"type": "trl"})):
        assert options.model_dump(mode="json")["engine"] == semantic_dump(options)["engine"] == "trl"
    assert semantic_dump(SftOptions())["engine"] == "llamafactory"
    assert RlOptions(preset="et-agent-7b").engine.type == "verl"


def test_engine_with_keys_is_a_table_and_survives_a_plan() -> None:
    options = rl({"type": f"{MODULE}:CopyRl", "strength": 0.5, "fault": "dies"})
    semantic = semantic_dump(options)["engine"]
    assert semantic == {"type": f"{MODULE}:CopyRl", "code_sha256": "", "strength": 0.5}
    plan = RlPlan(options=options, num_rows=4)
    assert RlPlan.from_json(plan.to_json()) == plan


def test_edited_file_of_an_engine_changes_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = shutil.copy(own_engines.__file__, tmp_path / "mine.py")
    monkeypatch.chdir(tmp_path)
    before = semantic_dump(rl("mine.py:CopyRl"))["engine"]
    assert len(before["code_sha256"]) == 64 and "code_file" not in before
    with Path(file).open("a") as source:
        source.write("# edited\n")
    assert semantic_dump(rl("mine.py:CopyRl"))["engine"] != before


def test_entry_point_is_an_engine_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"treadle.rl_engines": {"copy": f"{MODULE}:CopyRl"}, "treadle.sft_engines": {"copy": f"{MODULE}:CopySft"}}
    monkeypatch.setattr("treadle.core.registry.entry_point_places", lambda group: points.get(group, {}))
    assert isinstance(rl("copy").engine, own_engines.CopyRl)
    assert isinstance(load_config(SftOptions, data={"engine": "copy"}).engine, own_engines.CopySft)
    assert RL_ENGINES.known() == ["trl", "verl", "copy"]


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ("ppo", "'engine': type = 'ppo' is unknown; known: trl, verl; or name your own as my_engine.py:MyEngine"),
        ({"type": "trl", "beta": 1}, "unknown config key 'engine.beta'|unknown config key 'beta'"),
        (f"{MODULE}:CopySft", "is not derived from treadle.api.RlEngine"),
        ("treadle.api:RlEngine", r"has no method check\(job, events\)"),
        (f"{MODULE}:Gone", "Gone cannot be loaded"),
    ],
)
def test_wrong_engine_is_refused_by_name(engine: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rl(engine)


def test_key_that_an_own_engine_refuses_is_named_before_anything_is_sampled() -> None:
    rollouts = PhaseRollouts(samples_per_question=8)
    own = f"{MODULE}:CopyRl"
    check_training(rl(own), SelectionOptions(), rollouts, "1/rl@phase-1")
    with pytest.raises(ConfigError, match="1/rl@phase-1: rl.tensor_parallel: CopyRl has one process; set it to 1"):
        check_training(rl(own, tensor_parallel=2), SelectionOptions(), rollouts, "1/rl@phase-1")
    with pytest.raises(ConfigError, match="'group_size' is not passed through: write it as `rl.group_size`"):
        rl(own, extra={"group_size": 4})
    with pytest.raises(ConfigError, match="'batch_size' is not passed through: write it as `sft.batch_size`"):
        load_config(SftOptions, data={"engine": f"{MODULE}:CopySft", "extra": {"batch_size": 4}})


def test_own_interpreter_has_every_build() -> None:
    options = rl(f"{MODULE}:CopyRl")
    assert find_machine(options.engine, options, 1) == Machine(variant="cpu")
    assert options.engine.choose_variant("cuda") == "cuda"


def test_engine_may_be_a_text_or_a_table_in_forms() -> None:
    schema = TreadleConfig.model_json_schema()
    places = (("RlOptions", "AnyRlEngine", ["trl", "verl"]), ("SftOptions", "AnySftEngine", ["llamafactory"]))
    for section, name, names in places:
        engine = schema["$defs"][section]["properties"]["engine"]
        assert engine["$ref"] == f"#/$defs/{name}"
        kinds = [one.get("title") for one in schema["$defs"][name]["anyOf"]]
        assert kinds == [*names, "class in a file or module", "type alone"], json.dumps(engine)
        assert engine["default"] == names[0]
