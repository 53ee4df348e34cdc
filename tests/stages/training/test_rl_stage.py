"""The stage `rl` from rows to a policy: what it makes, shows and resumes. The engine is scripted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from support.runs.processes import end_family, family, kill_alone, remaining, until
from support.servers.own_clock import HourlyClock
from support.tables.rl_tables import (
    PLACE,
    Watched,
    example_rows,
    instance,
    rl_row,
    run_with_rows,
    scripted,
    train,
    workspace_of,
    write_policy,
    write_safetensors,
)
from support.tables.score_tables import question

from treadle.core.engines import training
from treadle.core.errors import ConfigError, EngineError, StageFailed
from treadle.core.runs.execute import execute, planned_action
from treadle.core.runs.records import StageRecord
from treadle.core.runs.run import Run
from treadle.core.store.artifact_reader import ArtifactReader
from treadle.rl.training import start_policy
from treadle.rl.training.launch import RlFolder, saved_step

COMMIT = "c" * 40
TESTS = Path(__file__).parents[2]
HELD_OUT = [question(f"h{index}", ["Oreb"]) for index in range(4)]
BEST = {"2": (0.5, 0.2), "4": (0.5, 0.4), "6": (0.4, 0.9)}
"""Correctness and efficiency of each saved step: 2 and 4 are equally right, 4 with fewer calls."""

PARENT = """
import sys
from pathlib import Path
from support.tables.rl_tables import train
from treadle.core.runs.run import Run
train(Run.open(sys.argv[1], "test"), Path(sys.argv[2]), {"at": 4, "do": "hang", "once": True})
"""


class Done(NamedTuple):
    run: Run
    record: StageRecord
    watched: Watched
    start: Path
    options: dict[str, Any]

    def table(self, kind: str) -> ArtifactReader:
        return self.run.rows(self.record.outputs[kind])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Run a whole phase of six steps with validation; the best policy is exported."""
    folder = tmp_path_factory.mktemp("rl")
    start, watched = write_policy(folder / "start"), Watched()
    options = {"checkpoint_rule": "best", "validation_questions": 3, "validation_steps": 2}
    long = rl_row("q99", question="x" * 300)
    run = run_with_rows(folder / "root", [*example_rows(), long], HELD_OUT)
    record = train(run, start, {"correct": BEST}, progress=watched, **options)
    return Done(run, record, watched, start, options)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    return write_policy(tmp_path / "start")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_with_rows(tmp_path / "root")


def steps_of(run: Run, record: StageRecord) -> list[dict[str, Any]]:
    import io

    import pyarrow.parquet as pq

    content = run.storage.get(record.telemetry["rl_log"])
    assert content is not None
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist()
    return rows


