"""Environments are described by files, shipped ones or others."""

from __future__ import annotations

from pathlib import Path

import pytest

from treadle.core.errors import ConfigError, DataError
from treadle.datagen.exploration.profile import SHIPPED, find_profile
from treadle.datagen.exploration.strategies import FIRST_LINE, CuriousStrategy
from treadle.environments.ledger.book import CALLS


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_are_read(name: str) -> None:
    profile = find_profile(None, name)
    assert len(profile.entities) >= 2 and profile.task_preference.relation_difficulty == 3
    assert profile.shown()["task_preference"]["relation_difficulty"].startswith("up to 3 of 3: ")
    assert all(entity.name in profile.text() for entity in profile.entities)


def test_profile_of_the_ledger_names_its_calls() -> None:
    text = find_profile(None, "ledger").text()
    assert all(name in text for name in CALLS)


def test_own_profile_is_toml_or_json(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('name = "Shop"\n[[entities]]\nname = "cart"\nopts = [{name = "add"}]\n')
    (tmp_path / "a.json").write_text('{"name": "Shop", "entities": [{"name": "cart", "opts": [{"name": "add"}]}]}')
    assert find_profile(tmp_path / "a.toml", "mine") == find_profile(tmp_path / "a.json", "mine")


def test_profile_that_cannot_be_used_is_refused_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no profile of environments of the type 'mine': set exploration.profiles.x"):
        find_profile(None, "mine", "exploration.profiles.x")
    with pytest.raises(DataError, match="none.toml cannot be read"):
        find_profile(tmp_path / "none.toml", "mine")
    for text, problem in (("name = ", "neither TOML nor JSON"), ('name = "x"\nentity = 1', "entity"), ("", "name")):
        (tmp_path / "a.toml").write_text(text)
        with pytest.raises(ConfigError, match=problem):
            find_profile(tmp_path / "a.toml", "mine")


def test_strategy_tells_what_is_known_and_how_long_it_may_take() -> None:
    profile = find_profile(None, "ledger")
    first = CuriousStrategy(max_steps=7).instruction(profile, ())
    assert first.startswith(FIRST_LINE) and "at most 7 turns" in first and "known already" not in first
    assert "- Pay it." in CuriousStrategy().instruction(profile, ["Pay it."])
