"""The flywheel as users of the command line see it: estimate, report, tree, difference, budget."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runs.command_line import Desk, Done, num_requests, tutor

from treadle.demo.world_files import write_world

HOSTILE = "In which year was \x1b]0;owned\x07\u202eBigvuza written [red]?"
NUM_QUESTIONS = 4
CONFIG = """
[flow]
stages = ["pools", "sft_rows"]

[models.tutor]
model = "treadle-tutor"
endpoints = [{{ url = "{url}" }}]
prompt_price_per_million = 1000.0
completion_price_per_million = 2000.0

[questions]
sources = [{{ path = "questions.jsonl", dataset = "world", domain = "qa" }}]

[environment]
python.enabled = false
search.corpus = ["world/corpus.jsonl"]

[pools]
rounds = 2
max_questions = {num_questions}
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Desk, str, Done]]:
    """Yield a finished run `r` of the flywheel, one question with hostile text, the tutor's URL, and how it ended."""
    with tutor("--persona", "noisy") as url:
        desk = Desk(tmp_path_factory.mktemp("desk"))
        world = write_world(desk.folder / "world", documents=200, tiers=(0, 1))
        rows = [json.loads(line) for line in Path(world.questions).read_text().splitlines()]
        asked = [row for row in rows if row["source"] in ("world-lookup", "world-hops")][: NUM_QUESTIONS + 2]
        questions = [{"question": HOSTILE, "answer": "\x1b[2J1766"}, *asked]
        desk.write("questions.jsonl", *({name: row[name] for name in ("question", "answer")} for row in questions))
        (desk.folder / "run.toml").write_text(CONFIG.format(url=url, num_questions=NUM_QUESTIONS))
        estimated = desk.treadle("run", "run.toml", "--run", "r", "--dry-run").succeeded()
        assert "1/pools: estimate for 4 questions (the configured maximum" in estimated.out
        assert "nothing measured yet" in estimated.out and "- assumed: a rollout has 3 turns" in estimated.out
        assert num_requests(url) == 0
        yield desk, url, desk.treadle("run", "run.toml", "--run", "r").succeeded()


def keys(desk: Desk, **columns: str) -> list[str]:
    rows = desk.rows("r", "1/pools", "pools")
    return [row["rollout_key"] for row in rows if all(row[name] == value for name, value in columns.items())]


def test_run_ends_with_operator_yields_and_follow_up_commands(desk: tuple[Desk, str, Done]) -> None:
    place, _, done = desk
    pools = json.loads((place.folder / "outputs/runs/r/records/1/pools.json").read_text())["metrics"]
    rows = json.loads((place.folder / "outputs/runs/r/records/1/sft_rows.json").read_text())["metrics"]
    table = done.out.split("Yield of operators\n")[1].split("\n\n")[0].splitlines()
    columns = re.split(r" {2,}", table[0].strip())
    assert columns[0] == "operator" and columns[8] == "accepted" and columns[7] == "wrong to right"
    cells = {line.split()[0]: line.split() for line in table[1:-1]}
    for name, counts in pools["operators"].items():
        if "found" not in counts:
            assert int(cells[name][1]) == counts["tried"] and int(cells[name][2]) == counts.get("produced", 0)
            assert int(cells[name][8]) == rows.get(f"accepted.{name}", 0)
    tokens = sum(used["prompt_tokens"] + used["completion_tokens"] for used in pools["usage"].values())
    assert f"Per accepted trajectory: {tokens / rows['accepted']:,.0f} tokens, cost " in done.out
    assert re.search(
        r"Projected to all \d questions: about \d+ accepted trajectories for [\d,]+ tokens, cost", done.out
    )
    assert "Why trajectories were rejected" in done.out or rows["accepted"] == rows["trajectories"]
    assert not any(character in done.out for character in "\x1b\x07\u202e")
    commands = [line for line in done.out.splitlines() if line.startswith("treadle ")]
    assert [command.split()[1] for command in commands] == ["status", "show", "lineage"]
    for command in commands:
        assert "\x1b" not in place.treadle(*shlex.split(command)[1:]).succeeded().out