def test_engine_warnings_are_reported(run: Run, start: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(run, start, {"warn": "3 of 4 groups\x1b[31m were not made"}, max_steps=1)
    assert "step 1: 3 of 4 groups" in caplog.text and "\x1b" not in caplog.text


def test_phase_produces_a_policy_with_plan_report_and_curves(done: Done) -> None:
    (row,) = done.table("checkpoint").rows()
    assert (row["name"], row["num_steps"], row["num_rows"], row["engine"]) == (PLACE, 6, 12, "trl 0, cpu")
    assert (row["first_reward"], row["last_reward"], row["num_target_tokens"]) == (0.1, 0.6, None)
    checkpoint = done.table("checkpoint")
    assert {"curves.svg", "report.md", "plan.json"} < set(checkpoint.file_names())
    assert (checkpoint.folder("model") / "tokenizer.json").is_file()
    assert json.loads(checkpoint.read_file("plan.json"))["num_rows"] == 12
    curves = checkpoint.read_file("curves.svg")
    assert b"<svg" in curves and b"format_ok" in curves and b"held-out, greedy" in curves
    report = checkpoint.read_file("report.md").decode()
    assert "6 steps over 12 questions; 1 left out for prompts over 200 tokens, 48 rollouts in groups of 4" in report
    assert "| 4 (exported)" in report and "3 of 4 held-out questions" in report


def test_exports_the_best_validated_policy_with_ties_broken_by_efficiency(done: Done) -> None:
    (row,) = done.table("checkpoint").rows()
    assert (row["chosen_step"], row["validation_correctness"]) == (4, 0.5)
    assert (done.table("checkpoint").folder("model") / "step.txt").read_text() == "4"


def test_record_contains_the_facts_of_the_phase(done: Done) -> None:
    metrics = done.record.metrics
    expected = {
        "phase": 1, "engine": "trl 0, cpu", "seed": 3, "rows": 12,
        "reward_rule": "efficiency (sigma_tool 0.1, sigma_length 0.05)",
        "rows_too_long": 1, "steps_planned": 6, "steps": 6, "resumed_step": 0, "chosen_step": 4, "rollouts": 48,
        "groups": 12, "equal_groups": 0, "first_reward": 0.1, "last_reward": 0.6, "validation_questions": 3,
        "validation_score": 0.5, "validation_efficiency": 0.4, "greedy_ids": [7, 8, 9],
    }  # fmt: skip
    assert {name: metrics[name] for name in expected} == expected
    assert len(metrics["plan_digest"]) == len(metrics["environment_digest"]) == 64
    assert [ref.address for ref in done.record.inputs["rl_rows"]] == ["1/selection@phase-1"]


def test_every_rollout_and_step_is_kept(done: Done) -> None:
    rollouts = list(done.table("rl_rollouts").rows())
    assert [(row["step"], row["output"]) for row in rollouts] == [(step, f"done {step}") for step in range(1, 7)]
    steps = steps_of(done.run, done.record)
    assert [(row["step"], row["seconds"]) for row in steps] == [(step, 10.0 * step) for step in range(1, 7)]
    assert steps[0]["entropy"] is None and {"name": "sigma_length", "value": 0.05} in steps[0]["parts"]


def test_training_metrics_are_shown_live_with_curves(done: Done) -> None:
    assert done.watched.starts == [(6, 0, "steps")] and done.watched.done == 6
    facts = [fact for fact in done.watched.facts if "reward" in fact]
    assert facts[3] == {
        "reward": "0.40 ▁▃▆█",
        "score": "0.20 ▁▃▆█",
        "format_ok": "0.54 ▁▃▆█",
        "calls": "2.00 ▄▄▄▄",
        "length": "40 ▄▄▄▄",
    }
    assert [fact["validation"] for fact in done.watched.facts if "validation" in fact] == [
        "0.50 at step 2",
        "0.50 at step 4",
        "0.40 at step 6",
    ]


@pytest.mark.covers("pareto-28")
def test_finished_phase_is_not_retrained(done: Done) -> None:
    assert planned_action(instance(done.start, **done.options), done.run) == "reuse"
    again = train(done.run, done.start, {"at": 1, "do": "die"}, **done.options)
    assert again.reused and again.fingerprint == done.record.fingerprint
    assert not list(Path(done.run.storage.root).rglob("job.json")), "the workspace is removed when the phase is done"


@pytest.mark.covers("pareto-28")
def test_killed_training_resumes_from_the_newest_complete_state(run: Run, start: Path) -> None:
    with pytest.raises(EngineError, match=r"killed \(signal 9\).*max_response_tokens"):
        train(run, start, {"at": 5, "do": "die", "torn": 4})
    assert sorted(path.name for path in (workspace_of(run) / "output").iterdir()) == ["checkpoint-2", "checkpoint-4"]
    assert saved_step(RlFolder(workspace_of(run))) == 2
    watched = Watched()
    record = train(run, start, {"at": 5, "do": "die", "once": True}, progress=watched)
    assert record.metrics["resumed_step"] == 2 and watched.starts == [(6, 2, "steps")] and watched.done == 6
    assert [(row["step"], row["seconds"]) for row in steps_of(run, record)] == [
        (step, 10.0 * step) for step in range(1, 7)
    ], "steps that were done twice count once"
    rollouts = run.rows(record.outputs["rl_rollouts"]).rows()
    assert [row["output"] for row in rollouts] == [f"done {since}" for since in (1, 2, 1, 2, 3, 4)]


def test_state_not_reported_before_the_kill_can_be_exported(run: Run, start: Path) -> None:
    with pytest.raises(EngineError, match="signal 9"):
        train(run, start, {"untold": 6})
    record = train(run, start, {"at": 6, "do": "die"})
    assert (record.metrics["resumed_step"], record.metrics["chosen_step"]) == (6, 6)


def test_obsolete_states_are_deleted_during_training(tmp_path: Path, start: Path) -> None:
    run = run_with_rows(tmp_path / "root", questions=HELD_OUT)
    best = {"2": (0.5, 0.2), "4": (0.4, 0.4), "6": (0.4, 0.9)}
    with pytest.raises(StageFailed, match="continues differently"):
        train(
            run,
            start,
            {"correct": best, "says": {"ids": [7, 7, 9]}},
            checkpoint_rule="best",
            validation_steps=2,
            validation_questions=3,
        )
    assert {path.name for path in (workspace_of(run) / "output").iterdir()} == {"checkpoint-2", "checkpoint-6"}


def test_without_a_selection_rule_only_the_last_policy_is_kept_and_exported(tmp_path: Path, start: Path) -> None:
    run = run_with_rows(tmp_path / "root", questions=HELD_OUT)
    with pytest.raises(StageFailed, match="continues differently"):
        train(run, start, {"correct": BEST, "says": {"ids": [7, 7, 9]}}, validation_questions=3)
    assert [path.name for path in (workspace_of(run) / "output").iterdir()] == ["checkpoint-6"]
    assert (workspace_of(run) / "refused" / "step.txt").read_text() == "6"


def test_rejected_policy_is_exported_again_from_the_trained_state(run: Run, start: Path) -> None:
    with pytest.raises(
        StageFailed,
        match=rf"see .*refused. The next attempt exports it again .*`treadle stage {PLACE} --force` trains again",
    ):
        train(run, start, {"says": {"ids": [7, 7, 9]}})
    record = train(run, start, {"at": 1, "do": "die"})
    assert record.metrics["greedy_ids"] == [7, 8, 9] and record.metrics["resumed_step"] == 0


def test_validation_questions_with_long_prompts_are_skipped_and_counted(
    tmp_path: Path, start: Path, caplog: pytest.LogCaptureFixture
) -> None:
    questions = [question("h1", ["Oreb"]), question("h2", ["Oreb"]) | {"question": "x" * 300}]
    run = run_with_rows(tmp_path / "root", questions=questions)
    record = train(run, start, {}, validation_questions=2)
    assert (record.metrics["validation_questions"], record.metrics["validation_too_long"]) == (1, 1)
    assert "1 of 2 validation questions are left out: their prompts are longer than 200 tokens" in caplog.text
    run = run_with_rows(tmp_path / "other", questions=questions[1:])
    with pytest.raises(ConfigError, match="all 1 validation questions have prompts longer than rl.max_prompt_tokens"):
        train(run, start, {}, validation_questions=2)


def test_hub_start_model_is_downloaded_once_and_checked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fetch_model(model: str, revision: str, *_: Any, key: str) -> Path:
        asked.append((model, revision, key))
        return tmp_path / COMMIT

    def attempt(**script: Any) -> StageRecord:
        with scripted(tmp_path, **script):
            return execute(instance("org/base", revision="v1"), run)

    write_policy(tmp_path / COMMIT)
    monkeypatch.setattr(start_policy, "fetch_model", fetch_model)
    with pytest.raises(EngineError, match="signal 9"):
        attempt(at=3, do="die")
    with pytest.raises(StageFailed, match="tokenizer or chat template differs from its base model"):
        attempt(spoil={"chat_template.jinja": "x"})
    assert asked == [("org/base", "v1", "rl.start"), ("org/base", COMMIT, "rl.start")]
    record = attempt()
    (row,) = run.rows(record.outputs["checkpoint"]).rows()
    assert (row["base_model"], row["base_digest"], record.metrics["rows"]) == ("org/base", COMMIT, 12)


def test_rows_with_long_prompts_are_skipped_with_the_hub_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with_rows(tmp_path / "root", [*example_rows(), rl_row("q99", question="x" * 300)])
    monkeypatch.setattr(start_policy, "fetch_model", lambda *_, **__: write_policy(tmp_path / COMMIT))
    with scripted(tmp_path):
        assert execute(instance("org/base"), run).metrics["rows_too_long"] == 1


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ({"at": 3, "do": "no memory"}, r"ran out of memory; lower rl.per_device_batch_size(.|\n)*Tried to allocate"),
        ({"at": 3, "do": "no_memory"}, "ran out of memory"),
        ({"at": 3, "do": "diverged"}, r"diverged \(Error: diverged it is\); lower learning_rate"),
        ({"at": 3, "do": "environment"}, r"could not open the policy's environment \(Error: environment it is\)"),
        ({"at": 3, "do": "other"}, r"failed with code 1 \(Error: other it is\)"),
        ({"at": 1, "do": "stop early"}, "took no step"),
        ({"more_steps": 1}, "would train 7 steps, but the plan has 6"),
        ({"unscored": True}, "got no reward: in 6 steps no rollout was scored"),
        ({"reward": None}, "got no reward"),
        (
            {"equal": True, "reward": -1.0},
            r"nothing to learn from: in all 12 groups of 6 steps \(48 rollouts\) the rewards were equal \(all -1\)",
        ),
        ({"equal": True}, r"the rewards were equal \(mean 0.1 to 0.6\)"),
        ({"at": 4, "do": "nothing_learned"}, r"learnt nothing \(Error: nothing_learned it is\); check learning_rate"),
        ({"at": 3, "do": "no_spread"}, r"had nothing to learn from \(Error: no_spread it is\)"),
        ({"at": 6, "do": "nothing_learned", "equal": True}, r"nothing to learn from: in all 10 groups of 5 steps"),
    ],
)
def test_failed_training_raises_one_error_with_its_log(
    run: Run, start: Path, script: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngineError, match=said) as caught:
        train(run, start, script)
    assert "\x1b" not in str(caught.value) and "train.log" in str(caught.value) or "more_steps" in script
    assert run.record(instance(start).address) is None


