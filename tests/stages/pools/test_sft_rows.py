"""The stage `sft_rows` on real artifacts, with rollouts of the engine where token ids matter."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.qwen_tokenizer import qwen_tokenizer
from support.tables.pool_tables import (
    ANSWER,
    ENVIRONMENT,
    PYTHON,
    SEARCH,
    THINK,
    make_rows,
    pool_row,
    result,
    with_calls,
)
from support.tables.score_tables import question
from support.tables.sft_tables import contents
from tokenizers import Tokenizer

from treadle.agent.call_cache import NullCache
from treadle.agent.contract import Task
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.model_types import RolloutLimits
from treadle.agent.rollout import RolloutEngine
from treadle.agent.tools.outcome import CallContext, Tool, ToolOutcome
from treadle.agent.trajectory import Trajectory
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ArtifactError, ConfigError, StageFailed
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.datagen.sft_rows import selection as sft_selection
from treadle.datagen.sft_rows import stage as sft_rows
from treadle.datagen.sft_rows.settings import SftRowsOptions
from treadle.environments.question.episode import QuestionEpisode
from treadle.environments.question.settings import QuestionSettings
from treadle.environments.rollouts.rows import row_of
from treadle.rl.engine.rows import prompt_ids

QUESTIONS = [question(f"q{number}", ["1"]) for number in range(1, 6)]


def test_every_trajectory_is_a_row_or_a_rejection_with_its_reasons(tmp_path: Path) -> None:
    pools = [
        pool_row("a1", parts=[("think", "<think>h m</think>"), ANSWER]),
        pool_row(
            "a2", parts=[("think", "<think>h \n m</think>"), ANSWER], parents=["a1"], round=1, operator="hint_tail"
        ),
        pool_row("b1", "q2", correct=False, status="max_turns", parts=[THINK]),
        pool_row("b2", "q2", correct=None, operator="reflect", round=1, parents=["b1"]),
        pool_row("b3", "q2", operator="hint_tail", round=1, parents=["b1"], **with_calls(2)),
        pool_row("c1", "q3", **with_calls(1, status="error")),
    ]
    made = make_rows(tmp_path, QUESTIONS, pools)
    assert sorted(row["rollout_key"] for row in made.rows) == ["a1", "b3"]
    reasons = {row["rollout_key"]: (row["reason"], row["reasons"]) for row in made.rejections}
    assert reasons == {
        "b1": ("unfinished", ["unfinished", "wrong_answer", "bad_end", "answer_count"]),
        "b2": ("unknown_verdict", ["unknown_verdict"]),
        "c1": ("result_error", ["result_error"]),
        "a2": ("duplicate", ["duplicate"]),
    }
    counts = made.metrics
    assert (counts["trajectories"], counts["accepted"], counts["rows"], counts["left_out.duplicate"]) == (6, 3, 2, 1)
    assert (counts["reason.unfinished"], counts["rule.wrong_answer"], "reason.wrong_answer" in counts) == (1, 1, False)
    assert (counts["accepted.initial"], counts["accepted.hint_tail"], counts["accepted.reflect"]) == (1, 2, 0)
    assert (counts["corrected.hint_tail"], "corrected.initial" in counts) == (1, False)
    assert {name: count for name, count in counts.items() if name.startswith("calls.")} == {
        "calls.initial.0": 2, "calls.initial.1": 1, "calls.rows.0": 1, "calls.rows.2": 1,
    }  # fmt: skip
    assert "| hint_tail | 2 | 2 | 1 | 1 | 0.00 | 1.00 |" in " ".join(made.report.split())
    assert "| unfinished | 1 | 1 | the rollout did not end with its task, or was truncated |" in " ".join(
        made.report.split()
    )


@pytest.mark.covers("flywheel-28")
def test_each_fault_has_its_rejection_code_and_text_about_errors_is_kept(tmp_path: Path) -> None:
    call = {"calls": [("search", "ok")]}
    pools = [
        pool_row("kept", parts=[THINK, SEARCH, result("an error: Execution Timeout"), THINK, ANSWER], **call),
        pool_row("wrong_answer", correct=False),
        pool_row("think_unbalanced", parts=[("think", "<think>hm"), ANSWER]),
        pool_row("boxed_count", parts=[THINK, ("answer", r"<answer>\boxed{1} \boxed{2}</answer>")]),
        pool_row("call_without_result", parts=[THINK, SEARCH, THINK, ANSWER], **call),
        pool_row("result_empty", parts=[THINK, SEARCH, result(""), THINK, ANSWER], **call),
        pool_row("result_timeout", **with_calls(1, PYTHON, "timeout")),
        pool_row("unfinished", status="context_full"),
    ]
    made = make_rows(tmp_path, QUESTIONS, pools)
    assert [row["rollout_key"] for row in made.rows] == ["kept"]
    assert {row["rollout_key"]: row["reason"] for row in made.rejections} == {
        row["rollout_key"]: row["rollout_key"] for row in pools[1:]
    }


def test_stage_without_accepted_rows_fails_and_names_the_reasons(tmp_path: Path) -> None:
    pools = [pool_row("a", correct=False), pool_row("b", correct=False), pool_row("c", status="limit")]
    with pytest.raises(StageFailed, match=r"none of the 3 .*: wrong_answer 2, unfinished 1"):
        make_rows(tmp_path, QUESTIONS, pools)


def test_filters_choose_among_right_trajectories(tmp_path: Path) -> None:
    pools = [pool_row("kept", "q1", **with_calls(2)), pool_row("simple", "q2", **with_calls(1))]
    ledger = [{"tool": "search", "argument": f"x{n}", "status": "ok", "turn": n, "result_chars": 1} for n in range(2)]
    pools[0] |= {"tool_calls": json.dumps(ledger)}
    pools.append(pool_row("repeated", "q3", **with_calls(2)))
    options = SftRowsOptions.model_validate({"filters": {"min_searches": 2, "drop_repeated_calls": True}})
    made = make_rows(tmp_path, QUESTIONS, pools, options)
    assert [row["rollout_key"] for row in made.rows] == ["kept"]
    assert {row["rollout_key"]: row["reason"] for row in made.rejections} == {
        "simple": "too_few_searches",
        "repeated": "repeated_call",
    }


def test_other_environment_or_unknown_question_fails_the_stage(tmp_path: Path) -> None:
    other = QuestionSettings(max_total_calls=3)
    with pytest.raises(StageFailed, match="made in environment .*another prompt, other tools or limits"):
        make_rows(tmp_path / "a", QUESTIONS, [pool_row("a", environment_digest=other.digest())])
    with pytest.raises(ArtifactError, match="q9"):
        make_rows(tmp_path / "b", QUESTIONS, [pool_row("a", "q9")])


def test_pools_of_an_earlier_environment_version_fail_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("treadle.environments.settings.ENVIRONMENT_VERSION", 2)
        earlier = ENVIRONMENT.digest()
    with pytest.raises(StageFailed, match="another prompt, other tools or limits"):
        make_rows(tmp_path, QUESTIONS, [pool_row("a", environment_digest=earlier)])


def test_rows_without_ids_are_written_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = make_rows(tmp_path, QUESTIONS, [pool_row("a"), pool_row("b", "q2")])
    assert all(row["input_ids"] == row["labels"] == [] and row["num_tokens"] == 0 for row in made.rows)
    assert all(contents(row)[1] == ("user", f"question {row['question_key']}?") for row in made.rows)
    assert made.metrics["text_mode_rows"] == 2
    assert len([one for one in caplog.records if "2 of 2 rows have no token ids" in one.getMessage()]) == 1


def test_same_inputs_give_the_same_bytes_regardless_of_file_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = [
        pool_row(f"r{index}", f"q{1 + index % 5}", [("think", f"<think>{index}</think>"), ANSWER])
        for index in range(60)
    ]
    options = SftRowsOptions(max_per_question=9, max_rows=40)
    first = make_rows(tmp_path / "a", QUESTIONS, pools, options)
    monkeypatch.setattr(sft_rows, "_ROWS_PER_BUCKET", 3)
    monkeypatch.setattr(sft_selection, "_LINES_PER_BUCKET", 4)
    assert make_rows(tmp_path / "b", QUESTIONS, pools, options).digest == first.digest
    other = make_rows(tmp_path / "c", QUESTIONS, pools, options, seed=1)
    assert [row["rollout_key"] for row in other.rows] != [row["rollout_key"] for row in first.rows]
    keys = [row["rollout_key"] for row in first.rows]
    assert len(keys) == 40
    assert keys != sorted(keys)
    assert max(Counter(row["question_key"] for row in first.rows).values()) <= 9
    left_out = Counter(row["reason"] for row in first.rejections)
    assert left_out == {"over_question_limit": 60 - 45, "over_row_limit": 5}


def test_repair_is_off_by_default(tmp_path: Path) -> None:
    pools = [
        pool_row("whole"),
        pool_row("mended", parts=[("text", "So it is one. "), ANSWER]),
        pool_row("hopeless", parts=[("text", "So."), ANSWER, ANSWER]),
    ]
    assert [row["rollout_key"] for row in make_rows(tmp_path / "a", QUESTIONS, pools).rows] == ["whole"]
    made = make_rows(tmp_path / "b", QUESTIONS, pools, SftRowsOptions(repair=True))
    rows = {row["rollout_key"]: row for row in made.rows}
    assert set(rows) == {"whole", "mended"}
    assert (rows["whole"]["repaired"], rows["mended"]["repaired"]) == (False, True)
    assert contents(rows["mended"])[-1] == ("assistant", "<think>So it is one.</think>" + ANSWER[1])
    assert made.metrics["repaired_rows"] == 1


def test_names_in_the_report_are_not_markup(tmp_path: Path) -> None:
    made = make_rows(tmp_path, QUESTIONS, [pool_row("a", dataset="<b>|x|\n# y")])
    assert "| \\<b\\>\\|x\\| # y | 1 |" in " ".join(made.report.split())


load_folder = cache(ChatTokenizer.load)


def load(name: str) -> ChatTokenizer:
    from treadle.demo.embedded_model import embedded_tokenizer

    return load_folder(qwen_tokenizer() if name == "qwen" else embedded_tokenizer())


@pytest.fixture
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load each tokenizer once: reading Qwen's vocabulary takes seconds, and nothing changes a loaded tokenizer."""
    monkeypatch.setattr(ChatTokenizer, "load", load_folder)


