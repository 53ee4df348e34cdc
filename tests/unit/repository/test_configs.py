"""Every configuration that we show can be loaded."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from treadle.agent.pages.server_config import RetrieverConfig
from treadle.cli.main import cli
from treadle.core.config import load_config, semantic_dump
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.core.runs.execute import fingerprint_of
from treadle.datagen.pools.entry import pool_roles
from treadle.datagen.pools.settings import PYTHON_HINTS, SEARCH_HINTS, PolicySampling, PoolOptions, PoolRoles
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.rl.presets import PLANNING_PRESETS
from treadle.sft.config import SftOptions
from treadle.stages.registry import stage_names
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.iterations import at_iteration
from treadle.tasks.planning.order import flow_addresses
from treadle.tasks.reference import pages

ROOT = Path(__file__).resolve().parents[3]
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
PAPER = ROOT / "configs" / "et-agent-7b.toml"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    (page, text)
    for page in PAGES
    for text in re.findall(r"```toml\n(.*?)```", page.read_text(), re.S)
    if "[project" not in text  # of a package, not of a run
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_config_loads_and_makes_a_flow(path: Path) -> None:
    config = load_config(TreadleConfig, (path,))
    stages = {address.stage for address in flow_addresses(config)}
    assert stages == {"questions", *config.flow.stages} <= set(stage_names())


def test_every_value_of_the_paper_config_cites_its_source() -> None:
    lines = [line for line in PAPER.read_text().splitlines() if re.match(r"\s*[\w.-]+ *=", line)]
    assert len(lines) > 150
    assert [line for line in lines if not re.search(r"# (paper|program|published|here)\b", line)] == []


@pytest.mark.parametrize("name", sorted(PLANNING_PRESETS))
def test_every_value_of_a_planning_config_cites_its_source(name: str) -> None:
    lines = (ROOT / "configs" / f"{name}.toml").read_text().splitlines()
    source = re.compile(r"# (paper|script|here)\b")
    table, uncited = "", []
    for line in lines:
        if line.startswith("["):
            table = line
        elif re.match(r"[\w.]+ *=", line) and not source.search(line) and not source.search(table):
            uncited.append(line)
    # The values of a preset have their sources in its module.
    assert uncited == [f'preset = "{name}"'] * 2


def test_every_value_of_the_config_of_agentevolver_cites_its_source() -> None:
    lines = (ROOT / "configs" / "agentevolver-7b.toml").read_text().splitlines()
    values = [line for line in lines if re.match(r"[\w.]+ *=", line)]
    assert [line for line in values if not re.search(r"# (paper|script|default|here)\b", line)] == [
        'preset = "agentevolver-7b"'
    ]


def test_planning_configs_measure_and_draw_as_published() -> None:
    configs = {name: load_config(TreadleConfig, (ROOT / "configs" / f"{name}.toml",)) for name in PLANNING_PRESETS}
    measured = {name: one.rollouts.sampling.temperature for name, one in configs.items()}
    assert measured == {
        **dict.fromkeys(("gap-3b", "afm-mhqa-7b", "afm-mhqa-32b"), 0.0),
        **dict.fromkeys(("afm-web-7b", "afm-web-32b"), 1.0),
        "afm-code-7b": 0.8,
        "afm-code-32b": 0.6,
    }
    for name, one in configs.items():
        start = load_config(SftOptions, data={"preset": name, "main_address": "node-1"})
        assert (start.model, start.cutoff_tokens) == (f"Qwen/{one.models['base'].model}", one.sft_rows.cutoff_tokens)
        # Of NQ and HotpotQA, generated and filtered ones, and LiveCodeBench with Skywork and DAPO.
        sizes = {"gap": 160_000, "mhqa": 79_168 + 90_447, "web": 3_159 + 7_268, "code": 392 + 10_033 + 23_766 + 13_369}
        assert one.selection.max_questions == sizes[name.split("-")[-2]]


@pytest.mark.parametrize("name", sorted(PLANNING_PRESETS))
def test_flow_of_a_planning_config_can_be_planned(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(TreadleConfig, (ROOT / "configs" / f"{name}.toml",))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERPER_API_KEY", "key")
    write_byte_tokenizer(tmp_path / str(config.models["base"].tokenizer))
    source = next(iter(config.questions.domains))
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n), "source": source} for n in range(6000)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["run", str(ROOT / "configs" / f"{name}.toml"), "--run", "r", "--root", str(tmp_path / "runs")]
    planned = CliRunner().invoke(cli, [*words, "--dry-run"])
    assert planned.exit_code == 0, planned.output
    assert all(f"1/{stage}" in planned.output for stage in config.flow.stages)


def test_paper_config_spells_out_how_pools_are_made() -> None:
    written = tomllib.loads(PAPER.read_text())["pools"]
    decides = semantic_dump(PoolOptions())
    assert written.keys() >= {key for key, value in decides.items() if value is not None}
    assert {role: set(table["sampling"]) for role, table in written["roles"].items()} == {
        role: set(PolicySampling.model_fields) for role in PoolRoles.model_fields
    }
    made_so = {key: written[key] for key in ("rounds", "initial_rollouts", "selection", "f1_threshold")}
    assert made_so == {"rounds": 3, "initial_rollouts": 1, "selection": "best_unexpanded", "f1_threshold": 0.8}
    assert (written["hints"]["math"], written["hints"]["qa"]) == ([*PYTHON_HINTS], [*SEARCH_HINTS])


def test_one_model_plays_all_roles_of_the_paper_config_in_later_iterations() -> None:
    config = load_config(TreadleConfig, (PAPER,), ("flow.iterations=2",))
    played = pool_roles(at_iteration(config, 2), Address(2, "pools"))
    assert len(played) == len(PoolRoles.model_fields)
    assert {(name, settings.model) for name, settings in played.values()} == {("policy", "1/rl@phase-3")}


@pytest.mark.parametrize(("page", "text"), BLOCKS, ids=lambda value: getattr(value, "name", "block"))
def test_config_in_the_docs_loads(page: Path, text: str) -> None:
    data = tomllib.loads(text)
    named = re.search(r"\w+\.py:(\w+)", text)
    if named and re.search(rf"(class|def) {named[1]}\b", page.read_text()):  # in a file that the page writes, too
        return
    assert load_config(RetrieverConfig if {"index", "service"} & data.keys() else TreadleConfig, (), data=data)


def config_error_of(tmp_path: Path, *texts: str, overrides: tuple[str, ...] = ()) -> str:
    """Return the message for a config in files a.toml, b.toml and so on, without the folder."""
    files = [tmp_path / f"{letter}.toml" for letter, _ in zip("abc", texts, strict=False)]
    for path, text in zip(files, texts, strict=True):
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(TreadleConfig, files, overrides)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_invalid_key_names_its_file_among_several(tmp_path: Path) -> None:
    good, unknown = "[questions]\nheldout_share = 0.1\n", "[questions]\nhedlout_share = 0.1\n"
    assert config_error_of(tmp_path, good, unknown).endswith("did you mean 'heldout_share'? (in b.toml)")
    assert config_error_of(tmp_path, unknown, good).endswith("did you mean 'heldout_share'? (in a.toml)")
    assert config_error_of(tmp_path, "seed = 1\n", 'seed = "x"\n', "seed = -1\n").endswith("(in c.toml)")
    assert config_error_of(tmp_path, good, "seed = 1\n", overrides=("seed=x",)).endswith("(in --set seed)")


def test_file_is_not_named_if_it_is_the_only_one_or_the_table_has_several(tmp_path: Path) -> None:
    assert "(in" not in config_error_of(tmp_path, "seed = -1\n")
    source = "[[questions.decontaminate]]\npath = 'mine.jsonl'\npayload = ['x']\n"
    assert config_error_of(tmp_path, source, "seed = 1\n").endswith("(in a.toml)")
    assert "(in" not in config_error_of(tmp_path, source, "[questions]\nheldout_share = 0.1\n")
    longer = "[[questions.sources]]\npath = 'a.jsonl'\nlimit = 0\n[[questions.sources]]\nlimit = 1\n"
    assert "(in b.toml)" in config_error_of(tmp_path, longer, "[[questions.sources]]\nlimit = 1\n")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "models.m has no endpoints; give their URLs, or a server to start"),
        ({"server": {"type": "tutor"}, "endpoints": [{"url": "http://x/v1"}]}, "models.m has both `server` and"),
    ],
)
def test_unusable_model_is_refused_before_any_work(keys: dict[str, Any], message: str) -> None:
    config = load_config(
        TreadleConfig, data={"models": {"m": {"model": "m", **keys}}, "environment": {"search": {"enabled": False}}}
    )
    with pytest.raises(ConfigError, match=message):
        instance(config, Address(1, "rollouts", "m"))


def test_another_tokenizer_of_a_managed_tutor_changes_the_rollouts(tmp_path: Path) -> None:
    folders = [write_byte_tokenizer(tmp_path / name) for name in ("a", "b")]
    template = folders[1] / "tokenizer_config.json"
    template.write_text(template.read_text().replace("assistant", "agent"))

    def fingerprint(folder: Path) -> str:
        model = {"model": "m", "server": {"type": "tutor", "tokenizer": str(folder)}}
        config = load_config(
            TreadleConfig, data={"models": {"m": model}, "environment": {"search": {"enabled": False}}}
        )
        return fingerprint_of(instance(config, Address(1, "rollouts", "m")), {})

    assert fingerprint(folders[0]) != fingerprint(folders[1])
    (tmp_path / "a").rename(tmp_path / "moved")
    assert fingerprint(tmp_path / "moved") != fingerprint(folders[1])


@pytest.mark.parametrize("name", pages())
def test_generated_reference_matches_the_code(name: str) -> None:
    assert (ROOT / "docs" / "reference" / name).read_text() == pages()[name], "run `make docs`"