def test_training_without_a_learning_signal_is_not_resumed(run: Run, start: Path) -> None:
    with pytest.raises(EngineError, match="nothing to learn from"):
        train(run, start, {"equal": True})
    assert train(run, start, {}).metrics["resumed_step"] == 0


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"devices": [3, 1]}, "7,5"),
        ({"num_devices": 2}, "4,5"),
        ({"engine": "verl", "num_nodes": 2, "num_devices": 2}, "4,5,6,7"),
    ],
)
def test_engine_sees_the_gpus_named_in_the_config(
    run: Run, start: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], seen: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    with pytest.raises(ConfigError, match="refuses"):
        train(run, start, {"refuse": "it"}, **{**options, "variant": "cuda"})
    assert f"CUDA_VISIBLE_DEVICES={seen}\n" in (workspace_of(run) / "logs" / "check.log").read_text()


def test_engine_rejection_is_a_config_error(run: Run, start: Path) -> None:
    with pytest.raises(ConfigError, match="trl refuses the configuration of rl: no key 'x'"):
        train(run, start, {"refuse": "no key 'x'"})


def hangs(run: Run) -> bool:
    with suppress(FileNotFoundError):  # Folders are deleted meanwhile.
        return any("still here" in log.read_text() for log in Path(run.storage.root).rglob("train.log"))
    return False


