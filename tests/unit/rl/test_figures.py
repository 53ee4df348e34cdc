"""Aggregates of steps and validations."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from support.training.rewards import group_rewards

from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.rl.rewards.base import GroupItem
from treadle.rl.rewards.rewarded import RewardedItem
from treadle.rl.training.events import RlEvents
from treadle.rl.training.figures import step_figures, validation_figures
from treadle.rl.training.report import num_validation_misses
from treadle.rl.training.tables import RL_LOG, RL_VALIDATION

TURN = r"<think>a</think><answer>\boxed{%s}</answer>"


def rewards(*facts: tuple[str, int, int], failures: int = 0, sigma: float = 0.1) -> list[RewardedItem]:
    items = [
        GroupItem.from_text(
            TURN % answer,
            tool_calls=calls,
            model_tokens=length,
            tool_failures=min(failures, calls),
            dialect=TOOL_DIALECT,
        )
        for answer, calls, length in facts
    ]
    return group_rewards(items, ["12"], "math", sigma, sigma, dialect=TOOL_DIALECT)


def test_step_metrics_are_means_over_trajectories() -> None:
    groups = [rewards(("12", 1, 10), ("7", 3, 30)), rewards(("12", 2, 20), ("12", 2, 20), failures=1)]
    figures = step_figures(groups)
    flat = [reward.reward for group in groups for reward in group]
    assert figures["reward"] == pytest.approx(statistics.fmean(flat))
    assert figures["reward_std"] == pytest.approx(statistics.stdev(flat[:2]) / 2)
    assert (figures["num_rollouts"], figures["score"], figures["parts"]["format_ok"]) == (4, 0.75, 1.0)
    assert (figures["calls"], figures["tool_failures"], figures["length"]) == (2.0, 0.5, 20.0)
    assert figures["parts"]["f_tool"] == figures["parts"]["f_len"] == pytest.approx(1.0)
    assert (figures["parts"]["sigma_tool"], figures["parts"]["sigma_length"]) == (0.1, 0.1)


def test_step_reports_how_its_rollouts_ended() -> None:
    statuses = ("answered", "timeout", "length", "budget", "context_full", "no_answer", "limit", "max_turns")
    items = [GroupItem.from_text(TURN % "12", status=status, dialect=TOOL_DIALECT) for status in statuses]
    figures = step_figures([group_rewards(items, ["12"], "math", 0.1, 0.1, dialect=TOOL_DIALECT)])
    assert (figures["answered"], figures["timeout"], figures["cut_off"]) == (1 / 8, 1 / 8, 3 / 8)
    assert step_figures([])["timeout"] is None


def test_engine_step_metrics_become_a_log_row(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    figures = step_figures([rewards(("12", 1, 10), ("7", 3, 30))])
    fewer = ("num_rollouts", "num_groups", "num_equal_groups", "reward")
    events = [
        {"event": "begin", "num_steps": 2, "resumed_step": 0, "num_trained_parameters": 1, "device": "cpu"},
        {"event": "step", "step": 1, **figures, "seconds": 1.0},
        # Of an engine that reports less.
        {"event": "step", "step": 2, **{name: figures[name] for name in fewer}, "seconds": 2.0},
    ]
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    log = RlEvents(path)
    list(log.new())
    now, earlier = (step.as_row() for step in log.steps)
    parts = figures.pop("parts")
    assert [(part["name"], part["value"]) for part in now["parts"]] == sorted(parts.items())
    assert figures.items() <= now.items() and set(now) == set(RL_LOG.schema.names)
    assert (now["answered"], earlier["answered"], earlier["reward"]) == (1.0, None, figures["reward"])
    assert earlier["parts"] == []


def test_groups_without_internal_differences_have_no_learning_signal() -> None:
    figures = step_figures([rewards(("12", 1, 10), ("12", 1, 10)), rewards(("7", 1, 10), ("7", 1, 10))])
    assert (figures["reward"], figures["reward_std"], figures["num_equal_groups"]) == (0.5, 0.0, 2)
    # Three times this number, divided by three, is another number.
    thirds = [replace(reward, reward=0.7734603050039117) for reward in rewards(*[("12", 1, 10)] * 3)]
    assert (step_figures([thirds])["reward_std"], step_figures([thirds])["num_equal_groups"]) == (0.0, 1)


def test_lost_trajectories_are_excluded_from_means() -> None:
    group = rewards(("12", 1, 10), ("7", 3, 30))
    lost = replace(group[1], scored=False, reward=9.0, tool_calls=99)
    assert step_figures([[*group, lost], [lost]]) == step_figures([group])
    nothing = step_figures([[lost]])
    assert (nothing["num_rollouts"], nothing["reward"], nothing["reward_std"]) == (0, None, None)
    assert validation_figures([lost], ["math"])["score"] is None


def test_validation_is_reported_in_total_and_by_domain() -> None:
    math = rewards(("12", 4, 10), ("7", 0, 30), failures=1, sigma=0.0)
    qa = rewards(("12", 0, 20), sigma=0.0)
    figures = validation_figures([*math, *qa], ["math", "math", "qa"])
    assert (figures["num_questions"], figures["score"]) == (3, pytest.approx(2 / 3))
    assert figures["efficiency"] == pytest.approx((0.25 + 0 + 1) / 3)
    assert (figures["calls"], figures["length"], figures["executed"]) == (pytest.approx(4 / 3), 20.0, 0.75)
    assert set(figures["by_domain"]) == {"math", "qa"}
    assert figures["by_domain"]["math"]["score"] == 0.5
    assert figures["by_domain"]["qa"]["executed"] is None


def test_unrecorded_searches_are_counted_in_validation_too(tmp_path: Path) -> None:
    asked = [replace(reward, web_misses=number) for number, reward in enumerate(rewards(*[("12", 4, 10)] * 3))]
    figures = validation_figures(asked, ["math", "math", "qa"])
    assert (figures["web_misses"], figures["by_domain"]["math"]["web_misses"]) == (1.0, 0.5)
    log = RlEvents(tmp_path / "events.jsonl")
    log.take({"event": "validation", "step": 2, **figures})
    made = log.validations[2]
    assert set(made.as_rows()[0]) == set(RL_VALIDATION.schema.names)
    assert [row["web_misses"] for row in made.as_rows()] == [1.0, 0.5, 2.0]
    assert num_validation_misses([made, made]) == 6
    # One that was reported before they were counted.
    old = {name: value for name, value in figures.items() if name not in ("web_misses", "by_domain")}
    log.take({"event": "validation", "step": 4, **old, "by_domain": {}})
    assert log.validations[4].overall.web_misses is None and num_validation_misses([log.validations[4]]) == 0
