"""Warnings about rollouts without an end say what may be wrong, as far as the type of environment tells."""

from __future__ import annotations

from typing import Any

from treadle.environments.rollouts.report import rollout_warnings

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
