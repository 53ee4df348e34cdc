"""The page of candidates and pairs: order, parts in pairs, and nothing hidden."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.preferences.bench import Bench, likes_ones
from support.preferences.desk import CANARY, Desk
from support.preferences.table_server import TableScript
from support.servers.scripted_server import served
from support.tables.viewer_run import client


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    made = Desk(tmp_path_factory.mktemp("desk"))
    made.put({"a": (1.0, 0.0)})
    critic = TableScript(made.tokenizer, likes_ones)
    with (
        served(TableScript(made.tokenizer), codec=made.tokenizer) as server,
        served(critic, codec=made.tokenizer) as other,
    ):
        bench = Bench(made, server, other)
        bench.candidates()
        bench.advantages()
    for kind in ("trajectory", "turn"):
        made.pairs(kind)
    return made


@pytest.fixture(scope="module")
def viewer(desk: Desk) -> TestClient:
    return client(desk.run)


def key_of(desk: Desk, sample: int) -> str:
    rows = desk.rows("1/rollouts@base", "rollouts")
    return str(next(row["rollout_key"] for row in rows if row["sample_index"] == sample))


def test_candidates_are_listed_by_advantage_with_their_parts_in_pairs(desk: Desk, viewer: TestClient) -> None:
    key = key_of(desk, 0)
    page = viewer.get(f"/preferences/1/rollouts@base/{key}").text
    cells = [float(text.replace("\u2212", "-")) for text in re.findall(r'<td class="num">(\S?\d+\.\d{4})</td>', page)]
    rows = [row for row in desk.rows("1/advantages", "advantages") if row["rollout_key"] == key]
    turns = sorted({row["turn"] for row in rows})
    wanted = [sorted((row["advantage"] for row in rows if row["turn"] == turn), reverse=True) for turn in turns]
    assert cells == pytest.approx([value for turn in wanted for value in turn], abs=5e-5)
    pairs = [row for row in desk.rows("1/preferences@turn", "preferences") if row["question_key"] == "a"]
    own = {f"{row['turn_key']}:{row['candidate']}" for row in rows}
    counted = sum(int(number) for number in re.findall(r">(?:chosen|rejected) (\d+)<", page))
    assert counted == 2 * sum(row["chosen_key"] in own for row in pairs) > 0


def test_pairs_of_rollouts_link_to_each_other(desk: Desk, viewer: TestClient) -> None:
    chosen, rejected = key_of(desk, 0), key_of(desk, 1)
    page = viewer.get(f"/preferences/1/rollouts@base/{chosen}").text
    assert f"/trajectory/1/rollouts@base/{rejected}" in page and ">chosen</span>" in page
    assert ">rejected</span>" in viewer.get(f"/preferences/1/rollouts@base/{rejected}").text


def test_page_has_nothing_that_is_hidden_and_a_tab_leads_to_it(desk: Desk, viewer: TestClient) -> None:
    key = key_of(desk, 0)
    trajectory = viewer.get(f"/trajectory/1/rollouts@base/{key}").text
    assert f"/preferences/1/rollouts@base/{key}" in trajectory
    assert CANARY not in trajectory + viewer.get(f"/preferences/1/rollouts@base/{key}").text


def test_rollouts_without_preferences_have_no_tab(tmp_path: Path) -> None:
    made = Desk(tmp_path)
    made.put({"a": (1.0, 0.0)})
    key = key_of(made, 0)
    page = client(made.run).get(f"/trajectory/1/rollouts@base/{key}").text
    assert "/preferences/" not in page
