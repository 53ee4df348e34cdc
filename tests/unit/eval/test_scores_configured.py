"""Judges from a config: which instance asks which judges, what is refused, and estimated costs."""

from __future__ import annotations

from typing import Any

import pytest
from support.tables.score_tables import new_run, put_rows, question, rollout

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import fingerprint_of
from treadle.core.runs.stage import Instance
from treadle.datagen.questions.tables import QUESTIONS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.estimate.estimates import estimates
from treadle.tasks.estimate.figures import Estimate
from treadle.tasks.planning.flow_plan import FlowPlan
from treadle.tasks.planning.order import flow_addresses

AT = [{"url": "http://127.0.0.1:1/v1"}]
PRICES = {"prompt_price_per_million": 1.0, "completion_price_per_million": 2.0}
MODELS = {
    "base": {"model": "m", "endpoints": AT},
    "large": {"model": "l", "endpoints": AT, **PRICES},
    "other": {"model": "o", "endpoints": AT, **PRICES},
}
BOTH = {"judges": {"models": ["large", "other"]}, "redundancy": {"model": "large", "votes": 4}}
ROLLOUTS_AT, SCORES_AT = Address.parse("1/rollouts@base"), Address.parse("1/scores@base")


def config(scores: Any = BOTH, **more: Any) -> TreadleConfig:
    alone = {"environment": {"search": {"enabled": False}}}
    return load_config(TreadleConfig, data={"models": MODELS, "scores": scores, **alone, **more})


def scores_of(made: TreadleConfig, address: Address = SCORES_AT) -> Instance:
    return instance(made, address)


def test_judges_judge_but_do_not_answer_questions() -> None:
    made = config()
    assert FlowPlan(made).compared_models() == ("base",)
    settings: Any = scores_of(made).settings
    assert list(settings.judges) == ["large", "other"] and settings.redundancy.name == "large"
    assert settings.judges["large"].sampling.temperature == 0 and settings.redundancy.sampling.temperature == 0.6
    assert FlowPlan(config(flow={"models": ["base", "large"]})).compared_models() == ("base", "large")


def test_shipped_scorers_that_run_code_are_opened_too() -> None:
    source = {"path": "x.jsonl", "dataset": "x", "domain": "code"}
    sources = [
        {**source, "scorer": "stdin_tests", "payload": ["tests"]},
        {**source, "scorer": "programs", "payload": ["reference", "tests"]},
        {**source, "scorer": "em", "answer_field": "answer"},
    ]
    made = config({}, questions={"sources": sources})
    assert set(FlowPlan(made).scorers()) == {"stdin_tests", "programs"}
    settings: Any = scores_of(made).settings
    assert set(settings.scorers) == {"stdin_tests", "programs"}


def test_no_judge_is_called_if_none_is_configured() -> None:
    settings: Any = scores_of(config({})).settings
    assert (settings.judges, settings.redundancy, settings.judge_digests, settings.seed) == ({}, None, (), 0)


def test_fingerprint_includes_judges_but_not_their_concurrency() -> None:
    def fingerprint(scores: Any) -> str:
        return fingerprint_of(scores_of(config(scores)), {})

    usual = fingerprint(BOTH)
    assert fingerprint({**BOTH, "max_concurrent": 3, "max_cost": 7.0, "judgement_time_s": 5.0}) == usual
    others: list[Any] = [
        {},
        {"judges": BOTH["judges"]},
        {**BOTH, "judges": {"models": ["large"]}},
        {**BOTH, "judges": {**BOTH["judges"], "on_failed": "rule"}},
        {**BOTH, "redundancy": {"model": "large", "votes": 5}},
        {**BOTH, "best_of": {"model": "large"}},
    ]
    assert len({usual, *map(fingerprint, others)}) == 1 + len(others)