def test_question_tree_contains_every_trajectory_and_attempt(desk: tuple[Desk, str, Done]) -> None:
    place, _, _ = desk
    events, pool = (place.rows("r", "1/pools", kind) for kind in ("pool_events", "pools"))
    for question in list(dict.fromkeys(row["question_key"] for row in pool))[:2]:
        own = [row for row in pool if row["question_key"] == question]
        out = place.treadle("lineage", question, "--run", "r", COLUMNS="250").succeeded().out
        assert all(out.count(row["rollout_key"]) >= 1 for row in own) and "\x1b" not in out
        tries = [event for event in events if event["question_key"] == question and event["outcome"] != "produced"]
        assert len(out.splitlines()) == 3 + len(own) + len(tries)
    steps = place.treadle("lineage", own[-1]["rollout_key"], "--run", "r", "--json").succeeded().json()
    text = json.dumps(steps[-1]["pool"])
    assert text.count('"chosen": true') == 1 and text.count('"sft": null') == 0
    assert steps[0]["file"].endswith("questions.jsonl") and steps[-1]["instance"] == "1/pools"


def test_any_pool_trajectory_can_be_shown(desk: tuple[Desk, str, Done]) -> None:
    place, _, _ = desk
    rows = {row["operator"]: row for row in place.rows("r", "1/pools", "pools")}
    for operator, row in rows.items():
        out = place.treadle("show", row["rollout_key"], "--run", "r").succeeded().out
        assert operator in out and "prediction" in out and "tokens, prompt + sampled" in out
        assert [line.split()[1] for line in out.splitlines() if line.startswith("against ")] == row["parents"]
        shown = place.treadle("show", row["rollout_key"], "--run", "r", "--json").succeeded().json()
        assert shown["rollout"]["judge"]["method"] and (shown["changes"] is None) == (not row["parents"])
        added = [piece["text"] for piece in (shown["changes"] or {"pieces": []})["pieces"] if piece["side"] == "added"]
        assert all(text in row["text"] for text in added)


def test_dry_run_estimates_from_measured_means(desk: tuple[Desk, str, Done]) -> None:
    place, url, _ = desk
    before = num_requests(url)
    arguments = ("stage", "1/pools", "--run", "r", "--dry-run", "--json", "--set", "pools.max_questions=2")
    told = place.treadle(*arguments).succeeded().json()
    assert told["reuse"]["1/pools"]["num_open"] == told["estimates"][0]["num_units"] == 0, "both are there"
    arguments = (*arguments, "--set", "seed=5")
    (estimate,) = place.treadle(*arguments).succeeded().json()["estimates"]
    usage = json.loads((place.folder / "outputs/runs/r/records/1/pools.json").read_text())["metrics"]["usage"]
    assert estimate["estimate"] is True and estimate["basis"] == f"measured in 1/pools ({NUM_QUESTIONS} questions)"
    assert (estimate["num_units"], estimate["num_units_source"]) == (2, "from 1/questions")
    found = {role["role"]: role for role in estimate["roles"]}
    assert found["policy"]["prompt_tokens"] == pytest.approx(usage["policy"]["prompt_tokens"] / 2, abs=1)
    assert estimate["cost"] == pytest.approx(sum(role["cost"] for role in found.values()))
    assert num_requests(url) == before


def test_cost_limit_stops_the_flywheel_and_keeps_finished_work(desk: tuple[Desk, str, Done]) -> None:
    place, url, _ = desk
    base = ("run", "run.toml", "--run", "poor", "--set", "pools.max_concurrent=1")
    usage = json.loads((place.folder / "outputs/runs/r/records/1/pools.json").read_text())["metrics"]["usage"]
    spent = sum(used["prompt_tokens"] / 1e3 + used["completion_tokens"] / 500 for used in usage.values())
    broke = place.treadle(*base, "--set", f"pools.max_cost={spent / 2}")
    broke.failed("are spent of max_cost =", "raise the limit and run again")
    asked = num_requests(url)
    (estimate,) = place.treadle(*base, "--dry-run", "--json").succeeded().json()["estimates"]
    assert estimate["basis"].startswith("measured in what is finished of 1/pools (")
    assert estimate["num_units"] < NUM_QUESTIONS and "are finished" in estimate["num_units_source"]
    refused = place.treadle(*base, "--set", f"pools.max_cost={spent / 2}")
    refused.failed("are spent of max_cost =")
    assert num_requests(url) < asked + 10  # what the journal remembers is included as the operators meet it
    config = (place.folder / "run.toml").read_text()
    (place.folder / "unpriced.toml").write_text(re.sub("(?m)^prompt_price.*$", "", config))
    unpriced = ("unpriced.toml", "--run", "unpriced", "--set", "pools.max_cost=1")
    place.treadle("run", *unpriced).failed("models.tutor has no prices")
    place.treadle(*base, "--json").succeeded()
    assert place.rows("poor", "1/pools", "pools") == place.rows("r", "1/pools", "pools")
