"""The command line as its users see it: what it prints, how it resumes, what its help promises."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.runs.command_line import QUESTIONS, TREADLE, Desk, environment, set_up, tutor
from support.sweep import sampled

from treadle.cli.main import cli
from treadle.core.config import load_config, parse_override
from treadle.tasks.config import TreadleConfig

HOSTILE = "What \x1b[31mred\x1b[0m \x1b]8;;http://evil.test\x07link\x1b]8;;\x07 \u202eabc\u202c \x9b2J is 2 plus 3?"
LONG_NAME = "a-data-set-with-quite-a-long-name-as-people-give-them"
HEAVY = {"rich", "numpy", "pyarrow", "prefect", "datasets", "torch", "aiohttp", "pydantic", "tokenizers", "bm25s"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Make a finished run named `first`, with a hostile question and a long name, and keep its tutor running."""
    with tutor() as url:
        desk = set_up(tmp_path_factory.mktemp("desk"), url, python=True)
        desk.write("questions.jsonl", {"question": HOSTILE, "answer": "\x1b[2J5"}, *QUESTIONS)
        with (desk.folder / "run.toml").open("a") as config:
            config.write('[report]\ntitle = "R"\n')
        config_text = (desk.folder / "run.toml").read_text().replace('"sums"', f'"{LONG_NAME}"')
        (desk.folder / "run.toml").write_text(config_text)
        done = desk.alone("run", "run.toml", "--run", "first").succeeded()
        (desk.folder / "first.out").write_text(done.out)
        yield desk


def rollout_keys(desk: Desk) -> list[str]:
    return [row["rollout_key"] for row in desk.rows("first", "1/rollouts@tutor", "rollouts")]


def test_run_prints_scores_paths_and_working_commands(desk: Desk) -> None:
    out = (desk.folder / "first.out").read_text()
    assert LONG_NAME in out and "tutor" in out
    folders = [Path(line.split()[-1]) for line in out.splitlines() if "/artifacts/" in line]
    assert len(folders) == 4 and all((folder / "README.md").is_file() for folder in folders)
    commands = [line for line in out.splitlines() if line.startswith("treadle ")]
    assert [command.split()[1] for command in commands] == ["status", "show", "report", "view"]
    *others, view = (shlex.split(command)[1:] for command in commands)
    for command in others:
        desk.treadle(*command).succeeded()
    assert (desk.folder / "first.html").is_file()
    assert view == ["view", "--run", "first"]  # serves until it is stopped


def test_rerun_reuses_everything(desk: Desk) -> None:
    done = desk.treadle("run", "--run", "first", "--json").succeeded()
    records = done.json()
    assert [record["stage"] for record in records] == ["questions", "rollouts", "scores", "report"]
    assert all(record["reused"] for record in records) and done.err == ""
    assert [row["dataset"] for row in records[3]["summary"]] == [LONG_NAME] and "summary" not in records[0]


def test_report_is_exported_and_overwritten_only_with_force(desk: Desk) -> None:
    made = desk.treadle("export", "report", "--run", "first", "--out", "figures.csv", "--json")
    facts = made.succeeded().json()
    assert (facts["instance"], facts["format"]) == ("1/report", "csv")
    assert facts["bytes"] == (desk.folder / "figures.csv").stat().st_size
    assert (
        (desk.folder / "figures.csv").read_text().startswith("model,dataset,environments,figure,value,low,high,method,")
    )
    again = ("export", "et-agent", "report", "--run", "first", "--out", "figures.csv")
    desk.treadle(*again).failed("figures.csv already exists", "--force", code=2)
    desk.treadle(*again, "--force").succeeded()
    assert list(json.loads((desk.folder / "figures.csv").read_text())["tutor"]) == [LONG_NAME]


def test_operational_keys_may_change_and_semantic_keys_may_not(desk: Desk) -> None:
    same = desk.treadle("run", "run.toml", "--run", "first", "--set", "rollouts.max_concurrent=3", "--json")
    assert all(record["reused"] for record in same.succeeded().json())
    refused = desk.treadle(
        "run", "run.toml", "--run", "first", "--set", "rollouts.sampling.top_p=0.5", "--set", "seed=5"
    )
    line = refused.failed("first", "rollouts.sampling.top_p: 0.95 -> 0.5", "seed: 0 -> 5", code=2)
    assert "max_concurrent" not in line


