"""Which policy of an RL training is exported, how it is checked, and what is reported meanwhile."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tables.rl_tables import write_policy, write_safetensors
from support.tables.score_tables import question
from support.training.rewards import group_rewards

from treadle.agent.contract import Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.trajectory import Sample, Trajectory
from treadle.core.engines.events import EventFile, mark_complete
from treadle.core.engines.training import Greedy
from treadle.core.errors import StageFailed
from treadle.core.store.parquet import TableWriter
from treadle.environments.question.settings import QuestionSettings
from treadle.rl.groups.dump import read_steps, rollout_row, write_step
from treadle.rl.groups.rollout import Group, GroupTrajectory
from treadle.rl.groups.samples import GroupSample
from treadle.rl.rewards.base import GroupItem
from treadle.rl.training.checkpoint_checks import check_greedy, check_weights, tensors
from treadle.rl.training.curves import draw_curves, moving_mean, sparkline
from treadle.rl.training.engine_environments import local_environment
from treadle.rl.training.events import RlEvents, RlStep, Validation, ValidationFigures
from treadle.rl.training.launch import RlFolder, choose_step, saved_step, superseded
from treadle.rl.training.stored_rows import validation_questions
from treadle.rl.training.tables import RL_ROLLOUTS

WELL = "<think>I know.</think><answer>\\boxed{Oreb}</answer>"


def validation(step: int, score: float | None, efficiency: float | None = 0.0) -> Validation:
    figures = ValidationFigures(
        num_questions=4,
        score=score,
        efficiency=efficiency,
        calls=1.0,
        length=9.0,
        executed=None,
    )
    return Validation(step, figures, {"qa": figures})


def validations(*made: Validation) -> dict[int, Validation]:
    return {one.step: one for one in made}


def rl_step(step: int, reward: float | None = 0.5) -> RlStep:
    named = dict.fromkeys(RlStep.__slots__)
    return RlStep(**{**named, "step": step, "reward": reward, "seconds": 1.0, "num_groups": 4, "num_equal_groups": 1})


def test_best_policy_is_the_most_correct_then_most_efficient_then_latest() -> None:
    made = validations(validation(10, 0.6, 0.1), validation(20, 0.7, 0.2), validation(30, 0.7, 0.3))
    assert choose_step("best", [10, 20, 30], made) == 30
    made[30] = validation(30, 0.7, 0.1)
    assert choose_step("best", [10, 20, 30], made) == 20
    made[20] = validation(20, 0.7, 0.1)
    assert choose_step("best", [10, 20, 30], made) == 30
    assert choose_step("last", [10, 20, 30], validations(validation(10, 1.0))) == 30


def test_only_saved_policies_with_a_verdict_compete() -> None:
    made = validations(validation(5, 1.0), validation(10, 0.2), validation(20, None))
    assert choose_step("best", [10, 20], made) == 10
    assert choose_step("best", [20, 40], made) == 40


def test_newest_and_best_state_are_kept() -> None:
    made = validations(validation(10, 0.9), validation(20, 0.5))
    assert superseded("best", [10, 20, 30], made) == {20}
    assert superseded("last", [10, 20, 30], made) == {10, 20}
    assert superseded("best", [], {}) == set()


class Table:
    """Questions as a table is read."""

    kind, digest = "questions", "0"

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.num_rows = len(rows)
        self._rows = rows

    def rows(self, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        for row in self._rows:
            yield {name: row[name] for name in columns}


def questions() -> list[dict[str, Any]]:
    rows = [question(f"q{index}", ["1"], "qa") for index in range(20)]
    rows += [question(f"m{index}", ["1"], "math") for index in range(3)]
    return [*rows, question("t", ["1"], "choice") | {"split": "train"}]


def test_validation_takes_held_out_questions_from_every_domain_in_turn() -> None:
    chosen, num_held_out = validation_questions([Table(questions())], 8, seed=1)
    domains = [row["domain"] for row in chosen]
    assert num_held_out == 23 and domains == ["math", "qa"] * 3 + ["qa", "qa"]
    assert len({row["question_key"] for row in chosen}) == 8


def test_validation_depends_on_the_seed_but_not_on_question_order() -> None:
    shuffled = questions()
    random.Random(3).shuffle(shuffled)
    chosen = validation_questions([Table(questions())], 8, seed=1)
    assert validation_questions([Table(shuffled[:9]), Table(shuffled[9:])], 8, seed=1) == chosen
    assert validation_questions([Table(questions())], 8, seed=2)[0] != chosen[0]
    assert validation_questions([Table(questions())], 99, seed=2)[1] == 23


def test_exported_policy_may_differ_from_the_live_one_only_by_rounding() -> None:
    live = Greedy((5, 6, 7), (2.0, 0.05, 3.0))
    check_greedy(live, Greedy((5, 6, 7), (2.0, 0.1, 3.0)))
    check_greedy(live, Greedy((5, 9, 1), (2.0, 0.1, 3.0)))
    check_greedy(None, None)
    with pytest.raises(
        StageFailed,
        match="continues differently from the one in training: .*id 1 instead of 7 at position 2, by a margin of 3",
    ):
        check_greedy(live, Greedy((5, 6, 1), (2.0, 0.1, 3.0)))
    with pytest.raises(StageFailed, match="generated 2 ids instead of 3"):
        check_greedy(live, Greedy((5, 6), (2.0, 0.1)))
    with pytest.raises(StageFailed, match="the engine reported no greedy completion of it"):
        check_greedy(live, None)


def split_weights(folder: Path, further: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """Split a model's weights into two files with an index, these tensors being in the second."""
    first = tensors(folder)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    write_safetensors(folder / "model-00002-of-00002.safetensors", further)
    places = dict.fromkeys(first, "model-00001-of-00002.safetensors")
    places |= dict.fromkeys(further, "model-00002-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_only_a_tied_output_layer_may_be_omitted(tmp_path: Path) -> None:
    start, made = write_policy(tmp_path / "start"), write_policy(tmp_path / "made")
    assert check_weights(made, start)
    split_weights(start, {"lm_head.weight": ("BF16", (2, 3))})
    assert tensors(start)["lm_head.weight"] == ("BF16", (2, 3)) and check_weights(made, start)
    (made / "config.json").write_text(json.dumps({"tie_word_embeddings": False}))
    with pytest.raises(StageFailed, match=r"1 tensors missing \(lm_head.weight\)"):
        check_weights(made, start)
    for path in start.glob("*.safetensors*"):
        path.unlink()
    assert not check_weights(made, start)


def test_exported_weights_may_be_fp32_if_the_start_is_16_bit(tmp_path: Path) -> None:
    start, made = write_policy(tmp_path / "start"), write_policy(tmp_path / "made")
    wider = {name: ("F32", shape) for name, (_, shape) in tensors(start).items()}
    assert wider != tensors(start)
    write_safetensors(made / "model.safetensors", wider)
    assert check_weights(made, start)
    with pytest.raises(StageFailed, match="tensors with another number type"):
        check_weights(start, made)


@pytest.mark.parametrize("in_files", [1, 2])
def test_foreign_weight_files_of_the_start_are_not_compared(tmp_path: Path, in_files: int) -> None:
    start, made = write_policy(tmp_path / "start"), write_policy(tmp_path / "made")
    if in_files == 2:
        split_weights(start, {"lm_head.weight": ("BF16", (2, 3))})
    write_safetensors(start / "consolidated.safetensors", {"layers.0.attention.wq.weight": ("BF16", (2, 3))})
    assert check_weights(made, start)
    (start / "consolidated.safetensors").write_bytes(b"damaged")
    assert check_weights(made, start)


def test_start_index_with_missing_files_cannot_be_compared(tmp_path: Path) -> None:
    start, made = write_policy(tmp_path / "start"), write_policy(tmp_path / "made")
    split_weights(start, {"lm_head.weight": ("BF16", (2, 3))})
    (start / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(StageFailed, match="start/model-00002-of-00002.safetensors is not a valid safetensors file"):
        check_weights(made, start)


@pytest.mark.parametrize(
    "listed", ["../model.safetensors", "/model.safetensors", "*.safetensors", "model.bin", 1, ["x"]]
)
def test_index_may_only_list_files_in_its_folder(tmp_path: Path, listed: Any) -> None:
    start, made = write_policy(tmp_path / "start"), write_policy(tmp_path / "made")
    (start / "model.safetensors").unlink()
    (start / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"embed.weight": listed}}))
    with pytest.raises(StageFailed, match="which is not a weight file in the same folder"):
        check_weights(made, start)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": {}}', '{"weight_map": []}'])
