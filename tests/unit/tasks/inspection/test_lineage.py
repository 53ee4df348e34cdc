"""The lineage of a trajectory names its sources, and nothing else; a question's pool is shown as a tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from rich.console import Console
from rich.text import Text
from support.tables.rl_tables import rl_row
from support.tables.score_tables import new_run, put_rows, put_tables, question, rollout, score
from support.tables.viewer_run import dialogue_row, put_from

from treadle.cli.views.lineage import lineage_tree
from treadle.cli.views.trajectory import trajectory_view
from treadle.core.errors import ArtifactError, DataError
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.tables import Table
from treadle.datagen.pools.tables import POOL_EVENTS, POOL_QUESTIONS, POOLS
from treadle.datagen.questions.tables import QUESTIONS
from treadle.datagen.sft_rows.tables import SFT_REJECTIONS, SFT_ROWS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES
from treadle.rl.selection.tables import RL_ROWS
from treadle.rl.training.tables import RL_ROLLOUTS
from treadle.tasks.inspection.lineage import find_rollout, trace_back

EVIL = "\x1b]0;owned\x07[blink]\u202e"


def filled(table: Table, **columns: Any) -> dict[str, Any]:
    """Return a row with these columns; the others are empty."""
    row: dict[str, Any] = {}
    for column in table.schema:
        kind = str(column.type)
        row[column.name] = [] if "list" in kind else "" if kind == "string" else False if kind == "bool" else 0
    return {**row, **columns}


def trajectory(key: str, index: int, parent: str | None = None, **columns: Any) -> dict[str, Any]:
    """Return a row of `pools`."""
    segments = columns.pop("segments", [("think", f"<think>{key}</think>"), ("answer", "<answer>1</answer>")])
    base = rollout(key, "q1", segments, sample_index=index, parents=[parent] if parent else [])
    usage = {"policy": {"calls": 1, "prompt_tokens": 900, "completion_tokens": 100}}
    pool = {"judge": json.dumps({"method": "qa_f1", "raw": [], "error": None}), "prompts": "{}", "edit_step": None}
    more = {
        "models": '{"policy":"base"}',
        "usage": json.dumps(usage),
        "correct": False,
        "score": 0.0,
        "prediction": "1",
    }
    del base["job"]
    return {**filled(POOLS), **base, "operator": "initial", "edit_text": "", **pool, **more, **columns}


def event(index: int, operator: str, parent: str, outcome: str, **columns: Any) -> dict[str, Any]:
    """Return a row of `pool_events`."""
    fixed = {"question_key": "q1", "event_index": index, "round": 1, "usage": "{}", "error": None, "rollout_key": None}
    return filled(POOL_EVENTS, **fixed, operator=operator, parent=parent, outcome=outcome) | columns


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Make a run with one pool: an initial rollout, what three operators made of it, and two failed attempts."""
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question("q1", ["1"])])
    edited = {"round": 1, "operator": "hint_tail", "edit_text": EVIL, "edit_step": 2}
    longer = [("think", "<think>a0</think>"), ("search", "<search>x</search>"), ("answer", f"<answer>{EVIL}</answer>")]
    rows = [
        trajectory("a0", 0),
        trajectory("b1", 1, "a0", **edited, correct=True, score=1.0, segments=longer),
        trajectory("b2", 2, "a0", round=1, operator="self_correct", correct=None, score=None),
        trajectory("c3", 3, "b1", round=2, operator="rerollout", correct=True, score=1.0),
    ]
    events = [
        event(0, "hint_tail", "a0", "produced", rollout_key="b1"),
        event(1, "hint_step", "a0", "rejected", reason="no_step_number", reply=f"the reply {EVIL}"),
        event(2, "reflect", "b1", "duplicate", rollout_key="a0", round=2),
        event(3, "mine", "b1", "failed", reason="operator_error", error=EVIL, round=2),
        event(4, "initial", "", "duplicate", rollout_key="a0", round=0),
    ]
    outcome = {"question_key": "q1", "status": "partial", "error": EVIL, "num_rounds": 2, "num_trajectories": 4}
    asked = filled(POOL_QUESTIONS, **outcome, num_correct=2, usage="{}")
    put_tables(run, "1/pools", {"pools": rows, "pool_questions": [asked], "pool_events": events})
    row = filled(SFT_ROWS, rollout_key="b1", question_key="q1")
    rejected = {"question_key": "q1", "reason": "wrong_answer"}
    rejections = [
        filled(SFT_REJECTIONS, rollout_key="a0", **rejected, reasons=["wrong_answer", "too_long"]),
        filled(SFT_REJECTIONS, rollout_key="c3", question_key="q1", reason="duplicate"),
    ]
    put_tables(run, "1/sft_rows", {"sft_rows": [row], "sft_rejections": rejections})
    return run


