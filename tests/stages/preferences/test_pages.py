"""Dialogues about pages on the way of SWEET-RL: similarity makes pairs, the critic reads the target's text."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.preferences.bench import Bench, likes_ones
from support.preferences.page_desk import PageDesk, Vectors, page
from support.preferences.table_server import TableScript
from support.servers.scripted_server import ScriptedServer, served

from treadle.core.errors import ConfigError
from treadle.core.llm.config import Sampling
from treadle.core.runs.address import Address
from treadle.environments.scorers.similarity import scorer
from treadle.rl.dpo.config import DpoOptions, DpoSettings
from treadle.rl.dpo.rows import PairStore

CANARY = "canary_of_the_target"
TARGET = page("red", f"<!-- {CANARY} -->")
COLORS = ("blue", "red", None, "purple")
WINDOW = 16_384


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PageDesk:
    @contextlib.asynccontextmanager
    async def opened(*_: object, **__: object) -> AsyncIterator[Vectors]:
        yield Vectors()

    monkeypatch.setattr(scorer, "open_embedder", opened)
    return PageDesk(tmp_path)


def script(desk: PageDesk, **keys: Any) -> TableScript:
    return TableScript(desk.tokenizer, opening="OUTPUT: <html>", **keys)


def sampled(bench: Bench) -> None:
    bench.candidates(sampling=Sampling(max_tokens=200))


def text(desk: PageDesk, ids: list[int]) -> str:
    return desk.tokenizer.decode(ids)


def server(desk: PageDesk, played: TableScript) -> contextlib.AbstractContextManager[ScriptedServer]:
    return served(played, codec=desk.tokenizer, max_model_len=WINDOW)


def paired(desk: PageDesk) -> tuple[TableScript, TableScript]:
    """Make pairs of dialogues and of turns; return the policy and the critic, with what they were asked."""
    policy, critic = script(desk), script(desk, score=likes_ones)
    with server(desk, policy) as served_policy, server(desk, critic) as served_critic:
        bench = Bench(desk, served_policy, served_critic)
        sampled(bench)
        bench.advantages()
    desk.pairs("trajectory", rule="gap")
    desk.pairs("turn")
    return policy, critic


@pytest.mark.covers("sweet-23")
def test_pairs_follow_the_similarity_of_the_last_pages(desk: PageDesk) -> None:
    desk.play({"a": TARGET, "b": TARGET}, COLORS, held_out=("b",))
    scores = {row["rollout_key"]: row for row in desk.rows("1/scores@base", "scores")}
    assert [round(row["score"], 6) for row in scores.values()] == [0.0, 1.0, 0.6, 0.8] * 2
    assert {row["scorer"] for row in scores.values()} == {"similarity: clip (openai/clip-vit-base-patch32), whole page"}
    desk.pairs("trajectory", rule="gap", min_gap=0.3)
    rows = desk.rows("1/preferences@trajectory", "preferences")
    found = {(scores[row["chosen_key"]]["sample_index"], scores[row["rejected_key"]]["sample_index"]) for row in rows}
    assert found == {(1, 0), (1, 2), (2, 0), (3, 0)} and {row["question_key"] for row in rows} == {"a"}
    for row in rows:
        kept = [id_ for id_, one in zip(row["chosen_ids"], row["chosen_mask"], strict=True) if one]
        assert "must be red" in text(desk, row["chosen_ids"]) and "must be red" not in text(desk, kept)
        assert text(desk, row["prompt_ids"]).count(TARGET) == 1 and row["hidden"]
        assert row["margin"] == pytest.approx(scores[row["chosen_key"]]["score"] - scores[row["rejected_key"]]["score"])


@pytest.mark.covers("sweet-6")
def test_target_reaches_critic_person_and_scorer_alone_and_pictures_no_prompt_of_text(desk: PageDesk) -> None:
    desk.play({"a": TARGET}, COLORS)
    policy, critic = paired(desk)
    assert critic.seen and all(text(desk, prompt).count(TARGET) == 1 for prompt in critic.seen)
    of_policy = [text(desk, prompt) for prompt in (*policy.sampled, *policy.seen)]
    rows = [str(row) + text(desk, row["prompt_ids"]) for row in desk.rows("1/preferences@turn", "preferences")]
    assert of_policy and rows and not any(CANARY in one for one in (*of_policy, *rows))
    told = [text(desk, prompt) for prompt in critic.seen]
    assert not any(re.search("base64|image_url|PNG|IHDR|�", one) for one in (*of_policy, *rows, *told))
    (system, user) = desk.human.asked[0]
    assert [part["type"] for part in user["content"]].count("image_url") == 2 and CANARY not in str((system, user))


def test_turns_of_pages_become_rows_to_train_critic_and_policy(desk: PageDesk, tmp_path: Path) -> None:
    desk.play({"a": TARGET, "b": TARGET, "c": TARGET}, COLORS)
    paired(desk)
    assert all(row["margin"] > 0 for row in desk.rows("1/preferences@turn", "preferences"))

    def stored(kind: str, *, is_critic: bool) -> list[dict[str, Any]]:
        record = desk.run.record(Address.parse(f"1/preferences@{kind}"))
        assert record is not None
        settings = DpoSettings(options=DpoOptions(aggregate="sum", holdout_share=0.3), is_critic=is_critic, seed=0)
        store = PairStore(settings, [desk.run.rows(record.outputs["preferences"])], "1/dpo@policy")
        store.store(tmp_path / f"{kind}.parquet", store.select())
        return list(pq.read_table(tmp_path / f"{kind}.parquet", use_threads=False).to_pylist())

    for row in (*stored("trajectory", is_critic=True), *stored("turn", is_critic=False)):
        for side in ("chosen", "rejected"):
            assert len(row[f"{side}_ids"]) == len(row[f"{side}_mask"]) and sum(row[f"{side}_turns"]) == sum(
                row[f"{side}_mask"]
            )
    with pytest.raises(ConfigError, match="state hidden information"):
        stored("trajectory", is_critic=False)


def test_long_target_loses_its_middle_in_training_and_ranking_alike(desk: PageDesk) -> None:
    desk.play({"a": page("red", f"<p>bread</p>{'<p>more</p>' * 5_000}{CANARY}<p>butter</p>")}, ("blue", "red"))
    desk.pairs("trajectory", hidden_chars=1_000)
    (row,) = desk.rows("1/preferences@trajectory", "preferences")
    prompt = text(desk, row["prompt_ids"])
    statement = prompt[prompt.index("The person of this task") : prompt.index("```\n\n") + 3]
    assert len(statement) == 1_000 and "characters left out" in statement
    assert "<p>bread</p>" in statement and statement.endswith(f"{CANARY}<p>butter</p></body></html>\n```")
    critic = script(desk, score=likes_ones)
    with server(desk, script(desk)) as served_policy, server(desk, critic) as served_critic:
        bench = Bench(desk, served_policy, served_critic)
        sampled(bench)
        bench.advantages(hidden_chars=1_000)
    assert critic.seen and all(ids[: len(row["prompt_ids"])] == row["prompt_ids"] for ids in critic.seen)