def test_damaged_index_is_reported(tmp_path: Path, content: str) -> None:
    start, made = write_policy(tmp_path / "start"), write_policy(tmp_path / "made")
    (start / "model.safetensors").unlink()
    (start / "model.safetensors.index.json").write_text(content)
    with pytest.raises(StageFailed, match="start: its weights cannot be found"):
        check_weights(made, start)


def test_reported_but_incomplete_state_is_not_resumed_from(tmp_path: Path) -> None:
    folder = RlFolder(tmp_path)
    file = EventFile(folder.events)
    for step in (2, 4, 6):
        file.write("saved", step=step, state=f"checkpoint-{step}")
    assert saved_step(folder) == 0
    for step in (2, 4):
        (folder.output / f"checkpoint-{step}").mkdir(parents=True)
    mark_complete(folder.output / "checkpoint-2")
    assert saved_step(folder) == 2 and folder.newest_state() == folder.output / "checkpoint-2"


def test_steps_after_the_resumed_state_are_dropped(tmp_path: Path) -> None:
    file, events = EventFile(tmp_path / "events"), RlEvents(tmp_path / "events")
    figures = {"num_questions": 1, "score": 1.0, "efficiency": 1.0, "calls": 0.0, "length": 1.0}
    begin = {"num_steps": 3, "num_trained_parameters": 5, "device": "none"}
    counts = {"num_rollouts": 1, "num_groups": 1, "num_equal_groups": 0}
    file.write("begin", resumed_step=0, **begin)
    for step in (1, 2, 3):
        file.write("step", step=step, seconds=1.0 * step, **counts)
        file.write("validation", step=step, **figures, executed=None, by_domain={})
        file.write("live_greedy", step=step, ids=[step], margins=[1.0])
        file.write("saved", step=step, state=f"checkpoint-{step}")
    file.write("begin", resumed_step=2, **begin)
    file.write("step", step=3, seconds=5.0, **counts)
    list(events.new())
    assert [(step.step, step.seconds) for step in events.steps] == [(1, 1.0), (2, 2.0), (3, 7.0)]
    assert list(events.validations) == list(events.saved) == list(events.live_greedy) == [1, 2]
    assert events.steps[0].reward is None


