"""Which results an import may replace, and what it leaves unchanged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.foreign_desk import RIGHT, WRONG, Desk, calling, evolved, sampled

from treadle.cli.commands.inspect import status
from treadle.cli.commands.run import run as run_command
from treadle.cli.views.summary import result_text
from treadle.core.config import load_config
from treadle.core.errors import RunError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.stage import StageContext, WorkResult
from treadle.core.store.leases import hold_key
from treadle.formats.et_agent.question_import import write_questions
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.page.build import report_page
from treadle.tasks.planning.run_setup import open_run
from treadle.tasks.prefect.stage_card import stage_card


@pytest.fixture
def direct(tmp_path: Path) -> Desk:
    return Desk(tmp_path, ["rollouts", "scores", "report"])


def with_questions(desk: Desk, records: Sequence[dict[str, Any]], held_out: int, more: str = "") -> None:
    """Let the configuration read the questions of records, the first ones held out."""
    path = desk.folder / "asked.jsonl"
    lines = [
        {"question": one["input"], "answer": one["answer"], "source": "openr1", "split": split}
        for place, one in enumerate(records)
        for split in ["heldout" if place < held_out else "train"]
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = f'[[questions.sources]]\npath = "{path}"\nsource_field = "source"\nsplit_field = "split"\n'
    desk.config.write_text(f"{desk.config.read_text()}\n{more}\n{source}")


def test_imported_held_out_questions_become_no_training_rows(tmp_path: Path) -> None:
    desk = Desk(tmp_path, ["pools", "sft_rows"])
    records = [evolved(number, WRONG, calling("36")) for number in range(1, 7)]
    with_questions(desk, records, held_out=3)
    told = json.loads(desk.ask("pools", desk.write(records), "--json").stdout)
    assert (told["num_rows"], told["left_out"]) == (3, {"not_selected": 3})
    assert "1/pools does not ask its question" in told["rejected"][0]["detail"]
    desk.make("1/sft_rows")
    split = {row["question_key"]: row["split"] for row in desk.rows("1/questions", "questions")}
    assert [split[row["question_key"]] for row in desk.rows("1/sft_rows", "sft_rows")] == ["train"] * 3


def test_training_questions_enter_no_held_out_evaluation(direct: Desk) -> None:
    records = [sampled(number, RIGHT) for number in range(1, 5)]
    with_questions(direct, records, held_out=3, more='[rollouts]\nsplit = "heldout"\nmax_questions = 2')
    told = direct.ask("rollouts", direct.write(records), "--instance", "1/rollouts@policy")
    assert "2 trajectories of 2 rows" in told.output and "2 left out: not selected; the first is row 3" in told.output
    assert "have no row" not in told.output
    keys = [row["question_key"] for row in direct.rows("1/questions", "questions")]
    assert [row["question_key"] for row in direct.rows("1/rollouts@policy", "rollouts")] == keys[:2]


def test_questions_missing_from_an_imported_file_are_reported(direct: Desk) -> None:
    records = [sampled(number, RIGHT) for number in range(1, 4)]
    with_questions(direct, records, held_out=0)
    told = direct.ask("rollouts", direct.write(records[:1]), "--instance", "1/rollouts@policy")
    assert "2 of the 3 questions that 1/rollouts@policy asks have no row in the file" in told.output
    assert direct.record("1/rollouts@policy").metrics["questions_missing"] == 2


def test_later_iteration_uses_its_imported_file_not_an_earlier_equal_result(tmp_path: Path) -> None:
    desk = Desk(tmp_path, ["pools", "sft_rows", "sft", "rollouts", "scores", "report"])
    first, second = (desk.write([sampled(n, end) for n in (1, 2)], f"{n}.json") for n, end in ((1, RIGHT), (2, WRONG)))
    desk.bring("rollouts", first, "--instance", "1/rollouts@policy", "--set", "flow.iterations=2")
    told = json.loads(desk.go_on("rollouts", second, "--instance", "2/rollouts@policy", "--json").stdout)
    assert (told["num_rows"], told["reused"]) == (2, False)
    record = desk.record("2/rollouts@policy")
    assert (record.reused_from, record.imported_from) == ("", "2.json")
    assert {row["text"] for row in desk.rows("2/rollouts@policy", "rollouts")} == {WRONG}
    assert desk.make("2/rollouts@policy").reused, "and it stays"


def begun(desk: Desk, path: Path, num_shards: int = 1) -> Address:
    """Return a run whose rollouts were begun, and stopped with three answers that were paid for."""
    questions = str(desk.folder / "questions")
    config = load_config(TreadleConfig, (desk.config,), [f"rollouts.shards={num_shards}"])
    write_questions(path, "rollouts", config, {}, Path(questions), replace_it=False)
    files = (desk.config, Path(questions) / "questions.toml")
    config = load_config(TreadleConfig, files, [f"rollouts.shards={num_shards}"])
    run = open_run(desk.root, "r", config, files)
    execute(instance(config, Address(1, "questions")), run)
    wanted = instance(config, Address(1, "rollouts", "policy"))

    def work(context: StageContext) -> WorkResult:
        for key in ("a", "b", "c"):
            if context.owns(key):
                context.journal.finish(key, b"paid for")
        if context.owns("c"):
            raise KeyboardInterrupt
        return WorkResult()

    with pytest.raises(KeyboardInterrupt):
        execute(replace(wanted, stage=replace(wanted.stage, work=work)), run)
    return wanted.address


def test_paid_answers_are_not_discarded_without_force(direct: Desk) -> None:
    path = direct.write([sampled(1, RIGHT)])
    address = begun(direct, path)
    with pytest.raises(RunError, match=r"was started; 3 are finished in its journal, .* with --force"):
        direct.go_on("rollouts", path, "--instance", str(address))
    assert direct.run.status(address).num_finished == 3
    assert "1 trajectories" in direct.go_on("rollouts", path, "--instance", str(address), "--force").output
    assert direct.run.status(address).num_finished == 0


def test_shards_in_use_by_others_are_not_replaced(direct: Desk) -> None:
    path = direct.write([sampled(1, RIGHT)])
    address = begun(direct, path, num_shards=2)
    run = direct.run
    shards = run.shards(address, run.attempts(address)[-1].journal_name)
    with hold_key(run.storage, shards.lock_key(1), "a helper"), pytest.raises(RunError, match="other processes work"):
        direct.go_on("rollouts", path, "--instance", str(address), "--force")
    assert shards.plan() is not None


def test_model_that_will_not_be_called_needs_no_key(direct: Desk) -> None:
    direct.config.write_text(direct.config.read_text().replace('9/v1"', '9/v1", api_key_env = "TREADLE_TEST_NO_KEY"'))
    told = direct.bring("rollouts", direct.write([sampled(1, RIGHT)]), "--instance", "1/rollouts@policy")
    assert told["num_rows"] == 1


def test_metrics_of_an_import_are_labelled_as_imported(direct: Desk) -> None:
    direct.bring("rollouts", direct.write([sampled(1, RIGHT, calling("36"))]), "--instance", "1/rollouts@policy")
    for address in ("1/scores@policy", "1/report"):
        direct.make(address)
    run, rollouts, report = direct.run, direct.record("1/rollouts@policy"), direct.record("1/report")
    options = ["--run", "r", "--root", str(direct.root)]
    assert "2 rollouts, imported from foreign.json" in CliRunner().invoke(status, options).output
    assert result_text(rollouts) == "rollouts 2 (imported from foreign.json)"
    assert "imported from foreign.json, attempt 1" in stage_card(rollouts, run).markdown
    said = "The rollouts of policy were imported from foreign.json"
    assert said in stage_card(report, run).markdown
    assert said in report_page([run]).decode()
    shown = CliRunner().invoke(run_command, options).output
    assert said in " ".join(shown.split())
    summary = {row["figure"]: row["value"] for row in direct.rows("1/report", "summary") if row["dataset"] == "openr1"}
    assert (summary["completion_tokens"], summary["prompt_tokens"]) == (None, None), "not 0: they were not counted"
    assert (summary["accuracy"], summary["calls_requested"]) == (1.0, 0.5)
