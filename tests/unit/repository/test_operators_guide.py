"""The operator of docs/guides/operators.md, loaded from the very text of the page."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from support.rollouts.operator_bench import STEPS, World

from treadle.core.config import load_config
from treadle.core.errors import ConfigError
from treadle.datagen import operators
from treadle.datagen.operators import load_operators, operator_versions
from treadle.datagen.operators.rejection import EditRejected
from treadle.datagen.pools.settings import PoolOptions

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "operators.md"
FINISH = "<think>At last.</think><answer>\\boxed{new}</answer>"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return the page's operators, with its module on Python's path."""
    (code,) = blocks("python")
    (tmp_path / "second_look.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    return load_config(PoolOptions, data=tomllib.loads(blocks("toml")[0])["pools"]).operators


def test_operator_from_the_guide_loads_with_the_shipped_ones(names: tuple[str, ...]) -> None:
    assert [operator.name for operator in load_operators(names)][-2:] == ["hint_tail", "second_look"]
    assert operator_versions(names)["second_look"] == 1


async def test_operator_from_the_guide_makes_a_trajectory_or_reports_why_not(names: tuple[str, ...]) -> None:
    operator = load_operators(names)[-1]
    world = World("qwen")
    parent = await world.rolled(STEPS)
    edit = await operator.apply(world.bench(parent, critic=[" Is it Z? <|im_end|>"], policy=["</think>" + FINISH]))
    kept = "".join(segment.text for segment in parent.segments[:7])
    assert edit.trajectory.text == f"{kept}<think>Is it Z? <|im_end|></think>{FINISH}"
    assert (edit.step, edit.trajectory.status) == (3, "answered")
    for critic, reason in (([" "], "unusable_doubt"), (["</answer>"], "unusable_doubt")):
        with pytest.raises(EditRejected) as error:
            await operator.apply(world.bench(parent, critic=critic))
        assert error.value.reason == reason


def test_entry_point_gives_an_operator_a_short_name(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    points = tomllib.loads(blocks("toml")[1])["project"]["entry-points"]
    ((group, entries),) = points.items()
    found = EntryPoints(EntryPoint(name, value, group) for name, value in entries.items())
    monkeypatch.setattr(operators, "entry_points", lambda *, group: found.select(group=group))
    (operator,) = load_operators(["second_look"])
    assert (operator.name, operator.branch) == ("second_look", "incorrect")


@pytest.mark.parametrize("name", ["initial", "locate_flaw", "Big", ""])
def test_reserved_operator_name_is_refused(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("second_look.SecondLook.name", name)
    with pytest.raises(ConfigError, match=f"has the name '{name}'"):
        load_operators(names)


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (["nothing_of_this_name"], "unknown operator"),
        (["no_such_module:Class"], "cannot be loaded: .*; put its folder on PYTHONPATH"),
        (["treadle.datagen.operators.base:NoSuchClass"], "cannot be loaded"),
        (["treadle.datagen.operators.rejection:EditRejected"], "cannot be loaded"),
        (["hint_tail", "hint_tail"], "twice"),
        (["pathlib:Path"], "has no name|has no version"),
    ],
)
def test_invalid_operator_is_refused_by_name(listed: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_operators(listed)