def test_block_curve_spans_its_own_values() -> None:
    assert sparkline([0.0, 1.0, 0.5, None, 1.0]) == "▁█▅ █"
    assert sparkline(list(range(100)), width=3) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▄▄" and sparkline([None]) == "" and sparkline([]) == ""


def test_moving_means_skip_unknown_values() -> None:
    assert moving_mean([1.0, None, 3.0, 5.0], width=2) == [1.0, 1.0, 3.0, 4.0]
    assert moving_mean([None, 1.0]) == [None, 1.0]


def test_equal_curves_are_equal_bytes_and_gaps_are_drawn() -> None:
    steps = [rl_step(1), rl_step(2, None), rl_step(3, 0.7)]
    made = [validation(2, None), validation(3, 0.5)]
    assert draw_curves(steps, made, 3) == draw_curves(steps, made, 3) != draw_curves(steps, made, 2)
    assert b"<svg" in draw_curves(steps[:1], [], 1)


def test_parts_that_change_have_a_curve() -> None:
    steps = [replace(rl_step(step), parts={"bonus": 0.1 * step, "fixed": 1.0}) for step in (1, 2, 3)]
    drawn = draw_curves(steps, [validation(2, 0.5)], 3, ["fixed", "bonus", "other"])
    assert b"bonus" in drawn and b"fixed" not in drawn and b"other" not in drawn


