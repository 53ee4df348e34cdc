"""The stage `scores` with judge models behind real HTTP: who decides, what is remembered, paid and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.rollouts.scores_bench import ScoresBench, asked, judged_by, predicted, server, voted_by
from support.servers.scripted_server import Fault, Item, RecordedRequest
from support.tables.score_tables import called as ran
from support.tables.score_tables import parts_of, question, rollout

from treadle.core.errors import BudgetExceeded, ConfigError, EndpointUnavailable, JobsPending, StageFailed
from treadle.eval.config import VoteSampling

CALL = [("search", "<search>q</search>"), ("result", "<result>found</result>")]


def answered(key: str, question_key: str, answer: str, domain: str = "math", **columns: Any) -> dict[str, Any]:
    segments = [("answer", f"<answer>{answer}</answer>")]
    return rollout(key, question_key, segments, domain=domain, **columns)


def called(key: str, **columns: Any) -> dict[str, Any]:
    segments = [*CALL, ("answer", "<answer>7</answer>")]
    return rollout(key, "m1", segments, domain="math", **ran(search=1), **columns)


MATH = [question("m1", ["7"], "math"), question("m2", ["x"], "math")]


def bench(tmp_path: Path, rollouts: list[dict[str, Any]], questions: list[dict[str, Any]] | None = None) -> ScoresBench:
    return ScoresBench(tmp_path, questions or [*MATH, question("q1", ["Paris"])], rollouts)


def says_yes_to(*right: str) -> Any:
    return lambda request: "Correct" if predicted(request) in right else "Incorrect"


@pytest.mark.covers("evaluation-6")
async def test_judges_are_called_only_if_the_rule_does_not_say_correct(tmp_path: Path) -> None:
    rollouts = [
        answered("r1", "m1", "7"),
        answered("r2", "m1", "seven", sample_index=1, calls_requested=2),
        answered("r3", "m1", "eight", sample_index=2),
        answered("r4", "m1", "seven", sample_index=3, status="limit"),
        answered("r5", "m1", "", sample_index=4),
        answered("r6", "m1", "so long " * 300, sample_index=5),
        answered("r7", "q1", "London", domain="qa"),
    ]
    async with server(says_yes_to("seven")) as scripted:
        made = bench(tmp_path, rollouts)
        record = await made.score(judged_by({"judge": scripted.url}))
        assert sorted(map(predicted, asked(scripted))) == ["eight", "seven"]
    rows = made.rows(record)
    assert [row["correct"] for row in rows] == [True, True, False, False, False, False, False]
    assert [row["score"] for row in rows] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    scorers = ["math_text", "judge", "judge", "status", "empty", "math_text", "qa_f1"]
    assert [row["scorer"] for row in rows] == scorers
    assert [row["judge_status"] for row in rows] == [None, "parsed", "parsed", None, None, None, None]
    assert rows[1]["judges"] == {"judge": {"verdict": True, "status": "parsed", "raw": ["Correct"]}}
    assert (rows[1]["efficiency"], rows[0]["judges"], rows[1]["votes_yes"]) == (0.5, {}, None)
    assert (record.metrics["judge_parsed"], record.metrics["num_judgements"]) == (2, 2)
    usage = record.metrics["usage"]["correctness:judge"]
    assert usage["calls"] == 2 and usage["prompt_tokens"] > 0 and usage["completion_tokens"] > 0


async def test_repeated_answer_is_judged_once(tmp_path: Path) -> None:
    rollouts = [answered(f"r{n}", "m1", "seven", sample_index=n) for n in range(6)]
    async with server(says_yes_to("seven")) as scripted:
        made = bench(tmp_path, rollouts)
        record = await made.score(judged_by({"judge": scripted.url}))
        assert len(asked(scripted)) == 1
    assert [row["correct"] for row in made.rows(record)] == [True] * 6
    assert [row["rollout_key"] for row in made.rows(record, "judgements")] == ["r0"]


async def test_text_answers_of_judged_domains_are_scored_by_the_verdict(tmp_path: Path) -> None:
    rollouts = [
        answered(f"r{n}", "q1", text, "qa", sample_index=n) for n, text in enumerate(["Paris", "City of Paris"])
    ]
    rollouts.append(answered("r2", "q1", "Paris in Texas", "qa", sample_index=2))
    async with server(says_yes_to("City of Paris")) as scripted:
        made = bench(tmp_path, rollouts)
        record = await made.score(judged_by({"judge": scripted.url}, {"judges": {"domains": ["qa"]}}))
        assert len(asked(scripted)) == 2
    rows = made.rows(record)
    assert [(row["scorer"], row["score"]) for row in rows] == [("qa_em", 1.0), ("judge", 1.0), ("judge", 0.0)]
    assert 0 < parts_of(rows[2])["f1"] < 1


@pytest.mark.covers("evaluation-6")
async def test_unreadable_judge_is_retried_and_then_gives_no_verdict(tmp_path: Path) -> None:
    async with server(lambda _: "not entirely correct") as scripted:
        made = bench(tmp_path, [answered("r1", "m1", "7"), answered("r2", "m1", "seven", calls_requested=3)])
        with pytest.raises(
            StageFailed, match=r"1 of 2 rollouts have no verdict.*no judge gave a parsable reply"
        ) as failure:
            await made.score(judged_by({"judge": scripted.url}))
        assert "judges.on_failed" in str(failure.value) and "only new requests are made" in str(failure.value)
        record = await made.score(judged_by({"judge": scripted.url}, {"max_error_rate": 0.5}))
        assert len(asked(scripted)) == 2, "what it said is not asked again, though it cannot be read"
        seeds = {request.body["seed"] for request in asked(scripted)}
    assert len(seeds) == 2
    row = made.rows(record)[1]
    assert (row["correct"], row["score"], row["efficiency"], row["judge_status"]) == (None, None, None, "failed")
    assert row["judges"]["judge"] == {"verdict": None, "status": "failed", "raw": ["not entirely correct"] * 2}
    assert (row["calls_requested"], row["is_valid_answer"]) == (3, True)
    assert (record.metrics["judge_failed"], record.metrics["num_scorer_failed"]) == (1, 1)


async def test_rule_decides_for_unreadable_judges_if_configured(tmp_path: Path) -> None:
    async with server(lambda _: "Perhaps.") as scripted:
        made = bench(tmp_path, [answered("r1", "m1", "seven")])
        record = await made.score(judged_by({"judge": scripted.url}, {"judges": {"on_failed": "rule"}}))
    (row,) = made.rows(record)
    assert (row["correct"], row["score"], row["scorer"], row["judge_status"]) == (False, 0.0, "math_rules", "failed")


@pytest.mark.covers("evaluation-6")
async def test_three_server_errors_leave_the_verdict_to_the_rule(tmp_path: Path) -> None:
    rollouts = [answered("r1", "m1", "7"), answered("r2", "m1", "seven", **ran(python=3))]
    async with server(lambda _: Fault.status(500)) as scripted:
        made = bench(tmp_path, rollouts)
        settings = judged_by({"judge": scripted.url}, {"max_error_rate": 1.0}, retry_limit=2)
        with pytest.raises(JobsPending, match="1 of 1 judgements could not be finished"):
            await made.score(settings)
        assert len(asked(scripted)) == 3
        record = await made.score(settings, accept_failures=True)
    row = made.rows(record)[1]
    assert (row["judge_status"], row["correct"], row["score"]) == ("fallback_rule", False, 0.0)
    assert row["judges"] == {"judge": {"verdict": None, "status": "fallback_rule", "raw": []}}
    assert (row["calls_requested"], row["scorer"], row["error"]) == (3, "math_rules", None)
    assert row["tools"] == ran(python=3)["tools"]
    assert (record.metrics["judge_fallback_rule"], record.metrics["num_judgements_missing"]) == (1, 1)


async def test_failures_above_the_rate_are_not_accepted(tmp_path: Path) -> None:
    async with server(lambda _: Fault.status(500)) as scripted:
        made = bench(tmp_path, [answered("r1", "m1", "seven")])
        with pytest.raises(StageFailed, match="max_error_rate"):
            await made.score(judged_by({"judge": scripted.url}), accept_failures=True)


async def test_dead_endpoint_leaves_everything_pending_and_loses_nothing(tmp_path: Path) -> None:
    made = bench(tmp_path, [answered("r1", "m1", "seven")])
    async with server(says_yes_to("seven")) as scripted:
        url = scripted.url
    with pytest.raises(EndpointUnavailable):
        await made.score(judged_by({"judge": url}))
    async with server(says_yes_to("seven")) as scripted:
        record = await made.score(judged_by({"judge": scripted.url}))
    assert made.rows(record)[0]["correct"] is True


async def test_several_judges_decide_by_majority_and_agreement_is_reported(tmp_path: Path) -> None:
    judge_verdicts = {"a": ("p", "q", "r"), "b": ("p", "q"), "c": ("p",)}
    rollouts = [answered(f"r{n}", "m1", text, sample_index=n) for n, text in enumerate("pqrs")]
    async with (
        server(says_yes_to(*judge_verdicts["a"]), "a") as first,
        server(says_yes_to(*judge_verdicts["b"]), "b") as second,
        server(says_yes_to(*judge_verdicts["c"]), "c") as third,
    ):
        urls = {"a": first.url, "b": second.url, "c": third.url}
        made = bench(tmp_path, rollouts)
        record = await made.score(judged_by(urls))
        rows = made.rows(record)
        assert [row["correct"] for row in rows] == [True, True, False, False]
        assert [judge["verdict"] for judge in rows[2]["judges"].values()] == [True, False, False]
        assert record.metrics["num_judged_jointly"] == 4
        assert record.metrics["judge_agreement"] == pytest.approx(2 / 3)
        assert record.metrics["judge_kappa"] == pytest.approx(1 / 3)
        del urls["c"]
        record = await made.score(judged_by(urls))
        rows = made.rows(record)
    assert [row["judge_status"] for row in rows] == ["parsed", "parsed", "fallback_rule", "parsed"]
    assert [row["correct"] for row in rows] == [True, True, False, False]
    assert (rows[2]["scorer"], record.metrics["judge_fallback_rule"]) == ("math_rules", 1)
    assert (record.metrics["judge_agreement"], record.metrics["judge_kappa"]) == (0.75, pytest.approx(0.5))


async def test_other_settings_repeat_no_request(tmp_path: Path) -> None:
    rollouts = [answered("r1", "m1", "seven"), answered("r2", "m2", "y")]
    async with server(says_yes_to("seven")) as scripted:
        made = bench(tmp_path, rollouts)
        first = await made.score(judged_by({"judge": scripted.url}))
        again = await made.score(judged_by({"judge": scripted.url}, {"f1_threshold": 0.5}))
        assert (len(asked(scripted)), again.reused) == (2, False)
        assert made.rows(again) == made.rows(first)
        assert made.rows(again, "judgements") == made.rows(first, "judgements")
        assert again.metrics["usage"] == first.metrics["usage"], (
            "what a result cost does not depend on when it was paid"
        )
        hotter = judged_by({"judge": scripted.url})
        hotter["judges"]["judge"]["sampling"]["temperature"] = 0.5
        await made.score(hotter)
        assert len(asked(scripted)) == 4
        back = await made.score(judged_by({"judge": scripted.url}))
        assert len(asked(scripted)) == 4, "what earlier results had is still known"
        assert back.outputs == first.outputs


async def test_verdicts_of_the_current_result_are_reused_without_its_journal(tmp_path: Path) -> None:
    made = bench(tmp_path, [answered("r1", "m1", "seven"), called("r2", sample_index=1)])
    async with server(lambda request: "no" if "wasted" in request.text else "Correct") as scripted:
        settings = judged_by({"judge": scripted.url}, {"redundancy": {"model": "judge", "votes": 2}})
        settings["redundancy"] = settings["judges"]["judge"]
        first = await made.score(settings)
        num_asked = len(asked(scripted))
        made.run.storage.delete(made.run.key("journal"))
        settings["options"]["f1_threshold"] = 0.5
        again = await made.score(settings)
        assert (len(asked(scripted)), again.reused) == (num_asked, False) and num_asked == 3
    assert made.rows(again, "judgements") == made.rows(first, "judgements")


async def test_incomplete_votes_are_not_treated_as_complete(tmp_path: Path) -> None:
    script: list[Item] = ["yes", Fault.status(500)]
    async with server(lambda _: script.pop(0) if len(script) > 1 else script[0], "voter") as scripted:
        made = bench(tmp_path, [called("r1")])
        settings = voted_by(scripted.url, votes=3, max_error_rate=1.0)
        await made.score(settings, accept_failures=True)
        made.run.storage.delete(made.run.key("journal"))
        script[:] = ["no"]
        record = await made.score(settings)
    assert made.rows(record)[0]["votes_no"] == 3


async def test_already_judged_answers_need_no_judge(tmp_path: Path) -> None:
    made = bench(tmp_path, [answered("r1", "m1", "seven")])
    async with server(says_yes_to("seven")) as scripted:
        settings = judged_by({"judge": scripted.url})
        await made.score(settings)
    settings["options"]["f1_threshold"] = 0.5
    record = await made.score(settings)
    assert (made.rows(record)[0]["correct"], record.reused) == (True, False)


async def test_judge_without_remaining_requests_need_not_be_running(tmp_path: Path) -> None:
    made = bench(tmp_path, [answered("r1", "m1", "seven")])
    async with (
        server(says_yes_to("seven"), model="first") as first,
        server(lambda request: Fault.status(500), model="second") as broken,
    ):
        with pytest.raises(JobsPending):
            await made.score(judged_by({"first": first.url, "second": broken.url}))
        assert len(asked(first)) == 1
    async with server(says_yes_to("seven"), model="second") as second:
        record = await made.score(judged_by({"first": first.url, "second": second.url}))
        assert len(asked(second)) == 1
    assert record.metrics["num_judgements_missing"] == 0
    assert [one["verdict"] for one in made.rows(record)[0]["judges"].values()] == [True, True]


async def test_prompt_beyond_one_judge_window_is_sent_to_a_later_judge(tmp_path: Path) -> None:
    made = bench(tmp_path, [answered("r1", "m1", "seven")])
    async with server(lambda request: Fault.too_long()) as narrow:
        settings = judged_by({"judge": narrow.url}, {"max_error_rate": 1.0})
        with pytest.raises(JobsPending, match="1 of 1 judgements"):
            await made.score(settings)
        record = await made.score(settings, accept_failures=True)
    assert made.rows(record)[0]["judge_status"] == "fallback_rule"
    async with server(says_yes_to("seven")) as wide:
        record = await made.score(judged_by({"judge": wide.url}, {"max_error_rate": 1.0}))
    assert made.rows(record)[0]["correct"] is True


async def test_renamed_judge_is_the_same_judge(tmp_path: Path) -> None:
    async with server(says_yes_to("seven")) as scripted:
        made = bench(tmp_path, [answered("r1", "m1", "seven")])
        settings = judged_by({"judge": scripted.url})
        await made.score(settings)
        settings["judges"] = {"large": settings["judges"]["judge"] | {"name": "large"}}
        settings["options"]["judges"]["models"] = ["large"]
        record = await made.score(settings)
        assert len(asked(scripted)) == 1
    assert made.rows(record)[0]["judges"]["large"]["verdict"] is True
    assert [row["judge"] for row in made.rows(record, "judgements")] == ["large"]


async def test_forced_stage_resends_every_request(tmp_path: Path) -> None:
    async with server(says_yes_to("seven")) as scripted:
        made = bench(tmp_path, [answered("r1", "m1", "seven")])
        await made.score(judged_by({"judge": scripted.url}))
        record = await made.score(judged_by({"judge": scripted.url}), force=True)
        assert (len(asked(scripted)), record.metrics["num_judgements"]) == (2, 1)


async def test_resumed_forced_stage_reuses_nothing_older(tmp_path: Path) -> None:
    script: list[Item] = ["Correct", Fault.status(500), "Incorrect"]
    async with server(lambda _: script.pop(0)) as scripted:
        made = bench(tmp_path, [answered("r1", "m1", "seven")])
        await made.score(judged_by({"judge": scripted.url}))
        with pytest.raises(JobsPending):
            await made.score(judged_by({"judge": scripted.url}), force=True)
        record = await made.score(judged_by({"judge": scripted.url}))
    assert record.reused, "the result from before is still the one in force"
    async with server(lambda _: "Incorrect") as scripted:
        record = await made.score(judged_by({"judge": scripted.url}), force=True)
        assert (len(asked(scripted)), record.metrics["num_judgements"]) == (1, 1)
    assert made.rows(record)[0]["correct"] is False


async def test_unjudged_answer_changes_no_other_verdict(tmp_path: Path) -> None:
    async with server(says_yes_to("seven")) as scripted:
        alone = bench(tmp_path / "a", [answered("r1", "m1", "seven")])
        both = bench(tmp_path / "b", [answered("r0", "m1", "7"), answered("r1", "m1", "seven", sample_index=1)])
        (row,) = alone.rows(await alone.score(judged_by({"judge": scripted.url})))
        assert both.rows(await both.score(judged_by({"judge": scripted.url})))[1] == {**row, "sample_index": 1}


@pytest.mark.covers("evaluation-9")
async def test_votes_are_requested_for_rollouts_with_calls(tmp_path: Path) -> None:
    ballots = ["<answer>no</answer>", "<answer>none</answer>", "<answer>yes</answer>"]

    rollouts = [
        called("r1"),
        answered("r2", "m1", "7", sample_index=1),
        called("r3", sample_index=2, status="failed"),
        called("r4", sample_index=3, status="limit"),
    ]
    async with server(lambda _: ballots.pop(), "voter") as scripted:
        made = bench(tmp_path, rollouts)
        record = await made.score(voted_by(scripted.url, max_concurrent=1))
        assert len(asked(scripted)) == 3, "the same trajectory is voted on once, however it ended"
    votes = [(row["votes_yes"], row["votes_no"], row["votes_abstained"]) for row in made.rows(record)]
    assert votes == [(1, 1, 1), (0, 0, 0), (None, None, None), (1, 1, 1)]
    assert {row["judge_status"] for row in made.rows(record)} == {None}
    (row,) = made.rows(record, "judgements")
    assert (row["kind"], row["judge"], row["status"], row["replies"][1]) == (
        "redundancy",
        "voter",
        "parsed",
        "<answer>none</answer>",
    )


async def test_failed_votes_abstain_if_accepted(tmp_path: Path) -> None:
    async with server(lambda _: Fault.status(500), "voter") as scripted:
        made = bench(tmp_path, [called("r1")])
        with pytest.raises(JobsPending):
            await made.score(voted_by(scripted.url))
        record = await made.score(voted_by(scripted.url, max_error_rate=1.0), accept_failures=True)
    (row,) = made.rows(record)
    assert (row["votes_yes"], row["votes_no"], row["votes_abstained"], row["correct"]) == (0, 0, 3, True)


async def test_paid_votes_count_if_the_others_fail(tmp_path: Path) -> None:
    script: list[Item] = ["yes", "no", "yes", Fault.status(500)]
    async with server(lambda _: script.pop(0) if len(script) > 1 else script[0], "voter") as scripted:
        made = bench(tmp_path, [called("r1")])
        settings = voted_by(scripted.url, votes=4, max_error_rate=1.0)
        record = await made.score(settings, accept_failures=True)
        (row,) = made.rows(record)
        assert (row["votes_yes"], row["votes_no"], row["votes_abstained"]) == (2, 1, 1)
        (judgement,) = made.rows(record, "judgements")
        assert (judgement["replies"], judgement["error"]) == (
            ["yes", "no", "yes"],
            "1 of 4 votes could not be requested",
        )
        assert record.metrics["usage"]["redundancy:voter"]["calls"] == 3
        script[:] = ["yes", "never asked for"]
        num_asked = len(asked(scripted))
        record = await made.score(settings)
        assert len(asked(scripted)) == num_asked + 1, "only the vote that was missing"
    (row,) = made.rows(record)
    assert (row["votes_yes"], row["votes_no"], row["votes_abstained"], record.reused) == (3, 1, 0, False)


async def test_accepted_missing_judgements_are_requested_on_a_rerun(
    tmp_path: Path,
) -> None:
    rollouts = [answered(f"r{n}", "m1", text, sample_index=n) for n, text in enumerate(["seven", "eight"])]
    broken = {"eight"}
    reply = says_yes_to("seven")
    async with server(
        lambda request: Fault.status(500) if predicted(request) in broken else reply(request)
    ) as scripted:
        made = bench(tmp_path, rollouts)
        settings = judged_by({"judge": scripted.url}, {"max_error_rate": 0.5})
        gap = await made.score(settings, accept_failures=True)
        assert gap.metrics["num_judgements_missing"] == 1
        broken.clear()
        num_asked = len(asked(scripted))
        whole = await made.score(settings)
        assert (whole.reused, whole.metrics["num_judgements_missing"], len(asked(scripted))) == (
            False,
            0,
            num_asked + 1,
        )
        assert (await made.score(settings)).reused
    assert [row["judge_status"] for row in made.rows(whole)] == ["parsed", "parsed"]


async def test_judgements_paid_with_other_settings_are_not_requested_again(tmp_path: Path) -> None:
    async with server(lambda _: "hm") as scripted:
        made = bench(tmp_path, [answered("r1", "m1", "seven"), answered("r2", "m2", "y")])
        settings = judged_by({"judge": scripted.url})
        for _ in range(2):
            with pytest.raises(StageFailed, match="2 of 2 rollouts have no verdict"):
                await made.score(settings)
        assert len(asked(scripted)) == 4
        record = await made.score(judged_by({"judge": scripted.url}, {"judges": {"on_failed": "rule"}}))
        assert len(asked(scripted)) == 4
    assert [row["correct"] for row in made.rows(record)] == [False, False]


async def test_recorded_replies_are_not_requested_again_after_a_failure(tmp_path: Path) -> None:
    script: list[Item] = ["no"] * 4 + [Fault.status(500)] + ["no"] * 6
    async with server(lambda _: script.pop(0), "voter") as scripted:
        made = bench(tmp_path, [called("r1")])
        with pytest.raises(JobsPending):
            await made.score(voted_by(scripted.url, votes=10))
        record = await made.score(voted_by(scripted.url, votes=10))
        assert len(asked(scripted)) == 11
    assert made.rows(record)[0]["votes_no"] == 10


PRICED = {"prompt_price_per_million": 1_000_000.0, "completion_price_per_million": 1_000_000.0}


async def test_cost_limit_stops_the_judges_and_persists_across_attempts(tmp_path: Path) -> None:
    rollouts = [answered(f"r{n}", "m1", f"answer {n}", sample_index=n) for n in range(4)]
    async with server(lambda _: "Incorrect") as scripted:
        made = bench(tmp_path, rollouts)
        for _ in range(2):
            with pytest.raises(BudgetExceeded, match="max_cost = 1;"):
                await made.score(judged_by({"judge": scripted.url}, {"max_cost": 1.0, "max_concurrent": 1}, **PRICED))
            assert len(asked(scripted)) == 1
        record = await made.score(judged_by({"judge": scripted.url}, {"max_concurrent": 1}, **PRICED))
        assert len(asked(scripted)) == 4
    assert record.metrics["judge_parsed"] == 4


async def test_judge_without_prices_is_refused_with_a_cost_limit(tmp_path: Path) -> None:
    async with server(lambda _: "Incorrect") as scripted:
        made = bench(tmp_path, [answered("r1", "m1", "seven")])
        with pytest.raises(ConfigError, match="models.judge has no prices"):
            await made.score(judged_by({"judge": scripted.url}, {"max_cost": 1.0}))
        assert asked(scripted) == []


async def test_no_request_is_sent_before_the_tokenizer_is_available(tmp_path: Path) -> None:
    async with server(lambda _: "Incorrect") as scripted:
        made = bench(tmp_path, [answered("r1", "m1", "seven")])
        with pytest.raises(ConfigError, match=r"tokenizer\.json"):
            await made.score({**judged_by({"judge": scripted.url}), "tokenizer": str(tmp_path / "nowhere")})
        assert asked(scripted) == []


async def test_chat_only_server_is_sufficient_for_judges(tmp_path: Path) -> None:
    async with server(lambda _: "Correct", chat_only=True) as scripted:
        made = bench(tmp_path, [answered("r1", "m1", "seven")])
        record = await made.score(judged_by({"judge": scripted.url}, api="chat"))
    assert made.rows(record)[0]["correct"] is True


async def test_hosted_service_votes_with_default_vote_sampling(tmp_path: Path) -> None:
    def hosted(request: RecordedRequest) -> Item:
        unknown = {"top_k", "min_p", "repetition_penalty"} & request.body.keys()
        return Fault.status(400, f"unknown: {sorted(unknown)}") if unknown else "<answer>no</answer>"

    async with server(hosted, "voter", chat_only=True) as scripted:
        settings = voted_by(scripted.url)
        settings["redundancy"]["model"]["api"] = "chat"
        settings["redundancy"]["sampling"] = VoteSampling().model_dump()
        made = bench(tmp_path, [called("r1")])
        record = await made.score(settings)
    assert made.rows(record)[0]["votes_no"] == 3
