"""Warnings about rollouts without an end say what may be wrong, as far as the type of environment tells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from treadle.environments.rollouts.report import rollout_warnings
from treadle.environments.rollouts.summary import rollouts_report

METRICS: dict[str, Any] = {"num_rollouts": 3, "calls_requested": 0, "status_max_turns": 3}


def test_dialogue_without_an_end_is_not_blamed_on_tags() -> None:
    (sentence,) = rollout_warnings(METRICS, "my_envs.py:Guess")
    assert sentence.startswith("my_envs.py:Guess ended none of 3 rollouts (max_turns 3).") and "tags" not in sentence
    assert "tags" in rollout_warnings(METRICS)[0]


def test_no_warning_if_the_environment_ended_a_rollout() -> None:
    assert rollout_warnings({**METRICS, "status_finished": 1}, "my_envs.py:Guess") == []


def test_tools_that_no_rollout_called_are_named() -> None:
    metrics = {"num_rollouts": 8, "calls_requested": 0, "status_answered": 8}
    (sentence,) = rollout_warnings(metrics, tools=["weather"])
    assert sentence.startswith("No tool (weather) was called in 8 rollouts. The server may not read")
    assert rollout_warnings(metrics) == rollout_warnings({**metrics, "calls_requested": 1}, tools=["weather"]) == []
    assert rollout_warnings({**metrics, "status_failed": 1}, tools=["weather"]) == []


def sentences_of(metrics: dict[str, Any], **settings: Any) -> list[str]:
    record: Any = SimpleNamespace(metrics=metrics, settings={"environment": {"type": "question"}, **settings})
    run: Any = None
    told = rollouts_report(record, run, {})
    return told.sentences if told is not None else []


def test_environments_of_a_mixture_are_warned_about_by_name_and_apart() -> None:
    ended = {"num_rollouts": 9, "calls_requested": 9, "status_answered": 9, "odd_no_text": 2}
    games = {f"environment.guess.{name}": value for name, value in METRICS.items()}
    sums = {f"environment.default.{name}": value for name, value in ended.items()}
    guess = {"guess": {"type": "my_envs.py:Guess", "tools": {"weather": {}}}}
    unread, *odd = sentences_of({**ended, **games, **sums}, environments=guess)
    assert unread.startswith("Environment guess: my_envs.py:Guess ended none of 3 rollouts")
    assert len(odd) == 1, "odd answers of the server are told once"
    silent = {**games, "environment.guess.num_rollouts": 8, "environment.guess.status_finished": 8}
    (unused, *_) = sentences_of({**ended, **silent, **sums}, environments=guess)
    assert unused.startswith("Environment guess: No tool (weather) was called in 8 rollouts.")
    assert sentences_of(ended)[0] == odd[0] and "tags" in sentences_of(METRICS)[0]