def shown(renderable: Any) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    assert not any(character in capture.get() for character in "\x1b\x07\u202e")
    return capture.get()


def test_question_pool_is_a_tree_with_failed_attempts_and_exported_rows(run: Run) -> None:
    lines = [line.rstrip() for line in shown(lineage_tree(trace_back(run, "q1"))).splitlines()]
    assert lines[0] == "source world.jsonl, row 1" and "pool by 1/pools: partial" in lines[2]
    depths = {
        name: next(line.index("─") for line in lines if name in line)
        for name in ("a0 wrong", "b1 right", "c3 right", "hint_step", "mine", "b2")
    }
    assert depths["b1 right"] == depths["b2"] == depths["hint_step"] == depths["a0 wrong"] + 4
    assert depths["c3 right"] == depths["mine"] == depths["b1 right"] + 4
    said = {
        name: next(line for line in lines if name in line)
        for name in ("a0 wrong", "b1", "b2", "c3", "hint_step", "reflect", "mine")
    }
    assert "no row: wrong_answer, too_long" in said["a0 wrong"] and "1,000 tokens" in said["a0 wrong"]
    assert "round 1 hint_tail step 2 b1 right (qa_f1 1.00)" in said["b1"] and "fine-tuning row" in said["b1"]
    assert "no verdict" in said["b2"] and "row" not in said["b2"] and "no row: duplicate" in said["c3"]
    assert "hint_step: rejected (no_step_number)" in said["hint_step"]
    assert "reflect: repeats a0" in said["reflect"]
    assert "mine: failed (operator_error: \\x1b]0;owned" in said["mine"]
    first = next(line for line in lines if "initial: repeats a0" in line)
    assert first.index("─") == depths["a0 wrong"], "an initial rollout without a result has the depth of the others"
    assert not any("this one" in line for line in lines)


def test_requested_trajectory_is_marked(run: Run) -> None:
    steps = trace_back(run, "c")
    (marked,) = [line for line in shown(lineage_tree(steps)).splitlines() if "this one" in line]
    assert "c3" in marked
    tree = steps[-1].as_dict()["pool"]
    (root,) = tree["trajectories"]
    assert [node["key"] for node in root["edits"]] == ["b1", "b2"] and root["edits"][0]["edits"][0]["chosen"]
    assert root["without_result"][0]["reply"] == f"the reply {EVIL}" and root["sft"]["reasons"][1] == "too_long"


def test_ambiguous_and_unknown_keys_are_refused(run: Run) -> None:
    with pytest.raises(DataError, match="prefix of 2 keys; give a longer one, such as b1"):
        trace_back(run, "b")
    with pytest.raises(DataError, match="no trajectory or question begins with 'zz'"):
        trace_back(run, "zz")


def test_edited_trajectory_is_shown_with_its_edit_verdict_and_changes(run: Run) -> None:
    found = find_rollout(run, "b1")
    out = shown(trajectory_view(found))
    assert "round 1, hint_tail from a0, step 2" in out and "edit by hint_tail" in out and "against a0" in out
    assert "+ <search>x</search>" in out and "- <answer>1</answer>" in out
    assert "right (qa_f1, score 1.00): prediction '1'" in out
    whole = found.as_dict()
    assert whole["parent"]["rollout_key"] == "a0" and whole["rollout"]["judge"]["method"] == "qa_f1"
    assert [piece["side"] for piece in whole["changes"]["pieces"]] == ["same", "removed", "added", "added"]


def test_rows_are_located_without_a_full_read_and_never_in_a_changed_file(run: Run) -> None:
    record = run.record(Address.parse("1/pools"))
    assert record is not None
    table = run.rows(record.outputs["pools"])
    found = [batch.to_pylist() for batch in table.matching("rollout_key", lambda keys: pc.equal(keys, "b2"), ["round"])]
    assert found == [[{"rollout_key": "b2", "round": 1}]]
    part = Path(run.storage.location(f"{record.outputs['pools'].folder}/data/part-00000.parquet"))
    content = bytearray(part.read_bytes())
    content[-20] ^= 1  # in the footer, behind what is read
    part.write_bytes(content)
    with pytest.raises(ArtifactError, match="changed|cannot be read"):
        list(run.rows(record.outputs["pools"]).matching("rollout_key", lambda keys: pc.equal(keys, "b2")))


