"""Instances and the locked config are derived from a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import fingerprint_of
from treadle.rl.rewards.efficiency import EfficiencyReward
from treadle.rl.rewards.outcome import OutcomeReward
from treadle.tasks.catalog import instance, semantic_of
from treadle.tasks.config import TreadleConfig, overridden
from treadle.tasks.planning.order import flow_addresses

MODELS = {
    "base": {"model": "m", "endpoints": [{"url": "http://127.0.0.1:1/v1"}]},
    "tuned": {"model": "m2", "endpoints": [{"url": "http://127.0.0.1:1/v1"}]},
}


def config(**more) -> TreadleConfig:
    return load_config(TreadleConfig, data={"models": MODELS, "environment": {"search": {"enabled": False}}, **more})


def test_flow_has_rollouts_and_scores_per_model_and_one_report() -> None:
    addresses = [str(address) for address in flow_addresses(config())]
    assert addresses == [
        "1/questions", "1/rollouts@base", "1/scores@base", "1/rollouts@tuned", "1/scores@tuned", "1/report",
    ]  # fmt: skip


def test_override_changes_one_instance_only() -> None:
    changed = config(overrides={"1/rollouts@base": {"max_questions": 3}})
    assert instance(changed, Address.parse("1/rollouts@base")).settings.options.max_questions == 3
    assert instance(changed, Address.parse("1/rollouts@tuned")).settings.options.max_questions is None


def test_override_with_another_type_replaces_its_table() -> None:
    for reward in ({"type": "efficiency", "scale": 2.0}, {"type": "em"}):
        address = Address.parse("1/rl@phase-1")
        changed = config(rl={"reward": reward}, overrides={str(address): {"reward": {"type": "outcome"}}})
        assert overridden(changed, address, changed.rl).reward == OutcomeReward()
    same = config(rl={"reward": {"scale": 2.0}}, overrides={"1/rl@phase-1": {"reward": {"format_penalty": 0.5}}})
    rule = overridden(same, address, same.rl).reward
    assert isinstance(rule, EfficiencyReward) and (rule.scale, rule.format_penalty) == (2.0, 0.5)


def test_unknown_override_key_is_refused_with_its_location() -> None:
    with pytest.raises(ConfigError, match=r'overrides."1/rollouts@base".max_question'):
        instance(config(overrides={"1/rollouts@base": {"max_question": 3}}), Address.parse("1/rollouts@base"))


def test_preset_refuses_a_measure_without_published_figures() -> None:
    embedded = {"pages": {"type": "similarity", "measure": "efficientnet-lite0"}}
    preset = {"preset": "sweet-llama-8b"}
    for tables in ({"dpo": preset}, {"overrides": {"1/dpo@policy": preset}}):
        with pytest.raises(ConfigError, match='scorers.pages has measure = "efficientnet-lite0", whose values cannot'):
            config(scorers=embedded, **tables)
        config(scorers={"pages": {"type": "similarity"}}, **tables)
    config(scorers=embedded)


def test_operational_override_key_is_not_locked() -> None:
    locked = semantic_of(config(overrides={"1/rollouts@base": {"max_concurrent": 3}}))
    assert locked == semantic_of(config(overrides={"1/rollouts@base": {"max_concurrent": 5}}))
    assert locked != semantic_of(config(overrides={"1/rollouts@base": {"max_questions": 5}}))


@pytest.mark.parametrize("text", ["1/rollouts", "1/rollouts@other", "1/report@base", "1/nonsense"])
def test_impossible_instance_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        instance(config(), Address.parse(text))


def test_sft_starts_from_a_policy_of_the_run_but_not_from_its_own_output() -> None:
    begun = instance(config(sft={"model": "1/rl@phase-1"}), Address.parse("1/sft"))
    assert begun.inputs["checkpoint"] == (Address.parse("1/rl@phase-1"),)
    assert instance(config(), Address.parse("1/sft")).inputs["checkpoint"] == ()
    with pytest.raises(ConfigError, match=r"1/sft: sft\.model = 1/sft is the output of this stage; use `embedded`"):
        instance(config(sft={"model": "1/sft"}), Address.parse("1/sft"))


def test_reinforcement_refuses_rollouts_with_several_contexts() -> None:
    planned, address = {"type": "planning", "search": {"max_calls": 0}}, Address.parse("1/rl@phase-1")
    for key, value in (("trim_reserve_tokens", 9), ("context", {"manager": "linear_think"})):
        environment = {**planned, key: value}
        made = instance(config(environment=environment, rl={"start": "embedded", "engine": "trl"}), address)
        assert made.settings.environment.has_several_contexts
        for refused, why in (
            ({"engine": "verl"}, "trains on one; use"),
            ({"loss_agg": "sequence_mean"}, "weigh rollouts by their number"),
        ):
            with pytest.raises(ConfigError, match=f"several token sequences.*environment.{key}.*{why}"):
                instance(config(environment=environment, rl={"start": "embedded", **refused}), address)
    thinking = {"context": {"manager": "linear_think"}}
    with pytest.raises(ConfigError, match="branching needs one per rollout; leave out rl.initial_rollouts"):
        instance(config(environment=thinking, rl={"start": "embedded", "initial_rollouts": 2}), address)
    assert (
        instance(config(environment=planned, rl={"start": "embedded"}), address).settings.environment.trimming is None
    )


def test_pools_with_edits_refuse_trajectories_of_several_contexts() -> None:
    off = {"enabled": False}
    environment = {"context": {"manager": "linear_think"}, "search": off}
    address = Address.parse("1/pools")
    with pytest.raises(ConfigError, match=r'continue trajectories of one context.*pools.operators = \["rerollout"\]'):
        instance(config(environment=environment), address)
    instance(config(environment=environment, pools={"operators": ["rerollout"]}), address)


def test_reinforcement_refuses_a_helper_that_gives_verdicts() -> None:
    roles = {"clipper": {"model": "base"}}
    off = {"enabled": False}
    clipped = {"context": {"manager": "context_selfclip"}, "roles": roles, "search": off}
    rl, address = {"start": "embedded", "engine": "trl"}, Address.parse("1/rl@phase-1")
    with pytest.raises(ConfigError, match=r"ask other models \(clipper\)"):
        instance(config(environment=clipped, rl=rl), address)
    instance(config(environment={"roles": roles, "search": off}, rl=rl), address)


def test_run_index_comes_from_its_search_tool(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "contents": "A"}\n')
    search = {"corpus": [str(tmp_path / "corpus.jsonl")], "chunk_words": 50, "top_n": 2}
    made = instance(config(environment={"search": search}), Address.parse("1/index"))
    rollouts = instance(config(environment={"search": search}), Address.parse("1/rollouts@base"))
    theirs = rollouts.settings.environment.search
    assert made.settings.model_dump() == {name: getattr(theirs, name) for name in made.settings.model_dump()} | {
        "encoder": theirs.encoder.model_dump(), "dense": theirs.dense.model_dump(),
    }  # fmt: skip
    assert made.settings.corpus_sha256 is not None and made.settings.chunk_words == 50
    assert "1/index" not in map(str, flow_addresses(config(environment={"search": search})))


WEB = {"provider": {"type": "searxng", "url": "http://127.0.0.1:9"}}


@pytest.mark.parametrize(
    ("search", "where"),
    [
        ({"enabled": False}, "nowhere"),
        ({"service": {"endpoints": [{"url": "http://127.0.0.1:9"}]}}, "at services"),
        ({"web": WEB}, "the web"),
        ({"service": {"endpoints": [{"url": "http://127.0.0.1:9"}]}, "web": WEB}, "at services and the web"),
    ],
)
def test_run_without_its_own_index_has_no_index_stage(search: dict[str, object], where: str) -> None:
    with pytest.raises(ConfigError, match=f"this run searches {where}, so it has no index of its own"):
        instance(config(environment={"search": search}), Address.parse("1/index"))


def test_summarizer_is_not_an_agent_unless_named_as_one() -> None:
    search = {"enabled": False, "summarizer": "tuned"}
    stages = {address.qualifier for address in flow_addresses(config(environment={"search": search}))}
    assert stages == {None, "base"}
    both = config(environment={"search": search}, flow={"models": ["base", "tuned"]})
    assert {address.qualifier for address in flow_addresses(both)} == {None, "base", "tuned"}


def test_model_that_episodes_ask_is_not_an_agent() -> None:
    asked = {"type": "support.rollouts.dialogues:Asking", "roles": {"human": {"model": "tuned"}}}
    assert {address.qualifier for address in flow_addresses(config(environment=asked))} == {None, "base"}


def test_another_summarizer_changes_the_rollouts(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "contents": "A"}\n')

    def fingerprint(**search: object) -> str:
        given = {"search": {"corpus": [str(tmp_path / "corpus.jsonl")], **search}}
        return fingerprint_of(instance(config(environment=given), Address.parse("1/rollouts@base")), {})

    plain, own, other = fingerprint(), fingerprint(summarizer="base"), fingerprint(summarizer="tuned")
    assert len({plain, own, other, fingerprint(summarizer="tuned", summarizer_sampling={"max_tokens": 9})}) == 4


def test_report_uses_headline_and_areas_of_its_datasets() -> None:
    sources = [{"path": f"{name}.jsonl"} for name in ("aime24", "musique", "gsm8k")]
    sources.append({"path": "own.jsonl", "dataset": "own", "domain": "choice"})
    questions = {"sources": sources, "benchmarks": {"mine": {"domain": "math"}}}
    bound = instance(config(questions=questions), Address.parse("1/report")).settings
    assert bound.headline == ("aime24", "musique")
    assert bound.areas == {"aime24": "math", "musique": "knowledge", "gsm8k": "math", "own": "knowledge"}
    said = {"headline": ["gsm8k"], "areas": {"own": "math"}}
    bound = instance(config(questions=questions, report=said), Address.parse("1/report")).settings
    assert (bound.headline, bound.areas["own"], bound.areas["gsm8k"]) == (("gsm8k",), "math", "math")


def test_unknown_report_dataset_names_are_refused_immediately() -> None:
    sources: list[dict[str, str]] = [{"path": f"{name}.jsonl"} for name in ("aime24", "musique")]
    for said in ({"headline": ["aime24", "musiqe"]}, {"areas": {"musiqe": "math"}}):
        with pytest.raises(ConfigError, match="names data set 'musiqe', which no source .* aime24, musique"):
            instance(config(questions={"sources": sources}, report=said), Address.parse("1/report"))
    left_out = instance(
        config(questions={"sources": sources}, report={"headline": ["bamboogle"]}), Address.parse("1/report")
    )
    assert left_out.settings.headline == ("bamboogle",), "a benchmark that is not asked this time"
    from_rows = [*sources, {"path": "more.jsonl", "source_field": "source"}]
    instance(config(questions={"sources": from_rows}, report={"headline": ["musiqe"]}), Address.parse("1/report"))


def test_questions_report_the_area_of_a_dataset_with_mixed_sources() -> None:
    sources = [{"path": f"{domain}.jsonl", "dataset": "own", "domain": domain} for domain in ("math", "qa")]

    def areas(**told: dict[str, Any]) -> dict[str, str]:
        bound = instance(config(**{"questions": {"sources": sources}, **told}), Address.parse("1/report"))
        return dict(bound.settings.areas)

    assert areas() == {}
    assert areas(report={"areas": {"own": "math"}}) == {"own": "math"}
    assert areas(questions={"sources": sources, "domains": {"own": "math"}}) == {"own": "math"}


def test_dataset_named_like_an_average_is_refused_immediately() -> None:
    sources = [{"path": f"{name}.jsonl"} for name in ("math", "musique")]
    with pytest.raises(ConfigError, match="may not be called 'math'.* `dataset = \"math-test\"`"):
        instance(config(questions={"sources": sources}), Address.parse("1/report"))
    instance(config(questions={"sources": sources[:1]}), Address.parse("1/report"))