def test_silent_training_is_killed_with_all_its_processes(
    run: Run, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SteadyClock", HourlyClock(lambda: hangs(run)))
    before = {process.pid for process in family(os.getpid())}
    with pytest.raises(EngineError, match=r"hangs: it sent no events for 5000 s(.|\n)*still here"):
        train(run, start, {"at": 3, "do": "hang"}, stall_timeout_s=5000.0)
    assert {process.pid for process in family(os.getpid())} <= before


class Interrupting(Watched):
    """Presses Ctrl-C after the third step."""

    def advance(self, count: int = 1, **facts: str | int | float) -> None:
        super().advance(count, **facts)
        if self.done == 3:
            raise KeyboardInterrupt


def test_ctrl_c_ends_the_training_and_the_next_call_resumes(run: Run, start: Path) -> None:
    before = {process.pid for process in family(os.getpid())}
    with pytest.raises(KeyboardInterrupt):
        train(run, start, {"at": 4, "do": "hang"}, progress=Interrupting())
    assert {process.pid for process in family(os.getpid())} <= before
    assert train(run, start, {}).metrics["resumed_step"] == 2


def test_killing_treadle_kills_the_training_and_the_next_call_resumes(run: Run, start: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(run.storage.root), str(start)], env={**os.environ, "PYTHONPATH": str(TESTS)}
    )
    try:
        until(lambda: hangs(run), "the training hangs")
        orphans = kill_alone(parent)
        assert orphans is not None and len(orphans) >= 3
        until(lambda: not remaining(orphans), "the training has ended with Treadle", limit_s=10.0)
    finally:
        end_family(parent)
    assert train(run, start, {"at": 4, "do": "die", "once": True}).metrics["resumed_step"] == 2


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            {"chat_template.jinja": "{{ messages[0]['content'] }}"},
            "tokenizer or chat template differs from its base model",
        ),
        ({"model.safetensors": "nothing"}, "is not a valid safetensors file"),
    ],
)
def test_policy_unlike_its_start_model_is_not_exported(run: Run, start: Path, spoil: dict[str, str], said: str) -> None:
    with pytest.raises(StageFailed, match=rf"{PLACE}: .*{said}"):
        train(run, start, {"spoil": spoil})
    assert run.record(instance(start).address) is None