def test_dry_run_prints_the_plan_and_does_nothing(desk: Desk) -> None:
    before = desk.tree() | {".out", ".err"}
    new = desk.treadle("run", "run.toml", "--run", "other", "--dry-run", "--json").succeeded().json()
    assert set(new["plan"].values()) == {"run"} and new["config"]["report"]["title"] == "R"
    assert set(new["why"].values()) == {"the run is new"}
    other = desk.treadle("run", "run.toml", "--run", "other", "--dry-run").succeeded().out
    assert '  models.tutor.model = "treadle-tutor"\n' in other and "max_concurrent" not in other
    known = desk.treadle("run", "run.toml", "--run", "first", "--dry-run").succeeded().out
    assert len(re.findall(r"^1/\S+ +reuse +nothing changed$", known, re.MULTILINE)) == 4
    changed = ("--set", "report.title=S", "--set", "rollouts.max_concurrent=7")
    other = desk.treadle("run", "run.toml", "--run", "first", "--dry-run", *changed).succeeded().out
    assert len(re.findall(r"^1/\S+ +reuse +nothing changed$", other, re.MULTILINE)) == 3
    assert re.search(r"^1/report +run +changed: title *$", other, re.MULTILINE)
    assert "  report.title: 'R' -> 'S'\n" in other and " -> 7\n" in other
    assert "the run refuses" not in other and "flow.models" not in other
    refused = desk.treadle("run", "run.toml", "--run", "first", "--dry-run", "--set", "seed=5").succeeded().out
    assert "  seed: 0 -> 5\n" in refused and "the run refuses" in refused
    forced = desk.treadle("run", "--run", "first", "--dry-run", "--force").succeeded().out
    assert len(re.findall(r"^1/\S+ +run +--force$", forced, re.MULTILINE)) == 4
    assert desk.tree() == before


def test_every_json_output_parses(desk: Desk) -> None:
    key = rollout_keys(desk)[0]
    shown = desk.treadle("show", key, "--run", "first", "--json").succeeded().json()
    assert shown["rollout"]["rollout_key"] == key and shown["question"]["question"] == HOSTILE
    steps = desk.treadle("lineage", key, "--run", "first", "--json").succeeded().json()
    assert steps[0]["row"] == 1 and steps[0]["file"].endswith("questions.jsonl")
    assert not any(desk.treadle("verify", "--run", "first", "--json").succeeded().json().values())
    states = desk.treadle("status", "--run", "first", "--json").succeeded().json()
    assert [item["state"] for item in states] == ["completed"] * 4
    (overview,) = desk.treadle("runs", "--json").succeeded().json()
    assert (overview["run_id"], overview["state"]) == ("first", "completed")
    assert overview["num_completed"] == overview["num_instances"] == 4
    assert desk.treadle("env", "list", "--json").succeeded().json() is not None


def test_list_shows_runs_with_state_progress_and_age(desk: Desk) -> None:
    out = desk.treadle("runs").succeeded().out
    assert re.search(r"^first +completed +4 of 4 +\S.* +\S.*$", out, re.MULTILINE)
    empty = desk.treadle("runs", "--root", "empty").succeeded().out
    assert "no runs under empty" in empty and "treadle run CONFIG.toml --run NAME" in empty


def test_last_run_is_the_default_of_commands_that_read(desk: Desk) -> None:
    key = rollout_keys(desk)[0]
    for words in (["status", "--json"], ["show", key, "--json"], ["lineage", key, "--json"], ["verify", "--json"]):
        taken = desk.treadle(*words).succeeded()
        assert taken.err.startswith("run first (") and taken.json() == desk.treadle(*words, "-r", "first").json()
    desk.treadle("status", "--root", "empty").failed("no runs in empty", code=2)
    for words in (["run"], ["work"], ["stage", "1/report"]):  # they change a run
        desk.treadle(*words).failed("--run", code=2)


def test_logs_prints_the_last_lines_of_an_attempt(desk: Desk) -> None:
    whole = desk.treadle("logs", "1/rollouts@tutor", "-r", "first", "-n", "1000").succeeded().out
    log = desk.folder / "outputs/runs/first/attempts/1/rollouts@tutor/1/log.txt"
    assert whole == log.read_text() and "1/rollouts@tutor is done" in whole
    followed = desk.treadle("logs", "1/rollouts@tutor", "-r", "first", "-n", "1", "-f").succeeded()
    assert followed.out == whole.splitlines(keepends=True)[-1]
    assert "1/report is done" in desk.treadle("logs").succeeded().out  # the attempt that started last
    desk.treadle("logs", "1/rollout@tutor").failed("mean '1/rollouts@tutor'", code=2)
    desk.treadle("logs", "1/report", "--attempt", "7").failed("no attempt 7", code=2)


def test_export_of_an_unknown_table_names_the_closest_one(desk: Desk) -> None:
    out = str(desk.folder / "never")
    desk.treadle("export", "dataset", "rollout", "-r", "first", "-o", out).failed("'rollouts'", code=2)


def test_doctor_names_a_remedy_for_every_failure(desk: Desk, tmp_path: Path) -> None:
    # Without engines: an installed one is imported, which takes long.
    asked = ("--endpoint", "http://127.0.0.1:1/v1", "--model", "m")
    done = desk.treadle("doctor", "--root", "/proc/nowhere", "--json", *asked, TREADLE_CACHE=str(tmp_path))
    checks = {check["name"]: check for check in done.json()}
    assert {"python", "root", "python sandbox", "engine serve", "prefect", "m over chat"} <= set(checks)
    assert checks["root"]["status"] == "fail" and checks["engine serve"]["status"] != "ok"
    assert all(check["fix"] for check in checks.values() if check["status"] != "ok")
    done.failed("root", code=1)