def test_phases_are_scored_by_the_rules_that_reward_them() -> None:
    made = config(flow={"stages": ["selection"], "models": ["base"]}, rl={"start": "embedded"})
    phase = Address.parse("1/scores@phase-1")
    assert phase in flow_addresses(made)
    settings: Any = scores_of(made, phase).settings
    assert (settings.judges, settings.redundancy, settings.options.judges.models) == ({}, None, ())
    assert fingerprint_of(scores_of(made, phase), {}) == fingerprint_of(
        scores_of(config({}, flow={"stages": ["selection"], "models": ["base"]}, rl={"start": "embedded"}), phase), {}
    )


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ({"judges": {"models": ["nobody"]}}, "scores.judges.models names 'nobody'"),
        ({"redundancy": {"model": "nobody"}}, "scores.redundancy.model names 'nobody'"),
        ({"best_of": {"model": "nobody"}}, "scores.best_of.model names 'nobody'"),
        ({"judges": {"models": ["large", "large"]}}, "listed twice"),
        ({"judges": {"models": ["large"], "domains": ["choice"]}}, "domains"),
    ],
)
def test_impossible_judges_are_refused(scores: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config(scores)


def test_same_model_under_two_names_is_refused() -> None:
    elsewhere = MODELS["large"] | {"endpoints": [{"url": "http://127.0.0.1:2/v1"}]}
    made = config({"judges": {"models": ["large", "other", "again"]}}, models={**MODELS, "again": elsewhere})
    with pytest.raises(ConfigError, match="names 'large' and 'again', which are the same model"):
        scores_of(made)


def test_override_may_name_other_judges_but_only_configured_models() -> None:
    changed = config(overrides={str(SCORES_AT): {"judges": {"models": ["other"]}}})
    settings: Any = scores_of(changed).settings
    assert list(settings.judges) == ["other"]
    with pytest.raises(ConfigError, match="'nobody', which is not under"):
        scores_of(config(overrides={str(SCORES_AT): {"redundancy": {"model": "nobody"}}}))


def test_judge_may_be_a_checkpoint_of_the_run() -> None:
    server = {"type": "vllm", "model": "1/sft"}
    made = load_config(
        TreadleConfig, data={"models": {**MODELS, "own": {"model": "own", "server": server}}, "scores": BOTH}
    )
    assert scores_of(made).inputs["checkpoint"] == ()
    tuned = made.model_dump(mode="json") | {"scores": {"judges": {"models": ["own"]}}}
    assert scores_of(load_config(TreadleConfig, data=tuned)).inputs["checkpoint"] == (Address.parse("1/sft"),)


def estimate(made: TreadleConfig, run: Any = None) -> Estimate | None:
    instances = [instance(made, ROLLOUTS_AT), instance(made, SCORES_AT)]
    return next(iter(estimates(instances, run, [str(SCORES_AT)], force=False)), None)


def test_judges_are_estimated_in_calls_and_cost_before_any_request() -> None:
    made = config(rollouts={"max_questions": 50, "samples_per_question": 2})
    found = estimate(made)
    assert found is not None and (found.unit, found.num_units) == ("rollout", 100)
    calls = {role.role: (role.model, role.calls) for role in found.roles}
    assert calls == {
        "correctness:large": ("large", 50),
        "correctness:other": ("other", 50),
        "redundancy:large": ("large", 400),
    }
    assert found.cost == pytest.approx(
        sum(role.prompt_tokens * 1e-6 + role.completion_tokens * 2e-6 for role in found.roles)
    )
    assert len(found.assumptions) == 2
    assert estimate(config({}, rollouts={"max_questions": 50})) is None


def test_choices_are_estimated_once_per_question() -> None:
    scores = {"best_of": {"model": "large"}}
    found = estimate(config(scores, rollouts={"max_questions": 50, "samples_per_question": 4}))
    assert found is not None and {role.role: role.calls for role in found.roles} == {"best_of:large": 50}
    few = estimate(config(scores, rollouts={"max_questions": 50, "samples_per_question": 2}))
    assert few is not None and not few.roles


def test_existing_rollouts_are_counted(tmp_path: Any) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question("q1", ["7"], "math"), question("q2", ["x"])])
    rows = [rollout(f"r{number}", "q1", [], sample_index=number) for number in range(6)]
    put_rows(run, "1/rollouts@base", ROLLOUTS, rows)
    found = estimate(config(rollouts={"max_questions": 50}), run)
    assert found is not None and (found.num_units, found.num_units_source) == (6, "6 rollouts in 1/rollouts@base")
    assert {role.calls for role in found.roles} == {2, 24}


def test_unused_role_of_another_model_is_estimated(tmp_path: Any) -> None:
    run = new_run(tmp_path)
    put_rows(run, "1/questions", QUESTIONS, [question("q1", ["7"], "math")])
    put_rows(run, "1/rollouts@base", ROLLOUTS, [rollout(f"r{n}", "q1", [], sample_index=n) for n in range(6)])
    rollouts = run.record(ROLLOUTS_AT)
    assert rollouts is not None
    # It had no calls to vote on.
    usage = {"correctness:large": {"calls": 9, "prompt_tokens": 900, "completion_tokens": 9}}
    metrics = {"num_rollouts": 3, "num_judgements_missing": 0, "usage": usage}
    scored = {"address": "1/scores@other", "stage": "scores", "metrics": metrics}
    run.write_record(rollouts.model_copy(update=scored))
    found = estimate(config(), run)
    assert found is not None and "measured in 1/scores@other" in found.basis
    assert {role.role: role.calls for role in found.roles} == {
        "correctness:large": 18,
        "correctness:other": 3,
        "redundancy:large": 24,
    }
    assert "not measured there: correctness:other, redundancy:large" in found.assumptions[0]