def test_tensors_with_a_different_shape_are_named(run: Run, start: Path) -> None:
    path = start.parent / "other.safetensors"
    write_safetensors(
        path, {"embed.weight": ("F16", (2, 3)), "norm.weight": ("BF16", (4,)), "new.weight": ("BF16", (1,))}
    )
    spoilt = path.read_bytes().decode("latin-1")
    with pytest.raises(StageFailed, match="the trained policy does not match its base model") as caught:
        train(run, start, {"spoil": {"model.safetensors": spoilt}})
    assert "1 tensors added (new.weight)" in str(caught.value)
    assert "1 tensors with another shape (norm.weight); 1 tensors with another number type (embed.weight)" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reward": {"sigma_tool": 0.0, "sigma_length": 0.0}}, "allow_zero_sigmas"),
        ({"prompts_per_step": 14, "mini_batch_prompts": 14}, "12 rows are fewer than rl.prompts_per_step = 14"),
        ({"max_prompt_tokens": 1}, "12 of 12 rows have prompts longer than rl.max_prompt_tokens = 1"),
        ({"validation_questions": 2}, "there is no held-out question"),
        ({"environment": {"search": {"summarizer": "helper"}}}, "reads documents itself"),
        ({"environment": {"search": {"engine": "dense", "prepared": "e5.index"}}}, "rl needs an absolute path: /"),
    ],
)
@pytest.mark.covers("pareto-28")
def test_phase_with_an_invalid_successor_is_refused_before_an_engine_starts(
    tmp_path: Path, start: Path, options: dict[str, Any], said: str
) -> None:
    run = run_with_rows(tmp_path / "root", questions=[question("t", ["Oreb"]) | {"split": "train"}])
    with pytest.raises(ConfigError, match=said):
        train(run, start, {"at": 1, "do": "die"}, **options)
    assert not list((tmp_path / "root").rglob("job.json"))


def test_payloads_reach_the_engine_in_a_hidden_file_and_nothing_else(tmp_path: Path, start: Path) -> None:
    """A canary in the payload is in the file that episodes read, and in no row, output or record."""
    secret = json.dumps({"secret": 7, "note": "canary-5f2c"})
    environment = {"type": "support.rollouts.dialogues:Guess"}
    rows = [rl_row(f"q{index}", domain="task", question="Guess.") for index in range(4)]
    asked = [question(f"q{index}", [], "task") | {"payload": secret, "split": "train"} for index in range(9)]
    run = run_with_rows(tmp_path / "root", rows, asked)
    with pytest.raises(EngineError):
        train(run, start, {"at": 1, "do": "no memory"}, environment=environment)
    folder = RlFolder(workspace_of(run))
    payloads = pq.read_table(folder.payloads).to_pylist()
    assert payloads == [{"question_key": f"q{index}", "payload": secret} for index in range(4)]
    holders = {path.name for path in folder.path.rglob("*") if path.is_file() and b"canary" in path.read_bytes()}
    assert holders <= {folder.payloads.name} and "canary" not in str(pq.read_table(folder.parquet).to_pylist())
    record = train(run, start, {}, environment=environment)
    tables = [path for path in Path(run.storage.root).rglob("*.parquet") if path.parents[2].name != "questions"]
    assert tables and not any("canary" in str(pq.read_table(path).to_pylist()) for path in tables)
    assert record.metrics["rows"] == 4


def test_task_that_is_not_among_the_questions_is_refused(tmp_path: Path, start: Path) -> None:
    rows = [rl_row(f"q{index}", domain="task") for index in range(4)]
    asked = [question("q1", [], "task") | {"split": "train"}]
    run = run_with_rows(tmp_path / "root", rows, asked)
    with pytest.raises(StageFailed, match="3 of 4 tasks to train on are not among the questions"):
        train(run, start, {}, environment={"type": "support.rollouts.dialogues:Guess"})
