"""A run over two kinds of tasks: each is rolled out, scored and trained on in its own environment, also after kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rollouts.guess_desk import TOKENIZER
from support.runs.command_line import Desk
from support.runs.mixture_desk import is_check, mixture_desk, play_both
from support.servers.scripted_server import RecordedRequest, Reply, served

RUN = ("run", "mixed.toml", "--run", "mixed")
NUM_KILLS = int(os.environ.get("TREADLE_KILL_POINTS", "1"))


def metrics_of(desk: Desk, address: str, run_id: str = "mixed") -> dict[str, Any]:
    """Return the metrics in the record of an instance."""
    record = json.loads((desk.folder / f"outputs/runs/{run_id}/records/{address}.json").read_text())
    metrics: dict[str, Any] = record["metrics"]
    return metrics


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Yield a desk with a finished run."""
    with served(play_both, codec=TOKENIZER) as server:
        desk = mixture_desk(tmp_path_factory.mktemp("mixed") / "desk", server.url)
        desk.treadle(*RUN).succeeded()
        yield desk


def test_each_task_is_rolled_out_and_scored_in_its_environment(mixed: Desk) -> None:
    questions = mixed.rows("mixed", "1/questions", "questions")
    assert [row["environment"] for row in questions] == ["default"] * 3 + ["guess"] * 3
    rollouts = mixed.rows("mixed", "1/rollouts@base", "rollouts")
    asked = [(row["question_key"], row["environment"]) for row in questions]
    assert [(row["question_key"], row["environment"]) for row in rollouts] == asked
    answered, games = rollouts[:3], rollouts[3:]
    assert {(row["status"], row["calls_executed"], row["reward"]) for row in answered} == {("answered", 1, None)}
    assert {(row["status"], row["calls_requested"], row["reward"]) for row in games} == {("finished", 0, 1.0)}
    assert (
        len({row["environment_digest"] for row in answered}) == len({row["environment_digest"] for row in games}) == 1
    )
    assert answered[0]["environment_digest"] != games[0]["environment_digest"]
    scores = mixed.rows("mixed", "1/scores@base", "scores")
    assert [row["correct"] for row in scores[:3]] == [False, True, False]
    assert all(row["scorer"].startswith("math") for row in scores[:3])
    assert {row["scorer"] for row in scores[3:]} == {"environment"}
    turns = [len(row["turn_rewards"]) for row in games]
    assert [row["score"] for row in scores[3:]] == pytest.approx([1.0 - 0.1 * (number - 1) for number in turns])


def test_rows_are_built_by_the_environment_of_each_trajectory(mixed: Desk) -> None:
    rollouts = {row["rollout_key"]: row for row in mixed.rows("mixed", "1/rollouts@base", "rollouts")}
    rows = {row["rollout_key"]: row for row in mixed.rows("mixed", "1/sft_rows", "sft_rows")}
    correct = {row["rollout_key"] for row in mixed.rows("mixed", "1/scores@base", "scores") if row["correct"]}
    assert rows.keys() == correct and {rollouts[key]["environment"] for key in rows} == {"default", "guess"}
    for key, row in rows.items():
        messages = json.loads(row["messages"])
        roles = [message["role"] for message in messages]
        if rollouts[key]["environment"] == "default":
            assert roles[:2] == ["system", "user"] and "<search>" in messages[0]["content"]
            assert row["num_result_tokens"] > 0
        else:
            assert (
                messages[0]["content"].startswith("I think of a number from 1 to 64.") and row["num_result_tokens"] == 0
            )
        (sample,) = rollouts[key]["samples"]
        kept = row["input_ids"][row["num_prompt_tokens"] :]
        assert row["input_ids"][: row["num_prompt_tokens"]] == sample["prompt_ids"]
        assert kept[: len(sample["ids"])] == sample["ids"][: len(kept)]


def test_record_has_the_figures_of_each_environment(mixed: Desk) -> None:
    counts = metrics_of(mixed, "1/questions")
    assert (counts["environment.default"], counts["environment.guess"]) == (3, 3)
    figures = metrics_of(mixed, "1/rollouts@base")
    assert (figures["num_rollouts"], figures["status_answered"], figures["status_finished"]) == (6, 3, 3)
    own = {name: value for name, value in figures.items() if name.startswith("environment.")}
    assert own["environment.default.status_answered"] == own["environment.default.calls_requested"] == 3
    assert own["environment.guess.status_finished"] == own["environment.guess.num_rollouts"] == 3
    assert own["environment.guess.calls_requested"] == 0
    assert mixed.rows("mixed", "1/report", "summary")


