"""The stages `candidates` and `advantages` over HTTP: contexts, spans, budgets, resuming, and pairs of turns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.preferences.bench import Bench, likes_ones
from support.preferences.desk import CANARY, Desk, Greeting
from support.preferences.table_server import TableScript
from support.servers.scripted_server import Fault, Item, RecordedRequest, served
from support.tables.score_tables import NO_IDS, put_rows

from treadle.core.errors import ArtifactError, BudgetExceeded, JobsPending, StageFailed
from treadle.core.llm.config import Sampling
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.rl.advantages.figures import advantages_report
from treadle.rl.candidates.figures import candidates_report
from treadle.rl.preferences.tables import ADVANTAGES


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    made = Desk(tmp_path)
    made.put({"a": (1.0, 0.0), "b": (1.0, 0.0), "c": (1.0, 0.0)}, held_out=("c",))
    return made


@pytest.mark.covers("sweet-19")
def test_each_turn_of_the_split_train_gets_candidates_in_its_own_context(desk: Desk) -> None:
    script = TableScript(desk.tokenizer)
    with served(script, codec=desk.tokenizer) as server:
        record = Bench(desk, server, server).candidates()
    rows = desk.rows("1/candidates", "candidates")
    rollouts = {row["rollout_key"]: row for row in desk.rows("1/rollouts@base", "rollouts")}
    assert {rollouts[row["rollout_key"]]["question_key"] for row in rows} == {"a", "b"}
    num_turns = sum(row["num_turns"] for row in rollouts.values() if row["question_key"] != "c")
    assert record.metrics["turns"] == num_turns and len(rows) == 4 * num_turns == record.metrics["candidates"]
    for row in rows:
        sample = rollouts[row["rollout_key"]]["samples"][0]
        start = sample["turn_starts"][row["turn"]]
        assert row["prompt_ids"] == sample["prompt_ids"] + sample["ids"][:start] in script.sampled
        assert row["ids"][-1] == desk.tokenizer.turn_end_ids[0] and row["mask"] == [1] * len(row["ids"])
        assert row["num_tokens"] == len(row["ids"]) and not row["truncated"]
        assert row["messages"].count('"role":"assistant"') == row["turn"]
    assert not any(CANARY in desk.tokenizer.decode(prompt) for prompt in script.sampled)


def test_fraction_of_rollouts_is_drawn_by_the_seed(desk: Desk) -> None:
    with served(TableScript(desk.tokenizer), codec=desk.tokenizer) as server:
        assert Bench(desk, server, server).candidates(data_fraction=0.5).metrics["rollouts"] == 2


def test_candidate_at_its_limit_has_no_end_and_is_not_paired(desk: Desk) -> None:
    with served(TableScript(desk.tokenizer), codec=desk.tokenizer) as server:
        bench = Bench(desk, server, server)
        record = bench.candidates(sampling=Sampling(max_tokens=9))
        rows = desk.rows("1/candidates", "candidates")
        cut = [row for row in rows if row["truncated"]]
        assert record.metrics["truncated"] == len(cut) and 0 < len(cut) < len(rows)
        assert all(row["ids"][-1] != desk.tokenizer.turn_end_ids[0] for row in cut)
        with served(TableScript(desk.tokenizer, likes_ones), codec=desk.tokenizer) as critic:
            Bench(desk, server, critic).advantages()
    desk.pairs("turn", pairs_per_turn=20)
    keys = {f"{row['turn_key']}:{row['candidate']}" for row in cut}
    pairs = desk.rows("1/preferences@turn", "preferences")
    assert not keys & {row[f"{side}_key"] for row in pairs for side in ("chosen", "rejected")}


@pytest.mark.covers("sweet-16")
def test_equal_models_have_no_advantage_and_the_stage_says_so(desk: Desk) -> None:
    with served(TableScript(desk.tokenizer), codec=desk.tokenizer) as server:
        bench = Bench(desk, server, server)
        bench.candidates()
        with pytest.raises(
            StageFailed, match="all .* advantages are 0: the critic is no other model than the reference"
        ):
            bench.advantages()


def test_server_that_lies_about_probabilities_scores_nothing(desk: Desk) -> None:
    liar = TableScript(desk.tokenizer, lambda prompt: (0.5,) * (len(prompt) - 1))
    with (
        served(TableScript(desk.tokenizer), codec=desk.tokenizer) as server,
        served(liar, codec=desk.tokenizer) as critic,
    ):
        Bench(desk, server, critic).candidates()
        with pytest.raises(JobsPending, match="log-probability of prompt id"):
            Bench(desk, server, critic).advantages()
        with pytest.raises(StageFailed, match="no candidate is scored, .* turns failed"):
            Bench(desk, server, critic, accept_failures=True).advantages(max_error_rate=1.0)


@pytest.mark.covers("sweet-6")
def test_critic_alone_sees_hidden_information_and_spans_are_the_same(desk: Desk) -> None:
    policy, critic = TableScript(desk.tokenizer), TableScript(desk.tokenizer, likes_ones)
    with served(policy, codec=desk.tokenizer) as served_policy, served(critic, codec=desk.tokenizer) as served_critic:
        bench = Bench(desk, served_policy, served_critic)
        bench.candidates()
        bench.advantages()
        assert all(CANARY in desk.tokenizer.decode(prompt) for prompt in critic.seen)
        assert not any(CANARY in desk.tokenizer.decode(prompt) for prompt in policy.seen)
        candidates = {(row["turn_key"], row["candidate"]): row for row in desk.rows("1/candidates", "candidates")}
        for row in desk.rows("1/advantages", "advantages"):
            own = candidates[row["turn_key"], row["candidate"]]
            ones = own["ids"].count(ord("1"))
            assert row["reference_sum"] == -len(own["ids"]) and row["num_tokens"] == len(own["ids"])
            assert row["critic_sum"] == pytest.approx(-len(own["ids"]) + 0.5 * ones)
            assert row["advantage"] == pytest.approx(0.5 * ones / len(own["ids"]))
        bench.advantages(is_mean=False, reference_conditioning="hidden_info")
        assert any(CANARY in desk.tokenizer.decode(prompt) for prompt in policy.seen)
        sums = desk.rows("1/advantages", "advantages")
        assert all(row["advantage"] == row["critic_sum"] - row["reference_sum"] for row in sums)
        critic.seen.clear()
        bench.advantages(hidden=False)
        assert not any(CANARY in desk.tokenizer.decode(prompt) for prompt in critic.seen)


def test_equal_candidates_of_a_turn_are_scored_once(desk: Desk) -> None:
    critic = TableScript(desk.tokenizer, likes_ones)
    with (
        served(TableScript(desk.tokenizer, num_sentences=2), codec=desk.tokenizer) as server,
        served(critic, codec=desk.tokenizer) as other,
    ):
        bench = Bench(desk, server, other)
        bench.candidates(num_candidates=8)
        bench.advantages()
    texts = {(row["turn_key"], row["candidate"]): row["text"] for row in desk.rows("1/candidates", "candidates")}
    scored = desk.rows("1/advantages", "advantages")
    assert len(scored) == len(texts) > len(critic.seen) == len({(turn, text) for (turn, _), text in texts.items()})
    assert all(
        row["advantage"] == pytest.approx(0.5 * texts[row["turn_key"], row["candidate"]].count("1") / row["num_tokens"])
        for row in scored
    )


@pytest.mark.covers("sweet-19")
def test_pairs_of_turns_prefer_the_higher_advantage_and_never_show_hidden_information(desk: Desk) -> None:
    critic = TableScript(desk.tokenizer, likes_ones)
    with (
        served(TableScript(desk.tokenizer), codec=desk.tokenizer) as server,
        served(critic, codec=desk.tokenizer) as other,
    ):
        bench = Bench(desk, server, other)
        record = bench.candidates(num_candidates=8)
        bench.advantages()
    made = desk.pairs("turn")
    rows = desk.rows("1/preferences@turn", "preferences")
    assert (
        made.metrics["turns"] == record.metrics["turns"]
        and 0 < len(rows) <= made.metrics["drawn"] <= 4 * made.metrics["turns"]
    )
    advantages = {
        f"{row['turn_key']}:{row['candidate']}": row["advantage"] for row in desk.rows("1/advantages", "advantages")
    }
    for row in rows:
        difference = advantages[row["chosen_key"]] - advantages[row["rejected_key"]]
        assert row["margin"] == pytest.approx(difference) and difference > 0
        assert row["chosen_turns"] == [len(row["chosen_ids"])] and not row["hidden"]
        assert CANARY not in str(row) + desk.tokenizer.decode(row["prompt_ids"])
    assert desk.pairs("turn").outputs == made.outputs, "the same seed gives the same pairs"


def test_turns_without_a_pair_fail_the_stage(desk: Desk) -> None:
    policy = TableScript(desk.tokenizer, num_sentences=1)
    critic = TableScript(desk.tokenizer, likes_ones, num_sentences=1)
    with served(policy, codec=desk.tokenizer) as server, served(critic, codec=desk.tokenizer) as other:
        bench = Bench(desk, server, other)
        bench.candidates()
        bench.advantages()
    with pytest.raises(StageFailed, match=r"no pair among the candidates of \d+ turns: 0 candidates are truncated"):
        desk.pairs("turn")


def test_stage_without_a_usable_turn_fails(desk: Desk) -> None:
    with served(TableScript(desk.tokenizer), codec=desk.tokenizer, max_model_len=20) as server:
        with pytest.raises(StageFailed, match="the window has no room for any turn; raise max_model_len"):
            Bench(desk, server, server).candidates()
        rows = desk.rows("1/rollouts@base", "rollouts")
        put_rows(desk.run, "1/rollouts@base", ROLLOUTS, [row | {"samples": [NO_IDS]} for row in rows])
        with pytest.raises(
            StageFailed, match=r"4 rollouts of the split train have no turn with token ids \(no_ids 4\)"
        ):
            Bench(desk, server, server).candidates()


def test_turn_that_the_critic_cannot_read_whole_is_left_out_and_counted(desk: Desk) -> None:
    critic = TableScript(desk.tokenizer, likes_ones)
    with served(TableScript(desk.tokenizer), codec=desk.tokenizer) as server:
        with served(critic, codec=desk.tokenizer) as other:
            bench = Bench(desk, server, other)
            bench.candidates()
            bench.advantages(best_of=True)
            whole = [prompt for prompt in critic.seen if f"{CANARY} 13." in desk.tokenizer.decode(prompt)]
            critic.seen.clear()
            before = bench.advantages().metrics
        rows = {(row["turn_key"], row["candidate"]): row for row in desk.rows("1/advantages", "advantages")}
        lengths = sorted({len(prompt) for prompt in critic.seen})
        limit = max(map(len, whole))
        assert lengths[0] < limit < lengths[-1]
        critic.seen.clear()
        with served(critic, codec=desk.tokenizer, max_model_len=limit) as small:
            record = Bench(desk, server, small).advantages(best_of=True)
        left = desk.rows("1/advantages", "advantages")
        num_left_out = record.metrics["left_out.critic_window"]
        assert record.metrics["best_of.left_out.critic_window"] == 1 and "best_of.tasks" not in record.metrics
        assert num_left_out > 0 and record.metrics["turns"] + num_left_out == before["turns"]
        assert left == [rows[row["turn_key"], row["candidate"]] for row in left], "values of others are the same"
        assert {len(prompt) for prompt in critic.seen} < set(lengths), "nothing is asked about a turn that is left out"
        said = advantages_report(record, desk.run, {}).sentences
        assert said[1].startswith(f"{num_left_out} turns left out (critic_window): their prompts, with what")
        assert said[2].startswith("1 tasks of the best of N left out (critic_window)")
        assert desk.pairs("turn").metrics["left_out.not_scored"] >= 4 * num_left_out
        with (
            served(critic, codec=desk.tokenizer, max_model_len=lengths[0]) as none,
            pytest.raises(StageFailed, match=r"0 turns failed, \d+ left_out.critic_window; models.critic: the critic"),
        ):
            Bench(desk, server, none).advantages()


def test_window_that_only_the_server_knows_leaves_turns_out(desk: Desk) -> None:
    refused: list[str] = []
    rollouts = [row for row in desk.rows("1/rollouts@base", "rollouts") if row["question_key"] != "c"]
    samples = [row["samples"][0] for row in rollouts]
    limit = max(len(one["prompt_ids"]) + start for one in samples for start in one["turn_starts"]) - 1

    def cannot_read(script: TableScript, key: str) -> Callable[[RecordedRequest], Item]:
        def answer(request: RecordedRequest) -> Item:
            is_asked = isinstance(request.prompt, list) and ("prompt_logprobs" in request.body) == (key == "critic")
            if is_asked and len(request.prompt) > limit:
                refused.append(key)
                return Fault.too_long()
            return script(request)

        return answer

    policy = cannot_read(TableScript(desk.tokenizer), "policy")
    with served(policy, codec=desk.tokenizer, max_model_len=None) as server:
        record = Bench(desk, server, server).candidates()
    num_full = record.metrics["full_contexts"]
    assert 0 < num_full < record.metrics["turns"] and "policy" in refused
    assert f"{num_full} turns have no candidates" in candidates_report(record, desk.run, {}).sentences[1]
    limit = max(len(row["prompt_ids"]) for row in desk.rows("1/candidates", "candidates"))
    critic = cannot_read(TableScript(desk.tokenizer, likes_ones), "critic")
    with (
        served(TableScript(desk.tokenizer), codec=desk.tokenizer) as server,
        served(critic, codec=desk.tokenizer, max_model_len=None) as other,
    ):
        metrics = Bench(desk, server, other).advantages().metrics
    assert metrics["left_out.critic_window"] > 0 and metrics["turns"] > 0 and "critic" in refused


def test_advantages_of_other_candidates_are_refused_and_missing_ones_counted(desk: Desk) -> None:
    critic = TableScript(desk.tokenizer, likes_ones)
    with (
        served(TableScript(desk.tokenizer), codec=desk.tokenizer) as server,
        served(critic, codec=desk.tokenizer) as other,
    ):
        bench = Bench(desk, server, other)
        bench.candidates()
        bench.advantages()
    rows = desk.rows("1/advantages", "advantages")
    put_rows(desk.run, "1/advantages", ADVANTAGES, rows[1:])
    assert desk.pairs("turn").metrics["left_out.not_scored"] == 1
    put_rows(desk.run, "1/advantages", ADVANTAGES, [rows[0] | {"turn_key": "other"}, *rows[1:]])
    with pytest.raises(ArtifactError, match="the advantage of turn other is of no candidate that is read here"):
        desk.pairs("turn")


def test_critic_chooses_among_rollouts_of_held_out_tasks_as_a_diagnostic(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.put({"a": (1.0, 0.0), "b": (0.0, 0.5, 1.0), "c": (None, 1.0)}, held_out=("b", "c"))
    critic = TableScript(desk.tokenizer, likes_ones)
    with (
        served(TableScript(desk.tokenizer), codec=desk.tokenizer) as server,
        served(critic, codec=desk.tokenizer) as other,
    ):
        bench = Bench(desk, server, other)
        bench.candidates()
        found = bench.advantages(best_of=True).metrics
    rows = [row for row in desk.rows("1/rollouts@base", "rollouts") if row["question_key"] == "b"]
    shares = []
    for row in rows:
        sample = row["samples"][0]
        said = [id_ for id_, origin in zip(sample["ids"], sample["origins"], strict=True) if origin == 1]
        shares.append(said.count(ord("1")) / len(said))
    assert len(set(shares)) == 3
    assert found["best_of.tasks"] == 1 and found["best_of.rollouts"] == 3
    assert found["best_of.mean_reward"] == 0.5 and found["best_of.best_reward"] == 1.0
    assert found["best_of.critic_reward"] == (0.0, 0.5, 1.0)[shares.index(max(shares))]
    assert len(desk.rows("1/advantages", "advantages")) == found["candidates"]


def test_interrupted_stage_asks_for_nothing_that_it_has(desk: Desk) -> None:
    policy = TableScript(desk.tokenizer)
    with served(policy, codec=desk.tokenizer) as server:
        bench = Bench(desk, server, server, force=False)
        with pytest.raises(BudgetExceeded):
            bench.candidates(max_total_tokens=1500, max_concurrent=1)
        assert (before := len(policy.sampled))
        record = bench.candidates()
        assert record.metrics["candidates"] <= len(policy.sampled) <= record.metrics["candidates"] + 4
        assert before < record.metrics["candidates"]


def test_rollout_of_a_held_out_task_is_scored_after_its_own_prompt(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Greeting)
    desk.put({"a": (1.0, 0.0), "b": (0.0, 1.0)}, held_out=("b",))
    policy, critic = TableScript(desk.tokenizer), TableScript(desk.tokenizer, likes_ones)
    with served(policy, codec=desk.tokenizer) as server, served(critic, codec=desk.tokenizer) as other:
        bench = Bench(desk, server, other)
        bench.candidates()
        policy.seen.clear()
        assert bench.advantages(best_of=True).metrics["best_of.rollouts"] == 2
    rows = [row for row in desk.rows("1/rollouts@base", "rollouts") if row["question_key"] == "b"]
    samples = [row["samples"][0] for row in rows]
    assert samples[0]["prompt_ids"] != samples[1]["prompt_ids"]
    for sample in samples:
        end = max(place for place, origin in enumerate(sample["origins"]) if origin == 1) + 1
        assert sample["prompt_ids"] + sample["ids"][:end] in policy.seen
        begins = desk.tokenizer.decode(sample["prompt_ids"])
        greeting = begins[begins.index("Hello") : begins.index(" I think")]
        assert any(f"\n{greeting} I think" in desk.tokenizer.decode(prompt) for prompt in critic.seen)
