"""A teacher that only chats: its pools are edited through messages, and its rows have the ids of the student."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.rollouts.native_rollouts import tokenizer_of
from support.rollouts.pools_agent import RIGHT, WRONG, operators_of
from support.rollouts.pools_bench import PoolsBench
from support.servers.hosted_service import fussy, hosted
from support.servers.scripted_server import Fault, Item, RecordedRequest, Reply
from support.sweep import examples
from support.tables.pool_tables import ANSWER, SEARCH, THINK, make_rows, pool_row, result
from support.tables.score_tables import question

from treadle.agent.chat_prompts import CONTINUE_BEGUN_MESSAGE
from treadle.agent.continuation import split_beginning
from treadle.agent.dialects.base import REASONING, Segment
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.dialects.tags import TOOL_DIALECT
from treadle.agent.edit import visible_thoughts
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import JobsPending, StageFailed
from treadle.datagen.sft_rows.encoding import NO_LOSS, RowEncoder
from treadle.datagen.sft_rows.settings import SftRowsOptions
from treadle.datagen.sft_rows.student import NotGivenBack, StudentEncoder
from treadle.demo.embedded_model import embedded_tokenizer

CHAT = {role: {"model": {"api": "chat", "tokenizer": None}} for role in ("policy", "critic", "refiner", "judge")}
PARIS = "<answer>\\boxed{Paris}</answer>"
QUESTIONS = [question(f"q{number}", ["1"]) for number in range(1, 4)]


class Teacher:
    """Plays all roles over chat; a reply repeats what was begun, as chat models do."""

    def __init__(self, first: str) -> None:
        self.first = first
        self.asked: list[str] = []

    def __call__(self, request: RecordedRequest) -> Item:
        messages = request.messages or []
        content, begun = split_beginning(messages[-1]["content"])
        system = messages[0]["content"]
        if messages[0]["role"] != "system":
            return "x"
        number = len(self.asked)
        if messages[-1]["content"] == CONTINUE_BEGUN_MESSAGE:
            self.asked.append("continue")
            return f"<think>{messages[-2]['content'].rpartition('<think>')[2]} Now {number}.</think>{PARIS}"
        if "You edit the reasoning" in system:
            self.asked.append("refine")
            return f"{begun}K{number}.</think>"
        if "You look for redundancy" in system:
            self.asked.append("redundancy")
            return f"Step: 1\nAnalysis: w.\nCorrected Step: <think>Short {number}.</think>{PARIS}"
        if "You look for the first flaw" in system:
            self.asked.append("locate")
            return "Step: 1\nAnalysis: it guesses"
        if "You explain a flaw" in system:
            self.asked.append("analyse")
            return f"{begun} it guesses."
        if "You replace the last step" in system:
            self.asked.append("replace")
            return f"<think>I see {number}.</think>{PARIS}"
        if "You reflect" in system:
            self.asked.append("reflect")
            return "I guessed too early."
        self.asked.append("policy")
        return self.first.replace("I", f"I, {number},", 1)


OPERATORS = ("rerollout", "redundant_mod", "global_refine", "self_correct", "hint_step", "hint_tail", "reflect")


@pytest.mark.parametrize("refuses_keys", [False, True])
@pytest.mark.parametrize(
    ("first", "made"),
    [(RIGHT, ["rerollout", "redundant_mod", "global_refine"]), (WRONG, list(OPERATORS[3:]))],
)
async def test_chat_only_models_have_every_role_and_every_operator(
    tmp_path: Path, first: str, made: list[str], refuses_keys: bool
) -> None:
    bench, teacher = PoolsBench(tmp_path / "pools", [{}]), Teacher(first)
    sampling = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, "max_tokens": 512}
    roles = {role: {**settings, "sampling": sampling} for role, settings in CHAT.items()}
    async with hosted(fussy(teacher, []) if refuses_keys else teacher) as service:
        record = await bench.make(service.url, roles=roles, options={"rounds": 1, "operators": OPERATORS})
        assert {request.path for request in service.requests} == {"/v1/chat/completions"}
    events = bench.rows(record, "pool_events")
    assert [event["reason"] for event in events if event["outcome"] not in ("produced", "found")] == []
    rows = bench.rows(record)
    assert operators_of(rows) == ["initial", *made]
    for row in rows:
        assert TOOL_DIALECT.faults([_segment(one) for one in row["segments"]], []) == [], row["text"]
        assert row["text"].count("<think>") == 1 == row["text"].count("</think>")
        assert row["correct"] is (row["operator"] != "initial" or first == RIGHT)
    by_operator = {row["operator"]: row for row in rows}
    for operator in set(made) & {"hint_step", "hint_tail", "reflect"}:
        assert by_operator[operator]["text"].count(by_operator[operator]["edit_text"]) == 1
    if "self_correct" in made:
        assert by_operator["self_correct"]["edit_text"] == "The trouble with this step is that it guesses."


def _segment(one: dict[str, Any]) -> Segment:
    return Segment(one["kind"], one["text"], one["start"], one["end"])


async def test_reasoning_outside_the_text_is_the_thought_of_tags(tmp_path: Path) -> None:
    answer = Segment("answer", ANSWER[1], 0, 0)
    (thought, said) = visible_thoughts([Segment(REASONING, "A</think> b", 0, 0), answer], TOOL_DIALECT)
    assert (thought.kind, thought.text, said) == ("think", "<think>A b</think>", answer)
    own = Segment("think", "<think>own</think>", 0, 0)
    (both, _) = visible_thoughts([Segment(REASONING, "A", 0, 0), own, answer], TOOL_DIALECT)
    assert both.text == "<think>A\n\nown</think>", "neither is lost, and the turn has one thought"
    repeated = [Segment(REASONING, " own ", 0, 0), own, answer]
    assert visible_thoughts(repeated, TOOL_DIALECT) == [own, answer]
    late = visible_thoughts([Segment(REASONING, "A", 0, 0), answer, own], TOOL_DIALECT)
    assert [segment.text for segment in late] == ["<think>A</think>", ANSWER[1], "<think>own</think>"]


@pytest.mark.parametrize("has_own_thought", [False, True])
async def test_hidden_reasoning_reaches_pools_and_rows(tmp_path: Path, has_own_thought: bool) -> None:
    bench, asked = PoolsBench(tmp_path / "pools", [{"question_key": "q1", "answers": ["Paris"]}]), [0]

    def teacher(request: RecordedRequest) -> Item:
        asked[0] += 1
        own = f"<think>Own {asked[0]}.</think>" if has_own_thought else ""
        return Reply(f"{own}{PARIS}", reasoning=f"Hidden {asked[0]}, </think> so Paris.")

    async with hosted(teacher) as service:
        record = await bench.make(service.url, roles=CHAT, options={"rounds": 1, "operators": ["rerollout"]})
    pools = bench.rows(record)
    assert operators_of(pools) == ["initial", "rerollout"]
    for row in pools:
        assert "Hidden" in row["text"] and ("Own" in row["text"]) == has_own_thought
        assert TOOL_DIALECT.faults([_segment(one) for one in row["segments"]], []) == []
        assert {one["kind"] for one in row["segments"]} == {"think", "answer"}


async def test_native_calls_of_a_chat_teacher_make_pools(tmp_path: Path) -> None:
    bench, asked = PoolsBench(tmp_path, [{}]), [0]

    def teacher(request: RecordedRequest) -> Item:
        asked[0] += 1
        return Reply(f"Thought {asked[0]}: it is \\boxed{{Paris}}.")

    async with hosted(teacher) as service:
        options = {"rounds": 1, "operators": ["rerollout"]}
        record = await bench.make(service.url, roles=CHAT, environment={"dialect": "functions"}, options=options)
    rows = bench.rows(record)
    assert operators_of(rows) == ["initial", "rerollout"] and all(row["correct"] for row in rows)


async def test_pools_of_a_chat_teacher_pay_no_answer_twice(tmp_path: Path) -> None:
    bench, teacher = PoolsBench(tmp_path, [{}]), Teacher(WRONG)
    options = {"rounds": 1, "operators": ["self_correct", "hint_tail"]}
    answered: list[str] = []
    down = [True]

    def shaky(request: RecordedRequest) -> Item:
        system = (request.messages or [{"content": ""}])[0]["content"]
        if down[0] and "You replace the last step" in system:
            return Fault.status(500)
        if request.body.get("seed"):
            answered.append(json.dumps([request.body["seed"], request.messages]))
        return teacher(request)

    async with hosted(shaky) as service:
        with pytest.raises(JobsPending):
            await bench.make(service.url, roles=CHAT, options=options)
        down[0] = False
        record = await bench.make(service.url, roles=CHAT, options=options)
    assert operators_of(bench.rows(record)) == ["initial", "self_correct", "hint_tail"]
    assert len(answered) == len(set(answered)), "an answer that was recorded is not asked for again"


def student_rows(tmp_path: Path, pools: Sequence[dict[str, Any]], **options: Any) -> Any:
    folder = embedded_tokenizer()
    digest = ChatTokenizer.load(folder).digest
    chosen = SftRowsOptions(tokenizer=folder, **options)
    return make_rows(tmp_path, QUESTIONS, pools, chosen, tokenizer=folder, tokenizer_digest=digest)


def test_rows_of_text_have_the_ids_of_the_student(tmp_path: Path) -> None:
    parts = [THINK, SEARCH, result("found <|im_end|>"), THINK, ANSWER]
    pools = [
        pool_row("none", parts=parts, calls=[("search", "ok")]),
        pool_row("teachers", "q2", parts=parts, calls=[("search", "ok")], tokenizer_digest="another"),
    ]
    made = student_rows(tmp_path, pools)
    tokenizer = ChatTokenizer.load(embedded_tokenizer())
    text = "".join(part for _, part in parts)
    assert len(made.rows) == 2
    for row in made.rows:
        after = tokenizer.decode(row["input_ids"][row["num_prompt_tokens"] :])
        assert after == f"{text}<|im_end|>\n" and row["tokenizer_digest"] == tokenizer.digest
        learned = tokenizer.decode([token for token in row["labels"] if token != NO_LOSS])
        assert learned == text.replace(parts[2][1], "") + "<|im_end|>"
        prompt = tokenizer.decode(row["input_ids"][: row["num_prompt_tokens"]])
        assert prompt == tokenizer.render(json.loads(row["messages"])[:-1])
    assert made.metrics["text_mode_rows"] == 0


def test_rows_that_do_not_fit_the_student_are_named(tmp_path: Path) -> None:
    pools = [pool_row("a"), pool_row("b", "q2", parts=[("think", f"<think>{'word ' * 400}</think>"), ANSWER])]
    length = student_rows(tmp_path / "a", pools[:1]).rows[0]["num_tokens"]
    made = student_rows(tmp_path / "b", pools, cutoff_tokens=length + 10)
    assert [(row["rollout_key"], row["reason"]) for row in made.rejections] == [("b", "too_long")]
    assert made.rejections[0]["num_tokens"] > length + 10
    lost = pool_row("lost", "q3", parts=[("think", "<think>\U00040000</think>"), ANSWER])
    made = student_rows(tmp_path / "d", [pools[0], lost])
    assert [(row["rollout_key"], row["reason"]) for row in made.rejections] == [("lost", "not_given_back")]
    folder = embedded_tokenizer()
    with pytest.raises(StageFailed, match="over_context 1"):
        make_rows(
            tmp_path / "c", QUESTIONS, pools[:1], SftRowsOptions(tokenizer=folder), tokenizer=folder, context_tokens=9
        )


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40)
CALLS = st.lists(
    st.builds(
        lambda name, given: {"id": "", "name": name, "arguments": json.dumps(given)},
        st.sampled_from(["search", "python"]),
        st.dictionaries(st.sampled_from(["query", "code"]), TEXTS, max_size=2),
    ),
    max_size=2,
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4), TEXTS)
def test_encoded_turns_decode_to_their_text_and_labels_are_the_models(steps: list[tuple[str, str]], last: str) -> None:
    tokenizer = ChatTokenizer.load(embedded_tokenizer())
    content, spans, said = "", [], ""
    for model_text, found in steps:
        content, said = content + model_text, said + model_text
        spans.append([len(content), len(content) + len(found)])
        content += found
    messages = [{"role": "assistant", "content": content + last, "results": spans}]
    if any(tokenizer.decode(tokenizer.encode(char)) != char for char in content + last):
        # The vocabulary of SmolLM2 lacks bytes of some characters.
        with pytest.raises(NotGivenBack):
            StudentEncoder(tokenizer).turns(messages, TOOL_DIALECT)
        return
    turns = StudentEncoder(tokenizer).turns(messages, TOOL_DIALECT)
    assert tokenizer.decode(turns.ids) == content + last
    columns = RowEncoder.of(tokenizer, mask_results=True).columns([1], turns)
    learned = [token for token in columns["labels"] if token != NO_LOSS]
    assert tokenizer.decode(learned) == said + last + "<|im_end|>"


def _texts(call: dict[str, str]) -> str:
    return "".join(json.loads(call["arguments"]).values())


@settings(max_examples=examples(25), deadline=None)
@given(st.sampled_from(["qwen", "llama", "smollm2"]), CALLS, st.text("ab \n", max_size=9))
def test_native_calls_are_read_back_in_the_form_of_the_student(
    family: str, calls: list[dict[str, str]], reasoning: str
) -> None:
    tokenizer = tokenizer_of(family)
    assert tokenizer is not None
    dialect = FunctionsDialect().bound(tokenizer, is_chat=False)
    turn = {"role": "assistant", "content": "" if calls else "So.", "tool_calls": calls, "reasoning": reasoning.strip()}
    last = {"role": "assistant", "content": "It is 1."}
    assume(all(tokenizer.decode(tokenizer.encode(char)) == char for one in calls for char in _texts(one)))
    messages = [turn, {"role": "user", "content": "And x?"}, last]
    turns = StudentEncoder(tokenizer).turns(messages, dialect)
    text = tokenizer.decode(turns.ids)
    first = tokenizer.decode(turns.ids[: turns.system[0][0]]) if turns.system else text
    first = first.removesuffix(tokenizer.decode(list(tokenizer.turn_end_ids[:1])))
    assert [(one.name, one.arguments) for one in dialect.calls_of(first)] == [
        (one["name"], json.loads(one["arguments"])) for one in calls
    ]
    # The end of the first turn is learned, the message after it is not.
    assert turns.ids[turns.system[0][0] - 1] in tokenizer.eos_ids
    assert text.endswith("It is 1.") and "And x?" not in first
