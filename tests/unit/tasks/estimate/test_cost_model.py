"""Estimates before any measurement have the magnitude of the method's own count."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rich.console import Console
from support.rollouts.rollouts_bench import Bench

from treadle.agent.tools.settings import ToolSettings
from treadle.cli.views.figures import estimate_view
from treadle.core.runs.address import Address
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance
from treadle.datagen.pools.settings import PoolOptions
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.environments.question.settings import QuestionSettings
from treadle.eval.config import ScoresOptions
from treadle.rl.config import RlOptions
from treadle.tasks.estimate.context import expected_shares
from treadle.tasks.estimate.cost_model import (
    ExpectedRollout,
    PhaseSize,
    mean_cost,
    phase_size,
    pool_cost,
    result_tokens,
    rollout_cost,
    scores_cost,
    web_searches,
)
from treadle.tasks.estimate.estimates import estimates
from treadle.tasks.estimate.measured import mean_of_records

ENVIRONMENT = QuestionSettings()


def calls(options: PoolOptions, share_math: float = 0.0) -> dict[str, float]:
    return {role: used["calls"] for role, used in pool_cost(options, ENVIRONMENT, share_math).roles.items()}


def test_three_rounds_cost_about_thirty_completions_and_up_to_ten_verdicts() -> None:
    expected = calls(PoolOptions(), share_math=1.0)
    assert 25 < sum(expected.values()) - expected["judge"] < 35
    assert 5 < expected["judge"] <= 10


def test_each_operator_costs_its_requests() -> None:
    base = calls(PoolOptions(rounds=0))
    assert base == {"policy": 3.0}
    for name, role, more in (
        ("rerollout", "policy", 1.5),
        ("redundant_mod", "critic", 0.5),
        ("global_refine", "critic", 1.0),
        ("self_correct", "refiner", 1.0),
        ("hint_step", "critic", 0.5),
        ("hint_tail", "policy", 1.0),
        ("reflect", "refiner", 0.5),
    ):
        expected = calls(PoolOptions(rounds=1, operators=(name,)))
        assert expected[role] - base.get(role, 0.0) == more, name


def test_expanding_all_trajectories_makes_each_round_costlier() -> None:
    totals = [sum(calls(PoolOptions(rounds=rounds, selection="all")).values()) for rounds in (1, 2, 3)]
    assert totals[2] - totals[1] > totals[1] - totals[0] > 0


def test_every_further_turn_resends_its_context() -> None:
    one = rollout_cost(ENVIRONMENT).roles["policy"]
    no_tools = QuestionSettings.model_validate({"python": {"enabled": False}, "search": {"enabled": False}})
    alone = rollout_cost(no_tools).roles["policy"]
    assert (one["calls"], alone["calls"]) == (3.0, 1.0)
    assert one["prompt_tokens"] > 3 * alone["prompt_tokens"]


def test_tools_of_ones_own_take_turns_and_have_results() -> None:
    none = QuestionSettings.model_validate({"python": {"enabled": False}, "search": {"enabled": False}})
    own = none.model_copy(update={"tools": {"weather": ToolSettings(type="weather")}})
    assert ExpectedRollout(none).turns == 1
    assert ExpectedRollout(own).turns == 3 and result_tokens(own) > 0


def test_web_pages_are_longer_than_corpus_documents() -> None:
    web = {"provider": {"type": "searxng", "url": "http://127.0.0.1:9"}}

    def tokens(search: dict[str, object]) -> float:
        return result_tokens(QuestionSettings.model_validate({"python": {"enabled": False}, "search": search}))

    assert tokens({"corpus": ["c.jsonl"]}) == 1_200
    assert tokens({"web": web}) == 3_750
    assert tokens({"web": {**web, "pages": False}}) == 1_250
    assert tokens({"web": {**web, "max_chars": 400}}) == 100
    assert tokens({"web": web, "corpus": ["c.jsonl"]}) == (1_200 + 3_750) / 2
    both = {"web": web, "corpus": ["c.jsonl"], "route": "both"}
    assert tokens(both) == 1_200 + 3_750
    assert result_tokens(QuestionSettings.model_validate({"search": both})) == (4_950 + 62.5) / 2


def test_web_searches_are_estimated_only_if_a_provider_is_queried() -> None:
    web = {"provider": {"type": "searxng", "url": "http://127.0.0.1:9"}}

    def searches(search: dict[str, object], **keys: object) -> float:
        return web_searches(QuestionSettings.model_validate({"search": search, **keys}), 3.0)

    assert searches({"web": web}) == 1.0
    assert searches({"web": web}, python={"enabled": False}) == 2.0
    assert searches({"web": {"mode": "replay", "recorded_in": "record"}}) == 0.0
    assert searches({"corpus": ["c.jsonl"]}) == searches({"web": web, "enabled": False}) == 0.0


def test_cost_of_a_mixture_is_weighted_by_questions() -> None:
    short = QuestionSettings.model_validate({"max_turns": 1})
    costs = {"default": rollout_cost(ENVIRONMENT), "short": rollout_cost(short)}
    mixed = mean_cost({"default": 0.75, "short": 0.25}, costs.__getitem__)
    assert mixed.roles["policy"]["calls"] == 0.75 * 3 + 0.25
    assert mean_cost({"default": 1.0}, lambda _: rollout_cost(ENVIRONMENT)) == rollout_cost(ENVIRONMENT)


def test_questions_are_counted_by_environment(tmp_path: Path) -> None:
    source = {"path": "a.jsonl", "domain": "qa"}
    guessed = source | {"environment": "guess"}

    def shares(*sources: dict[str, object]) -> dict[str, float]:
        settings = QuestionsSettings.model_validate({"sources": sources})
        return expected_shares([cast(Instance, SimpleNamespace(settings=settings))])

    assert shares(source | {"limit": 30}, guessed | {"limit": 10}) == {"default": 0.75, "guess": 0.25}
    assert shares(source | {"limit": 30}, guessed) == {"default": 0.5, "guess": 0.5}
    assert shares(guessed) == {"guess": 1.0} and shares() == {"default": 1.0}


def test_estimate_includes_searches_and_pages(tmp_path: Path) -> None:
    def told(**web: object) -> str:
        search = {"enabled": True, "web": {"provider": {"type": "searxng", "url": "http://127.0.0.1:9"}, **web}}
        bench = Bench(tmp_path / str(len(web)), ["Who?"])
        options = {"samples_per_question": 4, "max_questions": 10}
        item = bench.instance("http://127.0.0.1:9", environment={"search": search}, options=options)
        (estimate,) = estimates([item], None, [str(item.address)], force=False)
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(estimate_view(estimate))
        return console.export_text()

    assert "The web: about 80 searches and at most 400 pages; recorded ones are not requested again." in told()
    assert "The web: about 80 searches; recorded" in told(pages=False)
    assert "The web" not in told(mode="replay", recorded_in="record")


def test_reused_questions_are_estimated_from_their_original_iteration(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ["Who?", "Where?"])
    first = bench.instance("http://127.0.0.1:9")
    (made,) = first.inputs["questions"]
    taken = replace(made, iteration=2)
    later = replace(first, address=replace(first.address, iteration=2), inputs={**first.inputs, "questions": (taken,)})
    asked = replace(bench.questions, address=taken)
    (estimate,) = estimates([asked, later], bench.run, [str(later.address)], force=False)
    assert (estimate.num_units, estimate.num_units_source) == (2, f"from {taken}")


def test_paper_phase_samples_a_thousand_trajectories_per_step() -> None:
    paper = RlOptions.model_validate({"preset": "et-agent-7b"})
    assert phase_size(paper, 8000) == PhaseSize(375, 375 * 64 * 16, 38 * 160)
    assert phase_size(paper, 63) == PhaseSize(0, 0, 0)
    few = RlOptions(max_steps=3, validation_questions=5, validation_steps=3)
    assert phase_size(few, 8000) == PhaseSize(3, 3 * 4 * 16, 5)


def test_resumed_phase_counts_only_the_remaining_steps() -> None:
    paper = RlOptions.model_validate({"preset": "et-agent-7b"})
    assert phase_size(paper, 8000, steps_done=330) == PhaseSize(45, 45 * 64 * 16, 5 * 160)
    assert phase_size(paper, 8000, steps_done=375) == PhaseSize(0, 0, 0)


def made(address: str, stage: str, metrics: dict[str, Any], imported_from: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(address=address, stage=stage, metrics=metrics, imported_from=imported_from)


def record(address: str, calls: int) -> SimpleNamespace:
    counts = {"num_rollouts": 10, "num_turns": 10 * calls, "prompt_tokens": 100, "completion_tokens": 10}
    return made(address, "rollouts", counts)


def test_training_is_estimated_from_rollouts_of_the_nearest_phase() -> None:
    def measured(address: str, *records: SimpleNamespace) -> float | None:
        place = Address.parse(address)
        item: Any = SimpleNamespace(address=place, stage=SimpleNamespace(name=place.stage))
        mean = mean_of_records(item, cast(Run, SimpleNamespace(records=lambda: list(records))))
        return mean.roles["policy"]["calls"] if mean else None

    base, first, third = record("1/rollouts@base", 1), record("1/rollouts@phase-1", 2), record("1/rollouts@phase-3", 4)
    assert measured("1/rl@phase-3", base, first, third) == 4
    assert measured("1/rl@phase-2", base, first) == 2
    assert measured("1/rl@phase-1", base) is None
    assert measured("1/rollouts@phase-4", base, first, third) == 4
    assert measured("1/rollouts@tuned", first, base, third) == 1


def test_judge_estimate_covers_undecided_answers_and_votes_on_tool_rollouts() -> None:
    options = ScoresOptions.model_validate({"judges": {"models": ["a", "b"]}, "redundancy": {"model": "a", "votes": 7}})
    expected = scores_cost(options, ENVIRONMENT, share_math=0.5).roles
    asked = {role: used["calls"] for role, used in expected.items()}
    assert asked == {"correctness:a": 0.25, "correctness:b": 0.25, "redundancy:a": 7}
    assert expected["redundancy:a"]["prompt_tokens"] > 7 * expected["correctness:a"]["prompt_tokens"]
    assert set(scores_cost(options, ENVIRONMENT, share_math=0.0).roles) == {"redundancy:a"}
    no_tools = QuestionSettings.model_validate({"python": {"enabled": False}, "search": {"enabled": False}})
    assert set(scores_cost(options, no_tools, share_math=1.0).roles) == {"correctness:a", "correctness:b"}
    assert scores_cost(ScoresOptions(), ENVIRONMENT, share_math=1.0).roles == {}


def test_judge_estimate_uses_scores_that_paid_for_all_their_judgements() -> None:
    used = {"correctness:a": {"calls": 4, "prompt_tokens": 400, "completion_tokens": 40}}

    def measured(missing: int = 0) -> Any:
        metrics = {"num_rollouts": 8, "num_judgements_missing": missing, "usage": used}
        scores, rules = made("1/scores@b", "scores", metrics), made("1/scores@a", "scores", {"num_rollouts": 8})
        item: Any = SimpleNamespace(address=Address.parse("1/scores@a"), stage=SimpleNamespace(name="scores"))
        return mean_of_records(item, cast(Run, SimpleNamespace(records=lambda: [rules, scores])))

    assert measured().roles["correctness:a"] == {"calls": 0.5, "prompt_tokens": 50, "completion_tokens": 5}
    assert measured(missing=1) is None
