"""The turns of a dialogue: who speaks, the numbers of the policy's turns, and their rewards."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from starlette.testclient import TestClient
from support.tables.score_tables import new_run, put_rows
from support.tables.viewer_run import agent_row, client, dialogue_row, filled, put_from, question_row

from treadle.cli.views.trajectory import trajectory_view
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES
from treadle.rl.training.tables import RL_ROLLOUTS
from treadle.tasks.inspection.lineage import find_rollout
from treadle.viewer.changes.difference import difference
from treadle.viewer.segments import pieces_of
from treadle.viewer.turns import trimmed_places, turn_heads

ASKED = ("text", "I say 32")
LOWER = ("user", "Lower.")


def cut(*parts: tuple[str, int]) -> list[dict[str, Any]]:
    """Return segments by kind and number of ids."""
    found, end = [], 0
    for kind, num_ids in parts:
        found.append({"kind": kind, "text": "x", "start": end, "end": end + num_ids})
        end += num_ids
    return found


def labels(*given: Any, **more: Any) -> dict[int, str]:
    return {place: head.label for place, head in turn_heads(*given, **more).items()}


def test_messages_have_speakers_and_the_policy_numbers() -> None:
    parts = cut(("think", 2), ("text", 3), ("frame", 2), ("user", 2), ("frame", 2), ("text", 3), ("tool", 1))
    heads = turn_heads(parts, [{"turn_starts": [0, 11]}], [0.5, None])
    assert {place: head.label for place, head in heads.items()} == {
        0: "policy, turn 1", 3: "partner", 5: "policy, turn 2", 6: "tool",
    }  # fmt: skip
    assert heads[0].rewards == (0.5,) and heads[5].rewards == ()


def test_rollout_without_messages_or_rewards_is_no_dialogue() -> None:
    parts = cut(("think", 2), ("search", 3), ("result", 2), ("answer", 3), ("frame", 1))
    assert turn_heads(parts, [{"turn_starts": [0, 7]}]) == {}
    assert labels(parts, [{"turn_starts": [0, 7]}], [1.0, 0.0]) == {0: "policy, turn 1", 3: "policy, turn 2"}


def test_turn_that_wrote_nothing_is_counted_with_the_next() -> None:
    parts = cut(("text", 2), ("frame", 1), ("user", 1), ("frame", 2), ("user", 1), ("frame", 2), ("text", 2))
    heads = turn_heads(parts, [{"turn_starts": [0, 4, 9]}], [0.0, 0.25, 1.0])
    assert heads[6].label == "policy, turns 2 to 3" and heads[6].rewards == (0.25, 1.0)
    at_the_end = turn_heads(cut(("text", 2), ("user", 1), ("text", 2)), [{"turn_starts": [0, 2, 3]}])
    assert at_the_end[0].numbers == (1,) and at_the_end[2].numbers == (2, 3)
    empty_last = turn_heads(cut(("text", 2), ("user", 1), ("frame", 2)), [{"turn_starts": [0, 5]}])
    assert empty_last[0].label == "policy, turns 1 to 2"
    assert turn_heads([], [{"turn_starts": [0]}], [1.0]) == {}


def test_turns_over_several_samples_are_numbered_through() -> None:
    parts = cut(("text", 3), ("user", 2), ("text", 3)) + cut(("text", 4), ("user", 2), ("text", 1))
    parts.insert(3, {"kind": "frame", "text": "", "start": 8, "end": 8})
    starts = [{"turn_starts": [0, 5]}, {"turn_starts": [0, 6]}]
    assert [label for label in labels(parts, starts).values() if label != "partner"] == [
        "policy, turn 1", "policy, turn 2", "policy, turn 3", "policy, turn 4",
    ]  # fmt: skip


def test_page_says_where_the_context_was_trimmed(tmp_path: Path) -> None:
    given = cut(("think", 3), ("plan", 2), ("result", 3)) + cut(("think", 4), ("result", 2)) + cut(("answer", 1))
    assert trimmed_places(given) == {3, 5}
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question_row("q", "Q?")])
    sample = {"prompt_ids": [1], "training_prompt_ids": None, "ids": [], "origins": [], "spans": [], "turn_starts": []}
    row = agent_row(ROLLOUTS, "r", "q", ("answer", "1")) | {"segments": json.dumps(given), "samples": [sample] * 3}
    put_rows(run, "1/rollouts@base", ROLLOUTS, [row])
    page = client(run).get("/trajectory/1/rollouts@base/r").text
    assert page.count('class="meta trim"') == 2 and "<dt>contexts</dt>" in page
    out = io.StringIO()
    Console(file=out, width=100).print(trajectory_view(find_rollout(run, "r")))
    assert out.getvalue().count("context trimmed") == 2


def test_turns_without_ids_have_numbers_if_each_wrote_something() -> None:
    parts = [{"kind": kind, "text": "x", "start": 0, "end": 0} for kind in ("text", "user", "text")]
    assert labels(parts, [{"turn_starts": []}], num_turns=2) == {0: "policy, turn 1", 1: "partner", 2: "policy, turn 2"}
    assert labels(parts, [{"turn_starts": []}], num_turns=3) == {0: "policy", 1: "partner", 2: "policy"}


def test_kinds_come_from_the_row() -> None:
    given = [{"kind": "lookup", "text": "<lookup>a</lookup>", "start": 0, "end": 0}]
    given += [{"kind": "user", "text": "<user>b</user>", "start": 0, "end": 0}]
    (call, message) = pieces_of(given, [{"tool": "lookup", "status": "error"}])
    assert (call.text, call.style, call.outcome) == ("a", "call-1", "error")
    assert (message.text, message.style, message.outcome) == ("<user>b</user>", "user", "")


def kinds_and_styles(*given: tuple[str, str], tools: tuple[str, ...] = ()) -> list[tuple[str, str, str, str]]:
    """Return kind, style, tool and outcome of each segment."""
    parts = [{"kind": kind, "text": text, "start": 0, "end": 0} for kind, text in given]
    calls = [{"tool": tool, "status": "ok"} for tool in tools]
    return [(piece.kind, piece.style, piece.tool, piece.outcome) for piece in pieces_of(parts, calls)]


def test_native_calls_are_shown_under_the_name_of_their_tool() -> None:
    hermes = '<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}\n</tool_call>'
    given = [("reasoning", "Let me look."), ("tool_call", hermes), ("tool", "a.txt"), ("tool_call", '{"name": "wiki"}')]
    given.append(("answer", "It is a."))
    assert kinds_and_styles(*given, tools=("shell", "wiki")) == [
        ("reasoning", "think", "", ""), ("tool_call", "call-1", "shell", "ok"), ("tool", "tool", "", ""),
        ("tool_call", "call-2", "wiki", "ok"), ("answer", "answer", "", ""),
    ]  # fmt: skip
    parts = [{"kind": kind, "text": text, "start": 0, "end": 0} for kind, text in given]
    reasoning, call, _, other, answer = pieces_of(parts)
    assert [piece.is_unclosed for piece in (reasoning, call, other, answer)] == [False] * 4
    assert [piece.is_folded for piece in (reasoning, call, other, answer)] == [True, False, False, False]
    assert call.text.startswith('{"name"') and other.text == '{"name": "wiki"}' and call.tool == ""
    cut_off = [{"kind": kind, "text": f"<{tag}>x", "start": 0, "end": 0} for kind, tag in MARKED]
    assert [(piece.text, piece.is_unclosed) for piece in pieces_of(cut_off)] == [("x", True)] * 2


MARKED = (("tool_call", "tool_call"), ("reasoning", "think"))


def test_ledger_that_does_not_match_names_no_call() -> None:
    given = (("tool_call", "{}"), ("calc", "<calc>1</calc>"))
    assert [one[2:] for one in kinds_and_styles(*given, tools=("wiki", "calc"))] == [("wiki", "ok"), ("", "ok")]
    for tools in (("calc", "wiki"), ("wiki", "calc", "calc")):
        assert [one[2:] for one in kinds_and_styles(*given, tools=tools)] == [("", "")] * 2


def test_calls_are_recognised_without_a_ledger_by_their_results() -> None:
    given = [("calc", "<calc>1</calc>"), ("text", "\n"), ("result", "<result>1</result>"), ("plan", "<plan>x</plan>")]
    styles = [style for _, style, _, _ in kinds_and_styles(*given)]
    assert styles[0].startswith("call-") and styles[1:] == ["text", "result", "other"]
    blocks = difference([{"kind": kind, "text": text} for kind, text in given], []).blocks
    assert [block.style for block in blocks] == styles


def test_tool_named_like_a_kind_keeps_the_style_of_the_kind() -> None:
    assert kinds_and_styles(("answer", "<answer>1</answer>"), tools=("answer",))[0][1] == "answer"


def viewed(root: Path, *rows: dict[str, Any], environment: str = "question", **score: Any) -> TestClient:
    run = new_run(root)
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", "Guess my number.", [])])
    made = put_from(run, "1/rollouts@base", {"rollouts": rows}, {}, environment=environment)
    fixed = {"question_key": "q1", "scorer": "environment", "is_reward": True, "judges": "{}", **score}
    scores = [filled(SCORES, rollout_key=row["rollout_key"], **fixed) for row in rows]
    put_from(run, "1/scores@base", {"scores": scores, "judgements": []}, {"rollouts": made})
    return client(run)


def test_page_of_a_dialogue_says_who_speaks_and_hides_frames(tmp_path: Path) -> None:
    outcome = {"reward": 0.75, "success": True, "parts": {"speed": 0.25}}
    row = dialogue_row(
        "d", "q1", ASKED, LOWER, ("text", "I say 8"), ("tool", "<b>8</b>"), ("text", "STOP"),
        turn_rewards=[None, 0.5, -0.125], reward=0.75, outcome=json.dumps(outcome), truncated=True,
    )  # fmt: skip
    viewer = viewed(tmp_path, row, score=0.6, correct=True, prediction="STOP")
    page = viewer.get("/trajectory/1/rollouts@base/d").text
    heads = ["policy, turn 1", "partner", "policy, turn 2", "tool", "policy, turn 3"]
    places = [page.index(f'<span class="speaker">{head}</span>') for head in heads]
    assert places == sorted(places)
    assert 'class="turn-reward">reward 0.50<' in page and 'class="turn-reward">reward −0.12<' in page
    assert page.count("kind-frame") == 4 and 'id="frames"' in page
    assert "finished, truncated" in page and "speed" in page and "0.250" in page and "success" in page
    assert "last turn" in page and "accepted" not in page and "efficiency" not in page
    assert "&lt;b&gt;8&lt;/b&gt;" in page and "<b>8" not in page


def test_list_of_dialogues_has_no_column_of_calls(tmp_path: Path) -> None:
    rows = [dialogue_row("d", "q1", ASKED, LOWER)]
    assert ">Calls" in viewed(tmp_path / "question", *rows, score=1.0, correct=True).get("/").text
    viewer = viewed(tmp_path / "own", *rows, environment="my_envs.py:<i>Guess", score=1.0, correct=True)
    assert ">Tokens" in viewer.get("/").text and ">Calls" not in viewer.get("/").text
    page = viewer.get("/trajectory/1/rollouts@base/d").text
    assert "my_envs.py:&lt;i&gt;Guess" in page and "<dt>calls</dt>" not in page


def test_environment_of_a_row_is_that_which_it_names(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", "Guess my number.", [])])
    guessed = dialogue_row("d", "q1", ASKED, LOWER, environment="guess")
    answered = agent_row(ROLLOUTS, "r", "q1", ("text", "I cannot say."))
    put_from(run, "1/rollouts@base", {"rollouts": [guessed, answered]}, {}, environments={"guess": "my_envs.py:Guess"})
    viewer = client(run)
    listed = viewer.get("/").text
    assert ">Environment<" in listed and ">Calls" in listed
    only = viewer.get("/?environment=guess").text
    assert "/trajectory/1/rollouts@base/d" in only and "/trajectory/1/rollouts@base/r" not in only
    page = viewer.get("/trajectory/1/rollouts@base/d").text
    assert "guess (my_envs.py:Guess)" in page and "<dt>calls</dt>" not in page
    other = viewer.get("/trajectory/1/rollouts@base/r").text
    assert "my_envs.py" not in other and "<dt>calls</dt>" in other


def test_tool_rollout_has_no_speakers(tmp_path: Path) -> None:
    row = agent_row(ROLLOUTS, "r", "q1", ("search", "a"), ("result", "b"), ("answer", "c"))
    page = viewed(tmp_path, row).get("/trajectory/1/rollouts@base/r").text
    assert (
        'class="speaker"' not in page
        and 'id="frames"' not in page
        and "<dt>calls</dt><dd><bdi>1 (search 1)</bdi>" in page
    )


def test_reward_of_a_task_in_a_training_is_the_environments(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question_row("q1", "Guess my number.", [])])
    said = json.dumps([{"kind": "text", "text": "I say 8", "start": 0, "end": 4}])
    fixed = {"step": 3, "group": "g", "question_key": "q1", "domain": "task", "finish": "finished", "segments": said}
    made = {"reward": -2.5, "score": 0.0}
    put_rows(run, "1/rl@phase-1", RL_ROLLOUTS, [filled(RL_ROLLOUTS, **fixed, **made)])
    page = client(run).get("/trajectory/1/rl@phase-1/3.0.g").text
    assert "<dt>reward</dt><dd>−2.500</dd>" in page and "f tool" not in page
