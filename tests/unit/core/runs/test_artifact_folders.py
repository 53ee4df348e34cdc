"""Folders inside artifacts: moved in whole, part of the digest, checked when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import Section
from treadle.core.errors import ArtifactError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.store.artifacts import verify_artifact
from treadle.sft.tables import TRAINING_LOG

ROW = {
    "step": 1,
    "epoch": 1.0,
    "loss": 0.5,
    "learning_rate": 0.1,
    "grad_norm": None,
    "seconds": 2.0,
}
GIVEN = Address.parse("1/make")


class Content(Section):
    text: str = "weights"
    link: bool = False


def make(context: StageContext) -> Mapping[str, Any]:
    model = context.scratch / "made"
    (model / "deep").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "deep" / "weights.bin").write_text(context.settings.text)
    if context.settings.link:
        (model / "link").symlink_to("/etc/hostname")
    context.add_folder(TRAINING_LOG.kind, "model", model)
    context.write(TRAINING_LOG.kind, [ROW])
    return {}


MAKE = Stage(name="make", version=1, settings=Content, produces=(TRAINING_LOG,), run=make)


def read(context: StageContext) -> Mapping[str, Any]:
    tables = context.inputs["given"]
    return {"found": [str(table.folder("model").name) for table in tables]}


READ = Stage(
    name="read",
    version=1,
    settings=Section,
    consumes={"given": TRAINING_LOG.kind},
    optional=frozenset({"given"}),
    produces=(),
    run=read,
)


def made(run: Run, **settings: Any) -> Any:
    return execute(Instance(address=GIVEN, stage=MAKE, settings=Content(**settings)), run)


def test_folder_is_part_of_the_digest_and_round_trips(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r", {}, {})
    first = made(run).outputs[TRAINING_LOG.kind]
    folder = run.rows(first).folder("model")
    assert (folder / "deep" / "weights.bin").read_text() == "weights"
    assert sorted(run.rows(first).file_names())[1:3] == ["model/config.json", "model/deep/weights.bin"]
    assert made(run, text="others").outputs[TRAINING_LOG.kind].digest != first.digest
    with pytest.raises(ArtifactError, match="no folder 'deep'"):
        run.rows(first).folder("deep")


def test_changed_file_in_a_folder_is_detected(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r", {}, {})
    ref = made(run).outputs[TRAINING_LOG.kind]
    (tmp_path / ref.folder / "model" / "deep" / "weights.bin").write_text("WEIGHTS")
    with pytest.raises(ArtifactError, match="weights.bin has changed"):
        run.rows(ref).folder("model")
    assert verify_artifact(run.storage, ref) == [
        f"{ref.folder}/model/deep/weights.bin has changed since it was written"
    ]


def test_link_in_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="link is not a regular file"):
        made(Run.create(tmp_path, "r", {}, {}), link=True)


def test_optional_input_may_be_unbound(tmp_path: Path) -> None:
    run = Run.create(tmp_path, "r", {}, {})
    address = Address.parse("1/read")
    alone = execute(Instance(address=address, stage=READ, settings=Section()), run)
    assert alone.metrics == {"found": []}
    with pytest.raises(RunError, match="1/make, which has not been run"):
        execute(Instance(address=address, stage=READ, settings=Section(), inputs={"given": (GIVEN,)}), run)
    made(run)
    with_input = execute(Instance(address=address, stage=READ, settings=Section(), inputs={"given": (GIVEN,)}), run)
    assert with_input.metrics == {"found": ["model"]} and with_input.fingerprint != alone.fingerprint