def test_rollouts_of_a_kind_are_those_of_a_run_with_this_kind_alone(mixed: Desk, tmp_path: Path) -> None:
    """The other kind changes no key, so that a mixture continues with what a run over one kind has made."""
    with served(play_both, codec=TOKENIZER) as server:
        desk = mixture_desk(tmp_path / "desk", server.url)
        config = (desk.folder / "mixed.toml").read_text()
        alone = config[: config.index("[environments.guess]")] + config[config.index("[scores]") :]
        kept = [line for line in alone.splitlines() if "tasks.jsonl" not in line]
        (desk.folder / "alone.toml").write_text("\n".join(kept))
        desk.treadle("run", "alone.toml", "--run", "alone", "--set", 'flow.stages=["rollouts"]').succeeded()
    alone_rows = desk.rows("alone", "1/rollouts@base", "rollouts")
    assert alone_rows == mixed.rows("mixed", "1/rollouts@base", "rollouts")[:3]
    assert not any(name.startswith("environment.") for name in metrics_of(desk, "1/rollouts@base", "alone"))


@pytest.mark.sweep
def test_killed_mixture_asks_no_model_answer_twice(tmp_path: Path) -> None:
    """A kill loses at most the requests that were in flight; what was journaled never reaches the server again."""
    seen: list[tuple[str, int]] = []
    lock, reached = threading.Lock(), threading.Event()
    limit = 0

    def script(request: RecordedRequest) -> Reply | str:
        if not is_check(request):
            with lock:
                seen.append((request.text, request.body["seed"]))
                if len(seen) >= limit:
                    reached.set()
        return play_both(request)

    with served(script, codec=TOKENIZER) as server:
        desk = mixture_desk(tmp_path / "desk", server.url, num_tasks=6)
        for kill in range(NUM_KILLS):
            with lock:
                # Six questions of two turns each come first, so that this is within the games.
                limit = len(seen) + 15 + 3 * (kill % 4)
                reached.clear()
            with desk.started(*RUN, "--set", "rollouts.max_concurrent=2") as process:
                while not reached.wait(0.05) and process.poll() is None:
                    pass
                assert process.poll() is None or kill, "it ended before the kill"
                if process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)
                process.wait()
        desk.treadle(*RUN).succeeded()
        again = sum(count - 1 for count in Counter(seen).values())
        shutil.copytree(desk.folder, tmp_path / "other", ignore=shutil.ignore_patterns("outputs"))
        whole = Desk(tmp_path / "other")
        whole.treadle(*RUN).succeeded()
    assert again <= 2 * NUM_KILLS, "more requests were served twice than were in flight at the kills"
    for address, kind in (("1/rollouts@base", "rollouts"), ("1/sft_rows", "sft_rows")):
        assert desk.rows("mixed", address, kind) == whole.rows("mixed", address, kind)


def test_only_environments_of_selected_questions_are_opened(tmp_path: Path) -> None:
    with served(play_both, codec=TOKENIZER) as server:
        desk = mixture_desk(tmp_path / "desk", server.url)
        only = ("--set", 'rollouts.datasets=["guess"]', "--set", 'flow.stages=["rollouts"]')
        desk.treadle(*RUN, *only).succeeded()
        assert {row["environment"] for row in desk.rows("mixed", "1/rollouts@base", "rollouts")} == {"guess"}
        assert not (desk.folder / "cache").exists(), "an index was built that no question searches"
        # Without a source in it, the default environment is not looked at.
        config = (desk.folder / "mixed.toml").read_text().replace("corpus.jsonl", "missing.jsonl")
        (desk.folder / "games.toml").write_text("\n".join(line for line in config.splitlines() if "sums" not in line))
        desk.treadle("run", "games.toml", "--run", "games").succeeded()
    assert {row["environment"] for row in desk.rows("games", "1/rollouts@base", "rollouts")} == {"guess"}
    assert desk.rows("games", "1/sft_rows", "sft_rows")


def test_pools_of_a_mixture_need_gold_answers_of_all(tmp_path: Path) -> None:
    desk = mixture_desk(tmp_path / "desk", "http://127.0.0.1:9/v1")
    told = desk.treadle(*RUN, "--set", 'flow.stages=["pools"]')
    told.failed("the tasks of my_envs.py:Guess have no gold answers", code=2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {'environment = "guess"': 'environment = "gues"'},
            ["sources[1].environment names 'gues'", "[environments.gues]"],
        ),
        ({"[environments.guess]": "[environments.default]"}, ["environments.default", "[environment]"]),
        ({"[environments.guess]": '[environments."Gu ess"]'}, ["environments.Gu ess", "lower-case letters"]),
        ({"[environments.guess]": f"[environments.{'g' * 41}]"}, ["1 to 40 lower-case letters"]),
    ],
)
def test_wrong_names_are_refused_in_one_line(tmp_path: Path, changes: dict[str, str], words: list[str]) -> None:
    desk = mixture_desk(tmp_path / "desk", "http://127.0.0.1:9/v1")
    config = desk.folder / "mixed.toml"
    for old, new in changes.items():
        config.write_text(config.read_text().replace(old, new))
    desk.treadle(*RUN).failed(*words, code=2)
    desk.treadle(*RUN, "--dry-run").failed(*words, code=2)
