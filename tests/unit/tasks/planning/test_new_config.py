"""What `treadle init` writes, and settings as TOML, are read as the same configuration."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from treadle.cli.main import cli
from treadle.core.config import load_config
from treadle.core.errors import ConfigError, DataError
from treadle.tasks.catalog import flow_instances
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.new_config import domain_of
from treadle.tasks.planning.plan import keys_set
from treadle.tasks.planning.toml_lines import toml_lines

ROOT = Path(__file__).parents[4]
_keys = st.text(min_size=1, max_size=8)
_leaves = st.one_of(st.text(max_size=12), st.integers(-(2**40), 2**40), st.booleans(), st.floats(allow_nan=False))
_values = st.recursive(_leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3))


@given(st.dictionaries(_keys, _values, max_size=4))
def test_lines_are_read_back_as_the_same_tree(tree: dict[str, Any]) -> None:
    assert tomllib.loads("\n".join(toml_lines(tree))) == tree


@pytest.mark.parametrize("name", ["laptop", "smoke", "single-node", "et-agent-7b", "eval-reference"])
def test_keys_that_are_set_are_a_configuration_file(name: str, tmp_path: Path) -> None:
    config = load_config(TreadleConfig, [ROOT / "configs" / f"{name}.toml"])
    (tmp_path / "again.toml").write_text("\n".join(keys_set(config)))
    assert load_config(TreadleConfig, [tmp_path / "again.toml"]) == config


def questions(folder: Path, *rows: dict[str, Any]) -> Path:
    file = folder / "questions.jsonl"
    file.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return file


def init(folder: Path, *words: str) -> Result:
    """Run `treadle init` without a terminal."""
    return CliRunner().invoke(cli, ["init", str(folder / "new.toml"), *words])


@pytest.mark.parametrize(
    ("words", "last"),
    [
        (["--model", "embedded", "--goal", "measure"], "1/report"),
        (["--model", "embedded", "--goal", "data"], "1/sft_rows"),
        (["--model", "embedded", "--goal", "train"], "1/sft"),
        (["--model", "m", "--endpoint", "http://127.0.0.1:9/v1", "--goal", "measure"], "1/report"),
        (["--model", "m", "--endpoint", "http://127.0.0.1:9/v1", "--chat", "--goal", "measure"], "1/report"),
    ],
)
def test_written_file_is_a_configuration_of_the_goal(tmp_path: Path, words: list[str], last: str) -> None:
    file = questions(tmp_path, {"question": "2 + 3?", "answer": "5"})
    assert init(tmp_path, "--questions", str(file), *words).exit_code == 0
    config = load_config(TreadleConfig, [tmp_path / "new.toml"])
    assert str(flow_instances(config)[-1].address) == last
    assert config.questions.sources[0].domain == "math"


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "new.toml").write_text("mine")
    done = init(tmp_path, "--questions", "q.jsonl", "--model", "m", "--goal", "measure")
    assert isinstance(done.exception, ConfigError) and (tmp_path / "new.toml").read_text() == "mine"


def test_what_is_no_value_of_its_key_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    file = questions(tmp_path, {"question": "Why?", "answer": "So."})
    words = ["--questions", str(file), "--model", "m", "--goal", "measure", "--endpoint"]
    with pytest.raises(ConfigError, match="'nonsense' is not an http"):
        CliRunner().invoke(cli, ["init", str(tmp_path / "a.toml"), *words, "nonsense"], catch_exceptions=False)
    with pytest.raises(ConfigError, match="the folder of .*no/a.toml does not exist"):
        place = str(tmp_path / "no/a.toml")
        CliRunner().invoke(cli, ["init", place, *words, "http://127.0.0.1:1/v1"], catch_exceptions=False)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_missing_answers_are_named_without_a_terminal(tmp_path: Path) -> None:
    done = init(tmp_path, "--model", "m")
    assert done.exit_code == 2 and "--questions" in done.output and "--goal" in done.output
    assert not (tmp_path / "new.toml").exists()


def test_domain_is_found_from_the_first_rows(tmp_path: Path) -> None:
    assert domain_of(questions(tmp_path, {"question": "q", "answer": "#### 1,200"})) == "math"
    assert domain_of(questions(tmp_path, {"question": "q", "answer": "7"}, {"question": "q", "answer": "Oslo"})) == "qa"
    assert domain_of(questions(tmp_path, {"question": "q", "choices": ["a", "b"], "answer": "A"})) == "choice"
    with pytest.raises(DataError, match="field with a question"):
        domain_of(questions(tmp_path, {"q": 1}))
