"""`treadle export model` and `export dataset`: whole folders, and cards that describe their origin."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result
from support.tables.score_tables import put_rows
from support.tables.viewer_run import agent_row, filled, put_from, question_row

from treadle.cli.commands.export import export
from treadle.core.config import Section
from treadle.core.engines.base_model import folder_digest
from treadle.core.errors import ArtifactError, RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import CHECKPOINTS
from treadle.datagen.questions.tables import QUESTIONS
from treadle.datagen.sft_rows.tables import SFT_ROWS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES

HOSTILE = "\x1b]0;owned\x07\u202e|# [x](javascript:1)`"
WEIGHTS = b"weights" * 1000


class Trained(Section):
    base: str
    digest: str = ""
    corpus: str = "/home/somebody/secret-project/corpus.jsonl"
    prompt: str = "```\nnot the end\n````"


def train(run: Run, address: str, base: str, digest: str = "", after: str | None = None) -> None:
    """Make `address` a checkpoint of fine-tuning rows, or of another checkpoint."""

    def body(context: StageContext) -> Mapping[str, Any]:
        settings = context.settings
        facts = {"name": address, "base_model": settings.base, "base_digest": settings.digest, "num_steps": 40}
        losses = {"first_loss": 2.0, "last_loss": 0.25, "engine": f"engine{HOSTILE}", "versions": "{}"}
        context.write("checkpoint", [filled(CHECKPOINTS, **facts, **losses)])
        folder = context.scratch / "model"
        (folder / "nested").mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"made": address}))
        (folder / "model.safetensors").write_bytes(WEIGHTS)
        (folder / "README.md").write_text("the engine's own card")
        (folder / "nested" / "tokenizer.json").write_text("{}")
        context.add_folder("checkpoint", "model", folder)
        return {}

    place = Address.parse(address)
    source = {"checkpoint": "checkpoint"} if after else {"sft_rows": "sft_rows"}
    stage = Stage(name=place.stage, version=1, settings=Trained, consumes=source, produces=(CHECKPOINTS,), run=body)
    inputs = {next(iter(source)): (Address.parse(after or "1/sft_rows"),)}
    execute(Instance(address=place, stage=stage, settings=Trained(base=base, digest=digest), inputs=inputs), run)


class Sampled(Section):
    model: dict[str, Any]


def sample(run: Run, address: str, checkpoint: str, server: str | None, right: int) -> None:
    """Ten rollouts and their scores; `server`: the model that the agent's server loaded."""
    place = Address.parse(address)
    rows = [agent_row(ROLLOUTS, f"{place.qualifier}-{n}", f"q{n}", ("answer", "x")) for n in range(10)]

    def write(context: StageContext) -> Mapping[str, Any]:
        context.write("rollouts", rows)
        return {}

    stage = Stage(
        name="rollouts", version=1, settings=Sampled, consumes={"checkpoint": "checkpoint"},
        produces=(ROLLOUTS,), run=write,
    )  # fmt: skip
    settings = Sampled(model={"server": {"type": "vllm", "model": server} if server else None})
    inputs = {"checkpoint": (Address.parse(checkpoint),)}
    execute(Instance(address=place, stage=stage, settings=settings, inputs=inputs), run)
    scores = [
        filled(
            SCORES, rollout_key=row["rollout_key"], question_key=row["question_key"], dataset=f"world{HOSTILE}",
            domain="qa", model=place.qualifier, status="answered", correct=place_ < right, score=float(place_ < right),
            judges="{}", scorer="qa_f1",
        )
        for place_, row in enumerate(rows)
    ]  # fmt: skip
    put_from(run, f"1/scores@{place.qualifier}", {"scores": scores, "judgements": []}, {"rollouts": place})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run.create(tmp_path / "outputs", "first", {}, {})
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", "Which river?")])
    put_from(run, "1/sft_rows", {"sft_rows": [filled(SFT_ROWS, rollout_key="p1")]},
             {"questions": Address(1, "questions")})  # fmt: skip
    train(run, "1/sft", "embedded")
    train(run, "1/rl@phase-1", "1/sft", after="1/sft")
    sample(run, "1/rollouts@tuned", "1/sft", "1/sft", 7)
    sample(run, "1/rollouts@other", "1/sft", None, 9)
    return run


def command(run: Run, *arguments: str) -> Result:
    options = [*arguments, "--run", "first", "--root", run.storage.location()]
    return CliRunner().invoke(export, options, catch_exceptions=False)