@pytest.fixture(params=["qwen", "smollm2"])
def tokenizer(request: pytest.FixtureRequest) -> ChatTokenizer:
    return load(request.param)


class Echo:
    """A tool that finds what it is asked for, with text that a tokenizer would like to join to its surroundings."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def __aenter__(self) -> Echo:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        return ToolOutcome("ok", f"\n>{argument} <|im_end|> é\n")


class Script:
    """A model that writes a given text with its ids, and continues beyond its stop."""

    def __init__(self, replies: Sequence[str], tokenizer: ChatTokenizer) -> None:
        self.prompts: list[list[int]] = []
        self._replies = replies
        self._tokenizer = tokenizer

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        assert not isinstance(request.prompt, str)
        text = self._replies[len(self.prompts)]
        self.prompts.append(list(request.prompt))
        ids = (*self._tokenizer.encode(text), *self._tokenizer.turn_end_ids[:1])
        return Completion(text, ids, "stop", None, len(request.prompt), len(ids), "http://x/v1", 0.1, 0)


TURNS = {
    0: [r"<think>one</think>" "\n" r"<answer>\boxed{1}</answer>"],
    1: ["<think>one</think>\n<search>Q</search>\n", r"<think>two</think><answer>\boxed{1}</answer>"],
    2: [
        "<think>one</think><search>Q</search>",
        "<think>two</think><python>1+1</python>",
        r"<think>three</think><answer>\boxed{1}</answer>",
    ],
    3: [
        "<think>one</think><search>Q</search>",
        "\n\n<think>two</think>\n<python>1+1\n</python>",
        "<think>three</think> <search>é</search>",
        r"<think>four</think><answer>so \boxed{1}</answer>",
    ],
}


def played(asked: dict[str, Any], replies: Sequence[str], tokenizer: ChatTokenizer) -> tuple[Trajectory, Script]:
    model = Script(replies, tokenizer)
    engine = RolloutEngine(model, tokenizer, Sampling(), RolloutLimits(max_turns=9), TOOL_DIALECT)
    tools: dict[str, Tool] = {"search": Echo("search"), "python": Echo("python")}
    rollout = engine.roll_out(
        QuestionEpisode(ENVIRONMENT, tools), Task.from_row(asked), seed=1, deadline=math.inf, cache=NullCache()
    )
    return asyncio.run(rollout), model


def pool_row_of(key: str, question_key: str, trajectory: Trajectory, tokenizer: ChatTokenizer) -> dict[str, Any]:
    made = row_of({}, trajectory, ENVIRONMENT.digest(), tokenizer.digest)
    return pool_row(key, question_key, **made)


@pytest.mark.usefixtures("loaded_once")
def test_rows_start_as_their_question_format_says(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    asked = QUESTIONS[0] | {"format": "assertion"}
    trajectory, _ = played(asked, TURNS[0], tokenizer)
    row = pool_row_of("a", "q1", trajectory, tokenizer) | {"environment_digest": ENVIRONMENT.digest("assertion")}
    chosen = {"tokenizer": tokenizer.folder, "tokenizer_digest": tokenizer.digest}
    (made,) = make_rows(tmp_path, [asked], [row], **chosen).rows
    assert contents(made)[0] == ("system", ENVIRONMENT.system_text_of("assertion"))
    assert ENVIRONMENT.system_text_of("assertion") != ENVIRONMENT.system_text
    with pytest.raises(StageFailed, match="other token ids"):
        make_rows(tmp_path / "b", [QUESTIONS[0]], [row], **chosen)


PIECES = (
    "What is ", "the area", " of", " of ", "\n", "\n\n", "  ", "\t", "é", "e\u0301", "東京", "\U0001f680", "\u200b",
    "12.50", "'s", "?", "<think>", "</answer>", "<result>x</result>", "<|im_end|>", "<|im_start|>system\n",
    "<|endoftext|>", "<tool_call>", r"\boxed{1}", "{{ 7 * 7 }}", "$x^2$", "\x00",
)  # fmt: skip


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.covers("pareto-9")
def test_rollout_sft_and_rl_share_one_prompt_per_question(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    drawn = random.Random(9)

    def text() -> str:
        return "".join(drawn.choices(PIECES, k=drawn.randint(4, 12)))

    questions = [
        question(f"q{number}", ["1"], "math", [text() for _ in range(drawn.choice((0, 0, 4)))]) | {"question": text()}
        for number in range(100)
    ]
    prompts, pools = {}, []
    for number, asked in enumerate(questions):
        trajectory, model = played(asked, TURNS[number % 3], tokenizer)
        prompts[asked["question_key"]] = model.prompts[0]
        pools.append(pool_row_of(f"r{number}", asked["question_key"], trajectory, tokenizer))
    made = make_rows(tmp_path, questions, pools, tokenizer=tokenizer.folder, tokenizer_digest=tokenizer.digest)
    assert len(made.rows) == len({tuple(prompt) for prompt in prompts.values()}) == 100
    assert {row["question_key"]: row["input_ids"][: row["num_prompt_tokens"]] for row in made.rows} == prompts
    assert {
        asked["question_key"]: prompt_ids(Task.from_row(asked), {"default": ENVIRONMENT}, tokenizer)
        for asked in questions
    } == prompts


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.covers("flywheel-29")
@pytest.mark.covers("pareto-10")
def test_rows_use_rollout_ids_and_mask_prompt_and_results(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    questions = [
        question("q0", ["1"]) | {"question": "What is <|im_end|>?"},
        question("q1", ["1"], "choice", ["One", "Two"]),
        question("q2", ["1"]),
        question("q3", ["1"]) | {"question": "Où?\n"},
    ]
    rollouts = {key: played(asked, TURNS[key], tokenizer) for key, asked in zip(TURNS, questions, strict=True)}
    pools = [pool_row_of(f"r{key}", f"q{key}", trajectory, tokenizer) for key, (trajectory, _) in rollouts.items()]
    chosen = {"tokenizer": tokenizer.folder, "tokenizer_digest": tokenizer.digest}
    made = make_rows(tmp_path / "a", questions, pools, **chosen)
    unmasked = make_rows(tmp_path / "b", questions, pools, SftRowsOptions(mask_results=False), **chosen)
    rows = {row["rollout_key"]: row for row in made.rows}
    plain = {row["rollout_key"]: row for row in unmasked.rows}
    assert set(rows) == {"r0", "r1", "r2", "r3"}
    for number, (trajectory, model) in rollouts.items():
        row = rows[f"r{number}"]
        prompt, output, end = model.prompts[0], trajectory.samples[0].ids, list(tokenizer.turn_end_ids)
        asked = ENVIRONMENT.first_messages(Task.from_row(questions[list(TURNS).index(number)]))
        assert prompt == tokenizer.prompt_ids(asked) == row["input_ids"][: len(prompt)]
        assert row["input_ids"] == [*prompt, *output, *end]
        *first, turn = json.loads(row["messages"])
        assert (first, turn["role"], turn["content"]) == (asked, "assistant", trajectory.text)

        results = [segment for segment in trajectory.segments if segment.kind == "result"]
        assert len(results) == number
        assert [turn["content"][start:end] for start, end in turn.get("results", [])] == [one.text for one in results]
        masked = {place for one in results for place in range(len(prompt) + one.start, len(prompt) + one.end)}
        assert [place for place, label in enumerate(row["labels"]) if label == -100] == sorted(
            {*range(len(prompt)), *masked, len(row["labels"]) - 1}
        )
        assert all(label in (-100, token) for label, token in zip(row["labels"], row["input_ids"], strict=True))
        assert row["labels"][-2] in tokenizer.eos_ids
        texts = [tokenizer.decode([token for _, token in run]) for run in targets(row)]
        assert "".join(texts) == "".join(one.text for one in trajectory.segments if one.kind != "result") + (
            tokenizer.decode(end[:1])
        )
        assert plain[f"r{number}"]["labels"] == [-100] * len(prompt) + output + [end[0], -100]
        counts = [row[f"num_{part}_tokens"] for part in ("prompt", "result", "message", "target")]
        assert counts == [len(prompt), len(masked), 1, row["num_tokens"] - len(prompt) - len(masked) - 1]
        assert row["num_tokens"] == len(row["input_ids"])
    assert made.metrics["tokens"] == sum(row["num_tokens"] for row in made.rows)
    assert made.metrics["target_tokens"] == sum(row["num_target_tokens"] for row in made.rows)
    assert made.metrics["text_mode_rows"] == 0


def targets(row: dict[str, Any]) -> list[list[tuple[bool, int]]]:
    """Return the runs of tokens that are targets."""
    pairs = [(label != -100, token) for label, token in zip(row["labels"], row["input_ids"], strict=True)]
    return [list(run) for is_target, run in itertools.groupby(pairs, lambda pair: pair[0]) if is_target]


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.covers("flywheel-29")
@pytest.mark.parametrize("number", [0, 1, 3])
def test_row_equals_the_conversation_rendered_by_the_model_template(
    tmp_path: Path, tokenizer: ChatTokenizer, number: int
) -> None:
    asked = question("q1", ["1"], "choice", ["One", "Two"])
    trajectory, _ = played(asked, TURNS[number], tokenizer)
    pools = [pool_row_of("r", "q1", trajectory, tokenizer)]
    (row,) = make_rows(tmp_path, [asked], pools, tokenizer=tokenizer.folder).rows
    rendered = tokenizer.render(json.loads(row["messages"]), open_turn=False)
    assert tokenizer.decode(row["input_ids"]) == rendered
    if number == 0:
        reference = Tokenizer.from_file(str(tokenizer.folder / "tokenizer.json"))
        assert row["input_ids"] == reference.encode(rendered, add_special_tokens=False).ids


@pytest.mark.usefixtures("loaded_once")
def test_row_over_the_length_limit_is_rejected_not_truncated(tmp_path: Path) -> None:
    tokenizer = load("smollm2")
    long, _ = played(QUESTIONS[0], TURNS[3], tokenizer)
    short, _ = played(QUESTIONS[1], TURNS[0], tokenizer)
    pools = [pool_row_of("long", "q1", long, tokenizer), pool_row_of("short", "q2", short, tokenizer)]
    length = len(long.samples[0].prompt_ids) + len(long.samples[0].ids) + len(tokenizer.turn_end_ids)
    whole = make_rows(
        tmp_path / "a", QUESTIONS, pools, SftRowsOptions(cutoff_tokens=length), tokenizer=tokenizer.folder
    )
    assert {row["rollout_key"]: row["num_tokens"] for row in whole.rows}["long"] == length
    cut = make_rows(
        tmp_path / "b", QUESTIONS, pools, SftRowsOptions(cutoff_tokens=length - 1), tokenizer=tokenizer.folder
    )
    assert [row["rollout_key"] for row in cut.rows] == ["short"]
    assert [(row["reason"], row["num_tokens"]) for row in cut.rejections] == [("too_long", length)]


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.covers("pareto-11")
def test_rows_that_fail_the_gate_are_absent_and_counted_by_reason(tmp_path: Path) -> None:
    tokenizer = load("smollm2")
    long, _ = played(QUESTIONS[0], TURNS[3], tokenizer)
    short, _ = played(QUESTIONS[1], TURNS[0], tokenizer)
    pools = [
        pool_row_of("kept", "q2", short, tokenizer),
        pool_row_of("wrong_answer", "q2", short, tokenizer) | {"correct": False},
        pool_row("boxed_count", parts=[THINK, ("answer", "<answer>1</answer>")]),
        pool_row("boxed_count-2", parts=[THINK, ("answer", r"<answer>\boxed{1} \boxed{2}</answer>")]),
        pool_row("bad_end", parts=[THINK, ANSWER, ("text", "Done.")]),
        pool_row("result_empty", parts=[THINK, SEARCH, result(" \n"), THINK, ANSWER], calls=[("search", "ok")]),
        pool_row_of("too_long", "q1", long, tokenizer),
    ]
    made = make_rows(tmp_path, QUESTIONS, pools, SftRowsOptions(cutoff_tokens=400), tokenizer=tokenizer.folder)
    assert [row["rollout_key"] for row in made.rows] == ["kept"]
    reasons = {row["rollout_key"]: row["reason"] for row in made.rejections}
    assert reasons == {row["rollout_key"]: row["rollout_key"].partition("-")[0] for row in pools[1:]}
    counted = {name: count for name, count in made.metrics.items() if name.startswith("reason.")}
    assert counted == {f"reason.{name}": count for name, count in Counter(reasons.values()).items()}
    assert sum(counted.values()) == len(pools) - 1 == 6


@pytest.mark.usefixtures("loaded_once")
def test_other_tokenizer_or_prompt_fails_the_stage(tmp_path: Path) -> None:
    tokenizer, other = load("qwen"), load("smollm2")
    trajectory, _ = played(QUESTIONS[0], TURNS[0], tokenizer)
    pools = [pool_row_of("r", "q1", trajectory, tokenizer)]
    with pytest.raises(ConfigError, match="no tokenizer"):
        make_rows(tmp_path / "a", QUESTIONS, pools)
    with pytest.raises(StageFailed, match="made with tokenizer"):
        make_rows(tmp_path / "b", QUESTIONS, pools, tokenizer=other.folder)
    with pytest.raises(ConfigError, match="not the one that this run was made with"):
        make_rows(tmp_path / "c", QUESTIONS, pools, tokenizer=tokenizer.folder, tokenizer_digest=other.digest)
    changed = [QUESTIONS[0] | {"question": "Another question?"}]
    with pytest.raises(
        StageFailed, match=r"the prompt of trajectory r has other token ids than that of its question q1"
    ):
        make_rows(tmp_path / "d", changed, pools, tokenizer=tokenizer.folder)


@pytest.mark.usefixtures("loaded_once")
def test_repaired_row_has_the_ids_of_its_own_text(tmp_path: Path, tokenizer: ChatTokenizer) -> None:
    replies = ["<think>one<search>Q</search>", r"<think>two</think><answer>\boxed{1}</answer>"]
    trajectory, _ = played(QUESTIONS[0], replies, tokenizer)
    pools = [pool_row_of("r", "q1", trajectory, tokenizer)]
    made = make_rows(tmp_path, QUESTIONS, pools, SftRowsOptions(repair=True), tokenizer=tokenizer.folder)
    (row,) = made.rows
    assert row["repaired"]
    said = contents(row)[-1][1]
    assert said == trajectory.text.replace("one", "one</think>")
    output = row["input_ids"][row["num_prompt_tokens"] : -len(tokenizer.turn_end_ids)]
    assert tokenizer.decode(output) == said
    call = next(segment for segment in trajectory.segments if segment.kind == "result")
    assert output[-(len(trajectory.samples[0].ids) - call.start) :] == trajectory.samples[0].ids[call.start :]


def test_template_without_end_of_turn_gets_the_model_default(tmp_path: Path) -> None:
    tokenizer = load("smollm2")
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tokenizer.folder / name).read_bytes())
    template = folder / "chat_template.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    assert ChatTokenizer.load(folder).turn_end_ids == (*tokenizer.encode("\n"), 2)
    template.write_text("{% for m in messages %}{{ m.role }}\n{% endfor %}")
    with pytest.raises(ConfigError, match="does not render an assistant's turn"):
        _ = ChatTokenizer.load(folder).turn_end_ids


def test_selection_finds_its_trajectories_across_batches(tmp_path: Path) -> None:
    pools = [
        pool_row(f"r{index}", "q1", [("think", f"<think>{index}</think>"), ANSWER], correct=index % 3 > 0)
        for index in range(1100)
    ]
    made = make_rows(tmp_path, QUESTIONS, pools)
    expected = {f"r{index}": f"<think>{index}</think>{ANSWER[1]}" for index in range(1100) if index % 3}
    assert {row["rollout_key"]: contents(row)[-1][1] for row in made.rows} == expected
    assert len(made.rejections) == 1100 - len(expected)
