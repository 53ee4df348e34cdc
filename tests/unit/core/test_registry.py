"""Classes of users that a registry refuses when the configuration is read, each in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treadle.agent.judges.registry import JUDGES
from treadle.core.errors import ConfigError
from treadle.core.plugins import entry_point_places
from treadle.core.registry import Registry
from treadle.environments.scorers.registry import SCORERS
from treadle.rl.config import RlOptions
from treadle.rl.credit.registry import CREDITS
from treadle.rl.rewards.registry import REWARDS
from treadle.rl.selection.methods.registry import METHODS

CLASS = "from treadle.api import {base}\n\nclass Mine({base}):\n    {body}\n"
METHOD = {
    "Scorer": "async def score(self, task, rollout): return 1",
    "Judge": "messages = read = lambda self, given: None",
    "RewardRule": "def rewards(self, group): return []",
    "CreditRule": "def advantages(self, group): return []",
    "SelectionMethod": "def rank(self, candidates, limit, seed): return None",
}
REGISTRIES: dict[str, Registry[Any]] = {
    "Scorer": SCORERS,
    "Judge": JUDGES,
    "RewardRule": REWARDS,
    "CreditRule": CREDITS,
    "SelectionMethod": METHODS,
}


@pytest.mark.parametrize("base", REGISTRIES)
def test_class_that_cannot_work_is_refused_before_a_run(base: str, tmp_path: Path) -> None:
    method = METHOD[base]
    cases = [
        ("pass", "mine0.py:Mine has no method "),
        (f"PARTS = ['a']\n    {method}", "mine1.py:Mine.PARTS must be a dict with at most 64 names"),
        (f"PARTS = {{'a b': 'x'}}\n    {method}", "PARTS: 'a b' must be a name of letters, digits and _"),
        (
            f"def __init__(self, **keys): raise RuntimeError('two\\nlines')\n    {method}",
            "cannot be made from its keys: RuntimeError: two",
        ),
        (
            f"def __init__(self, **keys): raise SystemExit(0)\n    {method}",
            "cannot be made from its keys: SystemExit: 0",
        ),
    ]
    if base == "CreditRule":
        del cases[1:3]  # a credit rule has no parts
    for number, (body, said) in enumerate(cases):
        file = tmp_path / f"mine{number}.py"
        file.write_text(CLASS.format(base=base, body=body))
        with pytest.raises(ValueError, match=said):
            REGISTRIES[base].parse({"type": f"{file.name}:Mine", "code_file": str(file)})


def test_file_that_ends_the_program_or_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("raise SystemExit(4)")
    with pytest.raises(ValueError, match="cannot be loaded: SystemExit: 4"):
        REWARDS.parse({"type": "ends.py:Mine", "code_file": str(tmp_path / "ends.py")})
    with pytest.raises(ValueError, match=r"there is no file \S*gone.py; put it there"):
        REWARDS.parse("gone.py:Mine")


def test_key_of_another_type_is_not_suggested_again() -> None:
    from treadle.core.config import load_config

    with pytest.raises(ConfigError, match="unknown config key 'reward.scale'; it is a key of another type: set `type`"):
        load_config(RlOptions, data={"reward": {"type": "outcome", "scale": 2.0}})


def installed(folder: Path, package: str, points: str) -> None:
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


def test_entry_point_of_a_taken_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    installed(
        tmp_path, "one", "[treadle.rewards]\noutcome = one:Mine\nbare = one\n[treadle.credits]\nturns = one:Mine\n"
    )
    with pytest.raises(ValueError, match="'outcome' is a shipped type, and one:Mine is an entry point of that name"):
        REWARDS.parse("outcome")
    with pytest.raises(ValueError, match="'one' names no attribute; write it as one:NAME"):
        REWARDS.parse("bare")
    other = tmp_path / "other"
    other.mkdir()
    installed(other, "two", "[treadle.credits]\nturns = two:Mine\n")
    monkeypatch.syspath_prepend(other)
    with pytest.raises(ConfigError, match="two packages have an entry point 'turns' of treadle.credits: two:Mine and"):
        entry_point_places("treadle.credits")
