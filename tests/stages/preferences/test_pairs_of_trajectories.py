"""The stage `preferences` over scored rollouts: pairs, masks, hidden information, and what is left out or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.preferences.desk import CANARY, Desk
from support.rollouts.dialogues import Guess
from support.tables.score_tables import NO_IDS, put_rows

from treadle.core.errors import StageFailed
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.eval.tables import SCORES

REWARDS = {"a": (1.0, 0.4, 1.0), "b": (0.9, 1.0, 0.9), "c": (0.0, 0.3, 0.7), "d": (1.0, 1.0, 0.0), "e": (1.0, 0.0, 0.0)}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    made.put(REWARDS, held_out=("e",))
    return made


def test_pairs_follow_rewards_and_leave_out_held_out_tasks(desk: Desk) -> None:
    record = desk.pairs("trajectory")
    rows = desk.rows("1/preferences@trajectory", "preferences")
    keys = {
        row["rollout_key"]: (row["question_key"], row["sample_index"])
        for row in desk.rows("1/rollouts@base", "rollouts")
    }
    pairs = [(keys[row["chosen_key"]], keys[row["rejected_key"]][1], round(row["margin"], 6)) for row in rows]
    assert pairs == [(("a", 0), 1, 0.6), (("b", 1), 0, 0.1), (("b", 1), 2, 0.1), (("d", 0), 2, 1.0)]
    assert record.metrics["pairs"] == 4 and record.metrics["tasks"] == 4 and record.metrics["tasks_with_pairs"] == 3
    assert desk.pairs("trajectory", rule="gap", min_gap=0.5).metrics["pairs"] == 5


@pytest.mark.covers("sweet-17")
def test_mask_covers_what_the_model_wrote_and_the_ends_of_its_turns(desk: Desk) -> None:
    desk.pairs("dialogue")
    end = desk.tokenizer.turn_end_ids[0]
    for row in desk.rows("1/preferences@dialogue", "preferences"):
        for side in ("chosen", "rejected"):
            kept = [id_ for id_, one in zip(row[f"{side}_ids"], row[f"{side}_mask"], strict=True) if one]
            said = desk.tokenizer.decode(kept)
            turns = said.split(desk.tokenizer.decode([end]))
            assert all(turn.startswith("I say ") for turn in turns[:-1]) and turns[-1] == ""
            assert kept.count(end) == len(row[f"{side}_turns"]) == len(turns) - 1
            assert sum(row[f"{side}_turns"]) == len(kept) and row[f"{side}_ids"][-1] == end


@pytest.mark.covers("sweet-6")
def test_hidden_information_is_in_the_prompts_of_critics_alone(desk: Desk) -> None:
    desk.pairs("trajectory")
    desk.pairs("dialogue")
    plain = {row["chosen_key"]: row for row in desk.rows("1/preferences@dialogue", "preferences")}
    for row in desk.rows("1/preferences@trajectory", "preferences"):
        other = plain[row["chosen_key"]]
        prompt = desk.tokenizer.decode(row["prompt_ids"])
        assert row["hidden"] and prompt.count(CANARY) == 1 and CANARY in row["messages"]
        assert not other["hidden"] and CANARY not in str(other) + desk.tokenizer.decode(other["prompt_ids"])
        assert row["chosen_ids"] == other["chosen_ids"] and row["chosen_mask"] == other["chosen_mask"]
        assert prompt.replace(f"{CANARY} ", "").split(".\n\n", 1)[1] in desk.tokenizer.decode(other["prompt_ids"])


def test_ablation_leaves_the_statement_out_and_the_kind_as_it_is(desk: Desk) -> None:
    desk.pairs("trajectory", hidden_information=False)
    rows = desk.rows("1/preferences@trajectory", "preferences")
    assert {(row["kind"], row["hidden"]) for row in rows} == {("trajectory", False)}
    assert not any(CANARY in desk.tokenizer.decode(row["prompt_ids"]) for row in rows)


def test_environment_that_hides_nothing_is_refused_for_critics(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Guess)
    desk.put({"a": (1.0, 0.0)})
    with pytest.raises(
        StageFailed, match=r"does not state what it hides .* set preferences\.hidden_information = false"
    ):
        desk.pairs("trajectory")
    assert desk.pairs("dialogue").metrics["pairs"] == 1


def test_no_pair_is_a_failure_that_names_its_cause(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.put({"a": (0.5, 0.2), "b": (1.0, 1.0)})
    with pytest.raises(
        StageFailed, match=r"no pair among the rollouts of 2 tasks of the split train with min_best = 1"
    ):
        desk.pairs("trajectory")


def test_rollouts_without_ids_or_with_other_prompts_are_not_paired(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.put({"a": (1.0, 0.0, 0.0)})
    rows = desk.rows("1/rollouts@base", "rollouts")
    rows[1]["samples"] = [NO_IDS]
    put_rows(desk.run, "1/rollouts@base", ROLLOUTS, rows)
    assert desk.pairs("dialogue").metrics["left_out.no_ids"] == 1
    rows[2]["samples"][0]["prompt_ids"][0] += 1
    put_rows(desk.run, "1/rollouts@base", ROLLOUTS, rows)
    with pytest.raises(StageFailed, match=r"the prompt of rollout \w+ has other token ids than its messages"):
        desk.pairs("dialogue")


def test_pairs_do_not_depend_on_the_order_of_scores(desk: Desk) -> None:
    first = desk.pairs("trajectory").outputs
    put_rows(desk.run, "1/scores@base", SCORES, desk.rows("1/scores@base", "scores")[::-1])
    assert desk.pairs("trajectory").outputs == first


def test_equal_rollouts_and_those_of_another_tokenizer_are_not_paired(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.put({"a": (1.0, 0.0, 0.0)})
    rows = desk.rows("1/rollouts@base", "rollouts")
    rows[1]["samples"] = rows[0]["samples"]
    put_rows(desk.run, "1/rollouts@base", ROLLOUTS, rows)
    assert desk.pairs("dialogue").metrics["left_out.same_ids"] == 1
    rows[2]["tokenizer_digest"] = "other"
    put_rows(desk.run, "1/rollouts@base", ROLLOUTS, rows)
    with pytest.raises(StageFailed, match=r"the prompt of rollout \w+ has other token ids than its messages"):
        desk.pairs("dialogue")


def test_rollouts_that_infrastructure_ended_are_not_the_worse_ones(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.put({"a": (1.0, 0.0)})
    scores = desk.rows("1/scores@base", "scores")
    put_rows(desk.run, "1/scores@base", SCORES, [scores[0], scores[1] | {"status": "failed"}])
    with pytest.raises(StageFailed, match="no pair among the rollouts of 1 tasks"):
        desk.pairs("dialogue")
