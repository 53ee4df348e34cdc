"""File formats of other distributions below `treadle import` and `treadle export`."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from click.testing import CliRunner

from treadle.cli.formats import ENTRY_POINT_GROUP, HEADING
from treadle.cli.main import cli
from treadle.core.errors import ConfigError

ROOT = Path(__file__).parents[3]
GOOD = """
import click

@click.command(short_help="Rows of the Afar program.")
@click.argument("file")
def import_command(file):
    click.echo(f"read {file}")
"""
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a distribution that registers formats, each as a module with this content."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(distribution: str, **sources: str) -> None:
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {distribution}_{name}" for name in sources]
        (info / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP}]", *lines, ""]))
        for name, source in sources.items():
            (tmp_path / f"{distribution}_{name}.py").write_text(source)

    return install


def output(*arguments: str) -> str:
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_own_format_is_registered_as_pyproject_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    assert installed.items() >= project["entry-points"][ENTRY_POINT_GROUP].items()


def test_format_of_another_distribution_is_listed_under_a_heading_and_runs(install: Install) -> None:
    install("elsewhere", afar=GOOD)
    own, _, formats = output("import", "--help").partition(f"{HEADING}:\n")
    assert "verl " in own and "afar" not in own
    assert (
        "  afar      Rows of the Afar program.\n  afm       Hidden tests" in formats
        and "\n  et-agent  Pools" in formats
    )
    assert output("import", "afar", "rows.json") == "read rows.json\n"
    assert "afar" not in output("export", "--help")
    assert CliRunner().invoke(cli, ["export", "afar"]).exit_code == 2


def test_format_cannot_replace_a_command_of_treadle(install: Install) -> None:
    install("elsewhere", verl=GOOD)
    assert "Convert rows of verl's parquet schema" in output("import", "verl", "--help")
    assert "Afar" not in output("import", "--help")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        ("raise SystemExit('two\\nlines')", "cannot be loaded: SystemExit: two lines"),
        ("", "has no click command as import_command or export_command"),
        ("def export_command(): ...", "has no click command as import_command or export_command"),
    ],
)
def test_broken_format_gives_one_line_and_leaves_other_commands_alone(
    install: Install, source: str, reason: str
) -> None:
    install("broken", bad=source)
    for group in ("import", "export"):
        listed = output(group, "--help")
        assert "bad       Cannot be used: " in listed and "et-agent  Pools" in listed
        for more in (["--help"], [], ["file", "--run", "r"]):
            with pytest.raises(ConfigError) as error:
                CliRunner().invoke(cli, [group, "bad", *more], catch_exceptions=False)
            assert str(error.value).startswith("the format 'bad' (registered by broken 1.0) ")
            assert reason in str(error.value) and "\n" not in str(error.value)
    assert "Usage: cli import et-agent" in output("import", "et-agent", "--help")


def test_format_that_two_distributions_register_is_refused(install: Install) -> None:
    install("first", afar=GOOD)
    install("second", afar=GOOD)
    with pytest.raises(ConfigError, match="'afar' .registered by first 1.0 and second 1.0. is registered twice"):
        CliRunner().invoke(cli, ["import", "afar", "x"], catch_exceptions=False)


def test_no_format_is_loaded_before_its_command_is_used() -> None:
    code = (
        "import sys; from treadle.cli.main import cli;"
        "[cli.main([*words, '--help'], standalone_mode=False) for words in ((), ('export', 'sft_rows'))];"
        "print([name for name in sys.modules if name.startswith('treadle.formats')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.splitlines()[-1] == "[]"