def test_rollout_is_traced_to_its_own_artifact_not_those_of_other_models(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question("q1", ["1"])])
    put_rows(run, "1/rollouts@a", ROLLOUTS, [rollout("aa", "q1", [], model="a")])
    put_rows(run, "1/rollouts@b", ROLLOUTS, [rollout("bb", "q1", [], model="b")])
    holders = {record.address: record.outputs for record in run.records()}
    step = next(step for step in trace_back(run, "aa") if "rollout" in step.facts)
    assert step.facts["artifacts"] == [holders["1/rollouts@a"]["rollouts"].digest]


def test_rollout_is_shown_and_traced_without_scores_of_an_older_version(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question("q1", ["1"])])
    put_rows(run, "1/rollouts@a", ROLLOUTS, [rollout("aa", "q1", [], model="a")])
    place = put_rows(run, "1/scores@a", SCORES, [score("aa", "q1", True)])
    found = find_rollout(run, "aa")
    assert found.score is not None and found.score_errors == ()
    record = run.record(place)
    assert record is not None
    manifest = Path(run.storage.location(f"{record.outputs['scores'].folder}/artifact.json"))
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema_version": 1}))
    found = find_rollout(run, "aa")
    assert found.rollout["rollout_key"] == "aa" and found.score is None
    (problem,) = found.score_errors
    assert "1/scores@a" in problem and "in version 1" in problem
    assert [step.label.partition(":")[0] for step in trace_back(run, "aa")][-1] == "verdict not read"


def test_question_shows_which_phases_selected_and_trained_on_it(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    asked = question("q1", ["Oreb"])
    rollouts = [rollout(key, "q1", [("answer", "<answer>Oreb</answer>")]) for key in ("r1", "r2")]
    put_rows(run, "1/questions", QUESTIONS, [asked])
    put_rows(run, "1/rollouts@phase-1", ROLLOUTS, rollouts)
    put_rows(run, "1/selection@phase-1", RL_ROWS, [rl_row("q1", parents=["r1"], rank=2), rl_row("q2")])
    places = (("q1", 3, 0), ("q1", 3, 1), ("q2", 4, 0))
    made = [filled(RL_ROLLOUTS, question_key=key, step=step, session=place) for key, step, place in places]
    put_rows(run, "1/rl@phase-1", RL_ROLLOUTS, made)
    assert [step.label for step in trace_back(run, "q1")][-2:] == [
        "selected by 1/selection@phase-1: pareto, rank 2, is_boundary 1, spread of calls 0.5, of scores 0.5",
        "trained on by 1/rl@phase-1: 2 trajectories in step 3",
    ]
    assert trace_back(run, "r1")[-1].label.startswith("selected by 1/selection@phase-1: pareto, rank 2")
    assert not trace_back(run, "r2")[-1].label.startswith("selected")


def test_key_in_several_iterations_resolves_to_the_last_or_named_one(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    for iteration, text, correct in ((1, "one", False), (2, "two", True)):
        put_rows(run, f"{iteration}/questions", QUESTIONS, [question("q1", ["two"])])
        put_rows(run, f"{iteration}/rollouts@m", ROLLOUTS, [rollout("r1", "q1", [("text", text)])])
        put_rows(run, f"{iteration}/scores@m", SCORES, [score("r1", "q1", correct)])
    for key, address, correct in (("r1", "2/rollouts@m", True), ("1/r", "1/rollouts@m", False)):
        found = find_rollout(run, key)
        assert found.score is not None
        assert (str(found.address), found.score["correct"]) == (address, correct)
    assert [step.label for step in trace_back(run, "1/r1")][-1].endswith("wrong")
    with pytest.raises(DataError, match="no trajectory begins with 'r1'"):
        find_rollout(run, "3/r1")


def test_calls_of_any_tool_are_shown_in_the_terminal_by_name(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question("q1", ["1"])])
    names = ["calc", "wiki.page", EVIL + "x" * 10_000]
    columns = {
        "tools": [{"tool": name, "requested": 1, "executed": 1, "failed": 0} for name in ("(invalid)", *names[:2])],
        "tool_calls": json.dumps([{"tool": name, "argument": "x", "status": "ok", "turn": 0} for name in names]),
        "calls_requested": 3, "calls_executed": 3,
    }  # fmt: skip
    parts = [("reasoning", "hm"), ("calc", "<calc>1</calc>"), ("tool_call", '{"name": "wiki.page"}')]
    row = rollout("r1", "q1", [*parts, ("tool_call", EVIL)], **columns)
    put_rows(run, "1/rollouts@base", ROLLOUTS, [row])
    view = trajectory_view(find_rollout(run, "r1"))
    said = shown(view)
    assert "3 of 3 calls run ((invalid) 1, calc 1, wiki.page 1), 0 failed" in " ".join(said.split())
    assert "calc: ok" in said and "wiki.page: ok" in said and "x" * 65 not in said
    body = next(part for part in view.renderables if isinstance(part, Text))
    styles = {body.plain[span.start : span.end]: str(span.style) for span in body.spans}
    assert styles["hm"] == "dim"
    calls = {styles["<calc>1</calc>"], styles['{"name": "wiki.page"}']}
    assert calls <= {"magenta", "blue", "bright_magenta", "cyan"}


def test_dialogue_is_shown_and_traced_with_its_environment(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question("q1", [])])
    row = dialogue_row(
        "d1", "q1", ("text", f"I say 32 {EVIL}"), ("user", f"Lower. {EVIL}"), ("text", "I say 8"),
        turn_rewards=[None, 0.5], reward=0.5, truncated=True, model=EVIL,
        first_messages=json.dumps([{"role": "user", "content": f"Begin. {EVIL}"}]),
    )  # fmt: skip
    made = put_from(run, "1/rollouts@base", {"rollouts": [row]}, {}, environment=f"my_envs.py:{EVIL}")
    scored = filled(SCORES, rollout_key="d1", question_key="q1", scorer="environment", judges="{}")
    scored |= {"correct": False, "score": 0.25, "prediction": EVIL, "is_reward": True}
    put_from(run, "1/scores@base", {"scores": [scored], "judgements": []}, {"rollouts": made})
    said = shown(trajectory_view(find_rollout(run, "d1")))
    lines = [line.strip(" │") for line in said.splitlines()]
    places = [lines.index(line) for line in ("policy, turn 1", "partner", "policy, turn 2, reward 0.5")]
    assert places == sorted(places) and "im_end" not in said and said.index("user: Begin.") < said.index("turn 1")
    assert "finished, truncated; 2 turns; 20 sampled tokens; reward 0.5" in lines
    assert "wrong (environment, score 0.25): last turn" in said and "gold" not in said and "calls" not in said
    assert any(line.startswith("environment: my_envs.py:") for line in lines)
    steps = trace_back(run, "d1")
    assert steps[2].facts["environment"] == f"my_envs.py:{EVIL}"
    assert "environment my_envs.py:" in shown(lineage_tree(steps))


