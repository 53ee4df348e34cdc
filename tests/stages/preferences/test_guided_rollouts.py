"""The stage `guided_rollouts` over HTTP: the critic's choice of turns, hidden information, kills, budgets, figures."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from support.preferences.bench import Bench
from support.preferences.desk import CANARY, Desk, Told
from support.servers.scripted_server import Fault, Item, RecordedRequest, Reply, served

from treadle.agent.contract import Task
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import BudgetExceeded, JobsPending, StageFailed
from treadle.environments.stored_rollout import StoredRollout
from treadle.rl.guided.figures import TaskVerdicts, comparison, guided_report


class Guesser:
    """A policy that says one of ten numbers by its seed, and cannot score well."""

    def __init__(self, tokenizer: ChatTokenizer, numbers: int = 10) -> None:
        self.sampled: list[RecordedRequest] = []
        self.scored: list[str] = []
        self._tokenizer = tokenizer
        self._numbers = numbers

    def __call__(self, request: RecordedRequest) -> Item:
        """Return a guess, or log-probabilities that prefer nothing."""
        if "prompt_logprobs" in request.body:
            assert isinstance(request.prompt, list)
            self.scored.append(request.text)
            return self.scores(request)
        if "I think of a number" in request.text:  # else it is a check of the server
            self.sampled.append(request)
        said = f"I say {1 + request.body['seed'] % self._numbers}"
        return Reply(said, (*self._tokenizer.encode(said), self._tokenizer.turn_end_ids[0]))

    def scores(self, request: RecordedRequest) -> Item:
        assert isinstance(request.prompt, list)
        logprobs = (-1.0,) * (len(request.prompt) - 1)
        return Reply("x", (self._tokenizer.encode("x")[0],), "length", prompt_logprobs=logprobs)


class Knower(Guesser):
    """A critic that finds a guess the likelier, the nearer it is to the number that it is told."""

    def scores(self, request: RecordedRequest) -> Item:
        assert isinstance(request.prompt, list)
        told = re.search(rf"{CANARY} (\d+)\.", request.text)
        guess = int(re.findall(r"I say (\d+)", request.text)[-1])
        logprob = -0.01 - 0.05 * abs(guess - int(told[1])) if told else -0.5
        logprobs = (logprob,) * (len(request.prompt) - 1)
        return Reply("x", (self._tokenizer.encode("x")[0],), "length", prompt_logprobs=logprobs)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    made.put({"a": (1.0, 0.0), "b": (0.5, 0.0), "c": (0.25,), "d": (None,)}, held_out=("a", "b"))
    return made


@pytest.mark.covers("sweet-6")
def test_each_turn_is_the_candidate_that_the_critic_prefers(desk: Desk) -> None:
    policy, critic = Guesser(desk.tokenizer), Knower(desk.tokenizer)
    with served(policy, codec=desk.tokenizer) as server, served(critic, codec=desk.tokenizer) as other:
        record = Bench(desk, server, other).guided(num_candidates=8)
    rows = desk.rows("1/guided_rollouts", "guided_rollouts")
    assert [row["question_key"] for row in rows] == ["a", "b"]
    for row, secret in zip(rows, (3, 8), strict=True):
        turns = [one["text"] for one in json.loads(row["segments"]) if one["kind"] not in ("user", "frame")]
        guesses = [int(re.findall(r"\d+", text)[0]) for text in turns if "I say" in text]
        assert len(row["choices"]) == row["num_turns"] == len(guesses)
        for guess, choice in zip(guesses, row["choices"], strict=True):
            advantages = {one["candidate"]: one["advantage"] for one in choice["scored"]}
            assert choice["num_candidates"] == 8 and advantages[choice["chosen"]] == max(advantages.values())
            assert advantages[choice["chosen"]] == pytest.approx(0.99 - 0.05 * abs(guess - secret))
        assert guesses[-1] == secret and row["status"] == "finished" and row["correct"] == (row["score"] > 0.5)
    assert critic.scored and all(CANARY in text for text in critic.scored)
    assert not any(CANARY in text for text in policy.scored)
    assert not any(CANARY in request.text for request in policy.sampled)
    assert CANARY not in str(rows)
    scores = [row["score"] for row in rows]
    found = record.metrics
    assert (found["tasks"], found["mean_score"]) == (2, pytest.approx(sum(scores) / 2))
    assert found["plain.mean_score"] == pytest.approx((0.5 + 0.25) / 2) and found["plain.success"] == 0.25
    assert found["gain"] == pytest.approx(found["mean_score"] - 0.375)


def test_figures_name_the_number_of_candidates_and_the_gain(desk: Desk) -> None:
    policy, critic = Guesser(desk.tokenizer), Knower(desk.tokenizer)
    with served(policy, codec=desk.tokenizer) as server, served(critic, codec=desk.tokenizer) as other:
        record = Bench(desk, server, other).guided(num_candidates=4, samples_per_question=2, split=None)
    shown = guided_report(record, desk.run, {})
    assert "a diagnostic of the critic, not a policy" in shown.sentences[0]
    assert "On the 3 tasks that were also rolled out without the critic" in shown.sentences[1]
    assert f"its choices change the score by {record.metrics['gain']:+.4f} (standard error" in shown.sentences[1]
    (table,) = shown.figures
    assert [row[:2] for row in table.rows] == [
        ("best of 4 per turn", 4),
        ("the same, on the tasks below", 3),
        ("plain rollouts", 3),
    ]
    assert table.rows[2][2] == f"{(0.5 + 0.25 + 0.25) / 3:.4f}" and record.metrics["rollouts"] == 8


def test_comparison_is_over_tasks_and_leaves_out_what_has_no_score() -> None:
    guided, plain = TaskVerdicts(), TaskVerdicts()
    for key, score in (("a", 1.0), ("a", 0.0), ("a", 0.5), ("b", 1.0), ("c", None)):
        guided.add(key, score, None if score is None else score == 1.0)
    assert comparison(guided, plain) == {"tasks": 2, "mean_score": 0.75, "success": pytest.approx(2 / 3)}
    plain.add("a", 0.25, False)
    plain.add("z", 1.0, True)
    found = comparison(guided, plain)
    assert (found["common.tasks"], found["common.mean_score"], found["plain.mean_score"]) == (1, 0.5, 0.25)
    assert found["gain"] == 0.25 and "gain_error" not in found and guided.num_without == 1
    plain.add("b", 0.25, False)
    assert comparison(guided, plain)["gain_error"] == pytest.approx(0.25)


def test_one_candidate_or_equal_ones_leave_the_critic_no_choice(desk: Desk) -> None:
    policy, critic = Guesser(desk.tokenizer, numbers=1), Knower(desk.tokenizer)
    with served(policy, codec=desk.tokenizer) as server, served(critic, codec=desk.tokenizer) as other:
        bench = Bench(desk, server, other)
        record = bench.guided(num_candidates=3)
        assert record.metrics["scored_turns"] == 0 and len(policy.sampled) == 3 * record.metrics["turns"]
        policy.sampled.clear()
        record = bench.guided(num_candidates=1)
        assert len(policy.sampled) == record.metrics["turns"]
    assert not critic.scored and not policy.scored


def test_cut_candidates_are_taken_only_if_there_are_no_others(desk: Desk) -> None:
    class Wordy(Guesser):
        def __call__(self, request: RecordedRequest) -> Item:
            made = super().__call__(request)
            if (
                isinstance(made, Reply)
                and made.token_ids
                and request.body["seed"] % 2
                and "prompt_logprobs" not in request.body
            ):
                return Reply("I say 3", tuple(self._tokenizer.encode("I say 3")), "length")
            return made

    policy, critic = Wordy(desk.tokenizer), Knower(desk.tokenizer)
    with served(policy, codec=desk.tokenizer) as server, served(critic, codec=desk.tokenizer) as other:
        Bench(desk, server, other).guided(num_candidates=8, max_questions=1)
    end = desk.tokenizer.decode([desk.tokenizer.turn_end_ids[0]])
    assert critic.scored and all(text.endswith(end) for text in critic.scored)


def test_ablated_critic_sees_no_hidden_information_and_reference_may(desk: Desk) -> None:
    policy, critic = Guesser(desk.tokenizer), Knower(desk.tokenizer)
    with served(policy, codec=desk.tokenizer) as server, served(critic, codec=desk.tokenizer) as other:
        bench = Bench(desk, server, other)
        bench.guided(num_candidates=2, changed={"hidden": False})
        assert critic.scored and not any(CANARY in text for text in critic.scored)
        bench.guided(num_candidates=2, changed={"reference_conditioning": "hidden_info"})
        assert any(CANARY in text for text in policy.scored)
        summed = bench.guided(num_candidates=2, changed={"is_mean": False})
    assert summed.metrics["turns"]


class Limited:
    """A server that refuses what follows its first `num_answers` answers, until `num_answers` is None."""

    def __init__(self, script: Guesser, num_answers: int | None) -> None:
        self.answered: list[tuple[int, str]] = []
        self.num_answers = num_answers
        self._script = script

    def __call__(self, request: RecordedRequest) -> Item:
        if self.num_answers is not None and len(self.answered) >= self.num_answers:
            return Fault.status(400)
        if "I think of a number" in request.text:
            self.answered.append((request.body["seed"], request.text))
        return self._script(request)


@pytest.mark.parametrize(("by_policy", "by_critic"), [(3, None), (6, None), (6, 2), (11, None), (None, 5)])
def test_stopped_rollout_asks_for_nothing_that_it_has(desk: Desk, by_policy: int | None, by_critic: int | None) -> None:
    policy, critic = Limited(Guesser(desk.tokenizer), by_policy), Limited(Knower(desk.tokenizer), by_critic)
    with served(policy, codec=desk.tokenizer) as server, served(critic, codec=desk.tokenizer) as other:
        bench = Bench(desk, server, other, force=False)
        limits = {"num_candidates": 4, "max_questions": 1, "pending_retries": 0}
        with pytest.raises(JobsPending):
            bench.guided(**limits)
        assert policy.answered
        policy.num_answers = critic.num_answers = None
        record = bench.guided(**limits)
        (row,) = desk.rows("1/guided_rollouts", "guided_rollouts")
        asked = Counter(policy.answered), Counter(critic.answered)
        Bench(desk, server, other).guided(**limits)
    assert all(set(counts.values()) == {1} for counts in asked), "nothing is asked twice"
    (again,) = desk.rows("1/guided_rollouts", "guided_rollouts")
    assert row == again and record.metrics["rollouts"] == 1, "as if it had not been stopped"


def test_budget_covers_candidates_and_scores_of_earlier_attempts(desk: Desk) -> None:
    policy, critic = Guesser(desk.tokenizer), Knower(desk.tokenizer)
    with served(policy, codec=desk.tokenizer) as server, served(critic, codec=desk.tokenizer) as other:
        bench = Bench(desk, server, other, force=False)
        limits = {"num_candidates": 6, "max_total_tokens": 2500, "max_concurrent": 1}
        with pytest.raises(BudgetExceeded):
            bench.guided(**limits)
        before = len(policy.sampled), len(policy.scored), len(critic.scored)
        assert all(before)
        with pytest.raises(BudgetExceeded):
            bench.guided(**limits)
        assert before == (len(policy.sampled), len(policy.scored), len(critic.scored))


class Unscored(Told):
    """Tell the number, and score nothing."""

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        raise ValueError("no scale")


def test_rollouts_without_scores_fail_the_stage(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Unscored)
    desk.put({"a": (1.0, 0.0)}, held_out=("a",))
    policy, critic = Guesser(desk.tokenizer), Knower(desk.tokenizer)
    with (
        served(policy, codec=desk.tokenizer) as server,
        served(critic, codec=desk.tokenizer) as other,
        pytest.raises(
            StageFailed,
            match="0 of 1 rollouts have a score, 0 failed, 0 are left out; first error: .* no scale",
        ),
    ):
        Bench(desk, server, other).guided(num_candidates=2)


class ShortKnower(Knower):
    """A critic whose window is too small for tasks with some of the numbers."""

    def __init__(self, tokenizer: ChatTokenizer, numbers: set[int]) -> None:
        super().__init__(tokenizer)
        self._too_long = numbers

    def scores(self, request: RecordedRequest) -> Item:
        told = re.search(rf"{CANARY} (\d+)\.", request.text)
        return Fault.too_long() if told and int(told[1]) in self._too_long else super().scores(request)


def test_rollout_that_the_critic_cannot_read_is_left_out_and_counted(desk: Desk) -> None:
    policy, critic = Guesser(desk.tokenizer), ShortKnower(desk.tokenizer, {3})
    limits = {"num_candidates": 4, "max_concurrent": 1}
    with (
        served(policy, codec=desk.tokenizer) as server,
        served(critic, codec=desk.tokenizer, max_model_len=None) as other,
    ):
        bench = Bench(desk, server, other, force=False)
        with pytest.raises(BudgetExceeded):
            bench.guided(max_total_tokens=1200, **limits)
        asked = Counter((request.body["seed"], request.text) for request in policy.sampled)
        record = bench.guided(**limits)
        again = Counter((request.body["seed"], request.text) for request in policy.sampled)
    assert asked and set(again.values()) == {1}, "what is left out stays so, and is asked nothing more"
    (row,) = desk.rows("1/guided_rollouts", "guided_rollouts")
    assert row["question_key"] == "b" and record.metrics["left_out.critic_window"] == 1
    assert record.metrics["tasks"] == 1 and record.metrics["common.tasks"] == 1
    assert any(
        one.startswith("1 rollouts left out (critic_window)") for one in guided_report(record, desk.run, {}).sentences
    )


def test_guided_rollouts_that_are_all_left_out_fail_the_stage(desk: Desk) -> None:
    policy, critic = Guesser(desk.tokenizer), Knower(desk.tokenizer)
    with (
        served(policy, codec=desk.tokenizer) as server,
        served(critic, codec=desk.tokenizer, max_model_len=80) as other,
        pytest.raises(StageFailed, match=r"2 are left out; first error: models.critic: the critic cannot score turn"),
    ):
        Bench(desk, server, other).guided(num_candidates=4)
    assert not critic.scored
