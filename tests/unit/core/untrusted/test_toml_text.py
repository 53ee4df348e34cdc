"""TOML that breaks parsers, or later code, is reported in one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from treadle.cli.main import cli
from treadle.core.config import load_config, parse_override, read_toml
from treadle.core.errors import ConfigError
from treadle.core.untrusted.toml_text import MAX_DEPTH, parse_toml
from treadle.tasks.config import TreadleConfig

HOSTILE = {
    "arrays in arrays": ("x = " + "[" * 5_000 + "]" * 5_000, "nested deeper"),
    "tables in tables": ("[" + ".".join("a" for _ in range(5_000)) + "]", "nested deeper"),
    "inline tables": ("x = " + "{a = " * 3_000 + "1" + "}" * 3_000, "nested deeper"),
    "one level too deep": (
        "x = " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "nested deeper than 32 levels, below x",
    ),
    "5,000 digits": ("seed = " + "9" * 5_000, "too many digits"),
    "65 bits": ("seed = 18446744073709551616", "seed has an integer of more than 64 bits"),
    "a negative one of 65 bits": ("[a]\nb = -9223372036854775809", "a.b has an integer of more than 64 bits"),
    "no number": ("[models.x]\ntemperature = nan", "models.x.temperature is nan"),
    "infinity": ("x = [1.0, -inf]", "x is -inf"),
    "a decimal of the float range": ("x = 1e999", "x is inf"),
    "no TOML": ("x = ", "not valid TOML"),
    "a NUL": ("x = '\x00'", "not valid TOML"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_unusable_toml_fails_in_one_line(name: str, tmp_path: Path) -> None:
    text, cause = HOSTILE[name]
    with pytest.raises(ValueError, match=cause):
        parse_toml(text)
    path = tmp_path / "run.toml"
    path.write_text(text)
    done = CliRunner().invoke(cli, ["run", str(path), "--run", "x", "--root", str(tmp_path / "outputs")])
    said = done.output + str(done.exception if isinstance(done.exception, ConfigError) else "")
    assert done.exit_code != 0 and isinstance(done.exception, (ConfigError, SystemExit))
    assert "run.toml cannot be used" in said and len(said.splitlines()) == 1 and len(said) < 300


def test_toml_within_the_limits_is_accepted() -> None:
    assert parse_toml("x = 9223372036854775807\ny = -9223372036854775808")["x"] == 2**63 - 1
    assert parse_toml("x = " + "[" * MAX_DEPTH + "]" * MAX_DEPTH)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_byte_order_mark_is_skipped(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text("seed = 5\n", encoding=encoding)
    assert read_toml(path) == {"seed": 5}
    assert load_config(TreadleConfig, [path]).seed == 5


def test_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("seed = 5\n", encoding="utf-16")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 1; save it as UTF-8"):
        read_toml(path)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("seed=" + "9" * 5_000, "too many digits"),
        ("seed=18446744073709551616", "more than 64 bits"),
        ("models.x.temperature=nan", "must be finite"),
        ("x=" + "[" * 3_000 + "]" * 3_000, "nested deeper"),
    ],
)
def test_unusable_override_fails_in_one_line(text: str, cause: str) -> None:
    with pytest.raises(ConfigError, match=cause) as caught:
        parse_override(text)
    assert len(str(caught.value)) < 200


def test_override_that_is_not_toml_is_a_string() -> None:
    assert parse_override("models.x.model=Qwen/Qwen2.5") == {"models": {"x": {"model": "Qwen/Qwen2.5"}}}