@pytest.mark.parametrize("command", sampled(["show", "lineage"], ["show"]))
def test_hostile_text_does_not_reach_the_terminal(desk: Desk, command: str) -> None:
    key = rollout_keys(desk)[0]
    piped = desk.treadle(command, key, "--run", "first").succeeded().out
    assert "\x1b" not in piped and "\u202e" not in piped and "\x9b" not in piped and r"\x1b[31m" in piped
    seen = on_a_terminal(desk, command, key, "--run", "first")
    assert r"\x1b[31m" in seen and "\x1b]8" not in seen and "\x1b[31mred" not in seen and "\u202e" not in seen
    calm = on_a_terminal(desk, command, key, "--run", "first", NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", calm)


def on_a_terminal(desk: Desk, *arguments: str, **env: str) -> str:
    """Return what a command writes to a real (pseudo) terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [TREADLE, *arguments],
        cwd=desk.folder,
        env=environment(TERM="xterm-256color", **env),
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:
        # Linux reports a closed other end in this way.
        pass
    os.close(ours)
    assert process.wait() == 0
    return b"".join(parts).decode()


def test_tables_fit_into_80_columns_without_cutting_names(desk: Desk) -> None:
    for arguments in (["stage", "1/report", "--run", "first"], ["status", "--run", "first"]):
        out = desk.treadle(*arguments, COLUMNS="80").succeeded().out
        table = [line for line in out.splitlines() if "artifacts" not in line]
        assert max(map(len, table)) <= 80 and "…" not in out
        if arguments[0] == "stage":
            # A name that does not fit is continued below, in the same column.
            assert LONG_NAME in "".join(word for line in table for word in line.split()[:1])


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, treadle.cli.main; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert HEAVY.isdisjoint(loaded)


LIBRARIES = {
    "pandas", "prefect", "datasets", "torch", "sympy", "polars", "duckdb", "tantivy", "matplotlib", "tokenizers",
    "jinja2",
}  # fmt: skip
"""Libraries that no command needs that only reads, or has nothing to run."""
RUNNERS = {
    "agent.rollout", "datagen.questions.stage", "datagen.pools.run", "datagen.sft_rows.stage", "sft.stage",
    "environments.rollouts.run", "eval.scores", "rl.selection.stage", "rl.training.outputs", "report.stage",
    "core.answers.rules",
}  # fmt: skip
"""Modules that a stage needs only when it runs."""


@pytest.mark.parametrize("command", ["status", "status --run first", "show KEY --run first", "run --run first"])
def test_commands_without_work_import_no_stage_and_no_large_library(desk: Desk, command: str) -> None:
    words = command.replace("KEY", rollout_keys(desk)[0]).split()
    code = (
        "import sys, atexit; sys.argv[0] = 'treadle'; from treadle.cli.entry_point import main\n"
        "atexit.register(lambda: print('LOADED', *sys.modules)); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=desk.folder, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.rpartition("LOADED ")[2].split()
    assert "treadle.tasks.catalog" in loaded
    assert LIBRARIES.isdisjoint(loaded)
    assert {f"treadle.{name}" for name in RUNNERS}.isdisjoint(loaded)


def test_help_lists_every_command_once_in_a_group(desk: Desk) -> None:
    out = desk.treadle("--help").succeeded().out
    listed = re.findall(r"^  ([a-z]+) {2,}\S", out.partition("\nRuns:")[2], re.MULTILINE)
    assert sorted(listed) == sorted(cli.commands) and len(listed) == len(set(listed))


def test_completion_knows_the_commands(desk: Desk) -> None:
    shell = {"_TREADLE_COMPLETE": "bash_complete", "COMP_WORDS": "treadle sta", "COMP_CWORD": "1"}
    done = subprocess.run([TREADLE], env=environment(**shell), capture_output=True, text=True)
    assert done.stdout.split() == ["plain,stage", "plain,status"]


def commands(group: click.Group, *path: str) -> Iterator[tuple[list[str], click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield [*path, name], command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


@pytest.mark.parametrize(
    ("path", "command"), list(commands(cli)), ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_every_help_ends_with_a_valid_example(path: list[str], command: click.Command) -> None:
    assert command.epilog is not None and command.epilog.startswith("Example:  treadle ")
    words = shlex.split(command.epilog.removeprefix("Example:  treadle "))
    group: click.Command = cli
    while isinstance(group, click.Group):
        found = group.get_command(click.Context(group), words.pop(0))
        assert found is not None
        group = found
    context = group.make_context("example", words)
    overrides = context.params.get("overrides", ())
    load_config(TreadleConfig, overrides=overrides)
    assert all(parse_override(text) for text in overrides)


def test_run_can_start_a_tutor_itself(desk: Desk) -> None:
    own = 'models.tutor={model="treadle-tutor",endpoints=[],server={type="tutor"}}'
    quick = ("--set", "environment.python.enabled=false", "--set", "rollouts.max_questions=1")
    desk.treadle("run", "run.toml", "--run", "own", "--set", own, *quick, "--json").succeeded()
    record = json.loads((desk.folder / "outputs/runs/own/records/1/rollouts@tutor.json").read_text())
    assert record["outputs"]["rollouts"]["num_rows"] == 1
