"""How instances and the locked configuration follow from a configuration."""

from __future__ import annotations

import pytest

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.core.stage import Address
from treadle.tasks.catalog import flow_addresses, instance, semantic_of
from treadle.tasks.config import TreadleConfig

MODELS = {
    "base": {"model": "m", "endpoints": [{"url": "http://127.0.0.1:1/v1"}]},
    "tuned": {"model": "m2", "endpoints": [{"url": "http://127.0.0.1:1/v1"}]},
}


def config(**more) -> TreadleConfig:
    return load_config(TreadleConfig, data={"models": MODELS, "environment": {"search": {"enabled": False}}, **more})


def test_a_flow_has_rollouts_and_scores_per_model_and_one_report() -> None:
    addresses = [str(address) for address in flow_addresses(config())]
    assert addresses == [
        "1/questions", "1/rollouts@base", "1/scores@base", "1/rollouts@tuned", "1/scores@tuned", "1/report",
    ]  # fmt: skip


def test_an_override_changes_one_instance_only() -> None:
    changed = config(overrides={"1/rollouts@base": {"max_questions": 3}})
    assert instance(changed, Address.parse("1/rollouts@base")).settings.options.max_questions == 3
    assert instance(changed, Address.parse("1/rollouts@tuned")).settings.options.max_questions is None


def test_an_unknown_key_of_an_override_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r'overrides."1/rollouts@base".max_question'):
        instance(config(overrides={"1/rollouts@base": {"max_question": 3}}), Address.parse("1/rollouts@base"))


def test_an_operational_key_of_an_override_is_not_locked() -> None:
    locked = semantic_of(config(overrides={"1/rollouts@base": {"max_concurrent": 3}}))
    assert locked == semantic_of(config(overrides={"1/rollouts@base": {"max_concurrent": 5}}))
    assert locked != semantic_of(config(overrides={"1/rollouts@base": {"max_questions": 5}}))


@pytest.mark.parametrize("text", ["1/rollouts", "1/rollouts@other", "1/report@base", "1/nonsense"])
def test_an_instance_that_cannot_exist_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        instance(config(), Address.parse(text))