def test_pool_names_an_environment_other_than_the_default(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question("q1", ["1"])])
    asked = filled(POOL_QUESTIONS, question_key="q1", status="solved", error=None, usage="{}")
    tables = {"pools": [trajectory("a0", 0)], "pool_questions": [asked], "pool_events": []}
    put_from(run, "1/pools", tables, {}, environment="my_envs.py:Own")
    step = trace_back(run, "a0")[-1]
    assert step.label.startswith("pool by 1/pools in my_envs.py:Own: ")
    assert step.facts["environment"] == "my_envs.py:Own"


def test_environment_of_a_row_is_that_which_it_names(tmp_path: Path) -> None:
    run, types = new_run(tmp_path), {"guess": "my_envs.py:Own", "web": "question"}
    asked = [question(f"q{place}", ["1"]) | {"environment": name} for place, name in enumerate(("default", *types))]
    put_rows(run, "1/questions", QUESTIONS, asked)
    rows = [
        rollout(f"r{place}", row["question_key"], [("text", "hm")], environment=row["environment"])
        for place, row in enumerate(asked)
    ]
    put_from(run, "1/rollouts@base", {"rollouts": rows}, {}, environments=types)
    pooled = [filled(POOL_QUESTIONS, question_key=row["question_key"], status="solved", usage="{}") for row in asked]
    put_from(
        run,
        "1/pools",
        {"pools": [trajectory("a0", 0)], "pool_questions": pooled, "pool_events": []},
        {},
        environments=types,
    )
    labels = ["", "guess (my_envs.py:Own)", "web (question)"]
    for place, label in enumerate(labels):
        said = shown(trajectory_view(find_rollout(run, f"r{place}")))
        assert (f"environment: {label}" in said) == bool(label) and ("calls run" in said) == (place != 1)
        (step,) = [step for step in trace_back(run, f"r{place}") if step.label.startswith("rollout ")]
        assert (f", environment {label})" in step.label) == bool(label)
        pool = trace_back(run, f"q{place}")[-1]
        assert pool.label.startswith(f"pool by 1/pools in {label}: " if label else "pool by 1/pools: ")