def head_of(card: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(card.split("---\n")[1])
    return found


def test_exported_model_is_complete_and_its_card_has_base_data_and_scores(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "model"
    told = json.loads(command(run, "model", "--instance", "1/sft", "--out", str(out), "--json").stdout)
    assert (out / "model.safetensors").read_bytes() == WEIGHTS
    assert (out / "nested/tokenizer.json").read_text() == "{}"
    assert json.loads((out / "config.json").read_text()) == {"made": "1/sft"}
    card = (out / "README.md").read_text()
    head = head_of(card)
    assert (head["base_model"], head["license"]) == ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")
    assert head["pipeline_tag"] == "text-generation"
    record = run.record(Address(1, "sft"))
    assert record is not None
    assert record.outputs["checkpoint"].digest in card and record.inputs["sft_rows"][0].artifact.digest in card
    assert "| steps" in card and "0.25" in card
    (scored,) = re.findall(r"\| 1/scores@tuned .*correctness.*", card)
    assert "| 0.7 |" in re.sub(" +", " ", scored) and "scores@other" not in card, "that one only summarized searches"
    assert "secret-project" not in card and "corpus.jsonl" in card
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", card) and "[x](javascript" not in card.replace("\\[", "")
    facts = json.loads((out / "export.json").read_text())
    assert facts["digest"] == told["digest"] == record.outputs["checkpoint"].digest
    assert [origin["instance"] for origin in facts["made_of"]] == ["1/sft", "1/sft_rows", "1/questions"]
    assert "secret-project" not in (out / "export.json").read_text()


def test_last_model_is_exported_with_the_base_of_its_chain(run: Run, tmp_path: Path) -> None:
    shown = command(run, "model", "--out", str(tmp_path / "model"))
    assert shown.exit_code == 0 and "the model of 1/rl@phase-1" in shown.output and "apache-2.0" in shown.output
    card = (tmp_path / "model" / "README.md").read_text()
    assert head_of(card)["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert "This run has no scores of this checkpoint" in card
    with pytest.raises(RunError, match="made no model"):
        from treadle.tasks.exchange.model_export import export_model

        export_model(run, run.record(Address(1, "questions")), tmp_path / "other")  # type: ignore[arg-type]


def test_license_comes_from_the_base_model_card_if_it_matches(run: Run, tmp_path: Path) -> None:
    base = tmp_path / "private" / "Some-7B"
    base.mkdir(parents=True)
    (base / "README.md").write_text("---\nlanguage: en\nlicense: mit\n---\nlicense: wrong\n")
    train(run, "1/sft", str(base), folder_digest(str(base)))
    command(run, "model", "--instance", "1/sft", "--out", str(tmp_path / "model"))
    card = (tmp_path / "model" / "README.md").read_text()
    head = head_of(card)
    assert head["license"] == "mit" and "base_model" not in head and "Fine-tuned from Some-7B" in card
    assert "private" not in card + (tmp_path / "model" / "export.json").read_text()
    train(run, "1/sft", str(base), "another")
    command(run, "model", "--instance", "1/sft", "--out", str(tmp_path / "model"), "--force")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "license" not in head_of(card) and "licence is unknown" in card


def test_changed_file_leaves_no_export(run: Run, tmp_path: Path) -> None:
    record = run.record(Address(1, "sft"))
    assert record is not None
    weights = Path(run.storage.location(f"{record.outputs['checkpoint'].folder}/model/model.safetensors"))
    weights.write_bytes(WEIGHTS[:-1] + b"x")
    with pytest.raises(ArtifactError, match="model.safetensors has changed"):
        command(run, "model", "--instance", "1/sft", "--out", str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_any_table_exports_as_a_dataset_with_its_card(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "rows"
    assert command(run, "dataset", "rollouts", "--instance", "1/rollouts@tuned", "--out", str(out)).exit_code == 0
    assert pq.read_table(out / "data/part-00000.parquet").num_rows == 10
    card = (out / "README.md").read_text()
    assert head_of(card)["configs"][0]["data_files"] == "data/*.parquet"
    assert "`rollout_key`" in card and "| 1/sft_rows" in card and "## Licence" in card
    facts = json.loads((out / "export.json").read_text())
    assert (facts["kind"], facts["instance"], facts["num_rows"]) == ("rollouts", "1/rollouts@tuned", 10)
    with pytest.raises(RunError, match="1/rollouts@other, 1/rollouts@tuned; name one of them"):
        command(run, "dataset", "rollouts", "--out", str(tmp_path / "more"))
    with pytest.raises(RunError, match="no finished pools"):
        command(run, "dataset", "pools", "--out", str(tmp_path / "more"))
    with pytest.raises(RunError, match="export model"):
        command(run, "dataset", "checkpoint", "--out", str(tmp_path / "more"))
    assert not (tmp_path / "more").exists()