def trajectory(session: int, text: str, status: str = "answered") -> GroupTrajectory:
    return GroupTrajectory(
        session=session, samples=[GroupSample([1], [2, 3, 4], [1, 0, 1], [-1.0, 0.0, -1.0], [0])],
        trajectory=Trajectory(status, text, [], [Sample([1], [2, 3, 4], [1, 0, 1])], [], 1),
        branch_parent=0 if session else None, branch_depth=session, seed=9 + session,
    )  # fmt: skip


def test_dumped_step_becomes_table_rows_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    asked = Task("q", "Who founded Oreb?", dataset="world", domain="qa")
    group = Group("g", asked, [trajectory(0, WELL), trajectory(1, "<think>", "failed")])
    items = [
        GroupItem.from_text(
            WELL, tool_calls=0, model_tokens=2, total_tokens=3, status="answered", dialect=TOOL_DIALECT
        ),
        GroupItem.from_text(
            "<think>", tool_calls=0, model_tokens=2, total_tokens=3, status="failed", dialect=TOOL_DIALECT
        ),
    ]
    rewards = group_rewards(items, ["Oreb"], "qa", 0.1, 0.1, dialect=TOOL_DIALECT)
    pairs = list(zip(group.trajectories, rewards, strict=True))
    write_step(tmp_path / "dump", 2, [rollout_row(2, group, *pair) for pair in [*pairs, *pairs]])
    write_step(tmp_path / "dump", 2, [rollout_row(2, group, *pair) for pair in pairs])
    write_step(tmp_path / "dump", 11, [rollout_row(11, group, *pair) for pair in pairs])
    (tmp_path / "dump" / "step-000003.tmp").write_text("torn")
    (rows,) = read_steps(tmp_path / "dump", 10)
    assert [(row["session"], row["reward"], row["model_tokens"], row["branch_parent"]) for row in rows] == [
        (0, 1.0, 2, None),
        (1, None, 2, 0),
    ]
    parts = [{part["name"]: part["value"] for part in row["parts"]} for row in rows]
    assert parts[0]["f_tool"] == parts[0]["format_ok"] == 1.0 and parts[1] == {}
    assert [(row["score"], row["notes"]) for row in rows] == [(1.0, ""), (0.0, "")]
    assert rows[0]["prediction"] == "Oreb" and rows[0]["input"] == "Who founded Oreb?"
    writer = TableWriter(RL_ROLLOUTS, tmp_path)
    writer.write(rows)
    writer.close()
    assert list(read_steps(tmp_path / "nowhere", 10)) == []


def test_environment_paths_are_absolute_and_its_digest_is_unchanged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    python = {"sandbox": {"interpreter": "bin/python"}}
    search = {"corpus": ["docs.jsonl"], "index_folder": "index"}
    settings = QuestionSettings.model_validate({"search": search, "python": python})
    local = local_environment(settings)
    assert local["search"]["corpus"] == [str(tmp_path / "docs.jsonl")]
    assert local["search"]["index_folder"] == str(tmp_path / "index")
    assert local["python"]["sandbox"]["interpreter"] == str(tmp_path / "bin/python")
    assert QuestionSettings.model_validate_json(json.dumps(local)).digest() == settings.digest()
