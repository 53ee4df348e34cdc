"""The guide to mixtures: its configuration runs as written, and everything names the environment of each row."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.docs_pages import FILE, ROOT, blocks
from support.qwen_tokenizer import qwen_tokenizer
from support.rollouts.guess_desk import TOKENIZER, guess, guide_code
from support.runs.command_line import Desk
from support.servers.scripted_server import RecordedRequest, Reply, served

GUIDE = ROOT / "docs/guides/mixtures.md"
QUESTION = {"question": "What is the capital of France?", "answer": ["Paris"]}


def play(request: RecordedRequest) -> Reply:
    """Guess by halving, or answer."""
    if "I think of a number" in request.text:
        return guess(request)
    said = "<answer>Paris</answer>"
    return Reply(said, tuple(TOKENIZER.encode(said)))


def desk_of_the_guide(folder: Path, url: str = "http://127.0.0.1:9/v1") -> Desk:
    folder.mkdir(exist_ok=True)
    desk = Desk(folder)
    (config,) = [block.text for block in blocks(GUIDE) if block.remark == f"{FILE}mix.toml"]
    config = config.replace("http://127.0.0.1:8000/v1", url)
    config = config.replace("[questions]", f'tokenizer = "{qwen_tokenizer()}"\n\n[questions]', 1)
    (folder / "mix.toml").write_text(config.replace("your-model", "scripted"))
    (folder / "my_envs.py").write_text(guide_code())
    desk.write("questions.jsonl", QUESTION)
    desk.write("corpus.jsonl", {"id": "1", "title": "France", "text": "Its capital is Paris."})
    desk.write("tasks.jsonl", *({"question": "Guess my number.", "secret": secret} for secret in (37, 62, 8)))
    return desk


def test_guide_runs_as_written(tmp_path: Path) -> None:
    with served(play, codec=TOKENIZER) as server:
        desk = desk_of_the_guide(tmp_path / "desk", server.url)
        unused = ("--set", "environments.spare.type=question")
        plan = desk.treadle("run", "mix.toml", "--run", "mix", "--dry-run", *unused).succeeded()
        assert "environments.spare is not used:" in plan.out and "environments.guess is not used" not in plan.out
        assert "keys of my_envs.py:Guess (under environments.guess):" in plan.out and "Largest number." in plan.out
        done = desk.treadle("run", "mix.toml", "--run", "mix").succeeded()
    rollouts = desk.rows("mix", "1/rollouts@base", "rollouts")
    assert sorted(row["environment"] for row in rollouts) == ["default", "guess", "guess", "guess"]
    scores = {row["rollout_key"]: row for row in desk.rows("mix", "1/scores@base", "scores")}
    scorers = {(row["environment"], scores[row["rollout_key"]]["scorer"]) for row in rollouts}
    assert scorers == {("default", "qa_em"), ("guess", "environment")}
    assert "secret" not in done.out
    summary = desk.rows("mix", "1/report", "summary")
    covers = {row["dataset"]: row["environments"] for row in summary}
    assert covers == {"capitals": ["default"], "guess": ["guess"], "all": ["default", "guess"]}
    assert not {"score", "reward", "efficiency"} & {row["figure"] for row in summary if row["dataset"] == "all"}
    key = next(row["rollout_key"] for row in rollouts if row["environment"] == "guess")
    for command in ("show", "lineage"):
        assert "guess (my_envs.py:Guess)" in desk.treadle(command, key, "--run", "mix").succeeded().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["environments.default.type=question"], ["environments.default", "[environment]"]),
        (["questions.sources=[{path='tasks.jsonl', environment='gues'}]"], ["'gues'", "[environments.gues]"]),
        (["environments.guess.type=gues"], ["'environments.guess': type = 'gues' is unknown"]),
        (
            [
                "environments.other.type=question",
                "questions.sources=[{path='questions.jsonl', domain='qa', environment='other'}]",
            ],
            ["no corpus: set environments.other.search.corpus"],
        ),
        (["rl.shares={default=0.5}"], ["shares (default = 0.5, guess = 0.75) have the sum 1.25"]),
        (["flow.stages=['pools']"], ["gold answers"]),
        (
            [
                "questions.sources=[{path='questions.jsonl', dataset='d', domain='qa'}, "
                "{path='tasks.jsonl', dataset='d', environment='guess'}]"
            ],
            ["data set 'd'", "default, guess"],
        ),
    ],
)
def test_refusals_of_the_guide_are_one_line(tmp_path: Path, changes: list[str], words: list[str]) -> None:
    desk = desk_of_the_guide(tmp_path / "desk")
    given = [text for change in changes for text in ("--set", change)]
    desk.treadle("run", "mix.toml", "--run", "mix", "--dry-run", *given).failed(*words)
