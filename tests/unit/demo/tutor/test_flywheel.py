"""The tutor in every role of the flywheel: each error pattern of the noisy persona is found and repaired."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.rollouts.tutor_flywheel import Flywheel, Row, Tally, patterns, tally
from support.rollouts.tutor_rollout import STOPS

from treadle.agent.model_types import render_chatml
from treadle.agent.prompts import system_prompt
from treadle.core.chat import ChatTokenizer
from treadle.datagen.operators.replies import THINK
from treadle.datagen.pools.evolution import Evolution
from treadle.datagen.pools.settings import DEFAULT_OPERATORS
from treadle.datagen.pools.steps import numbered
from treadle.datagen.prompts import PROMPTS, PromptSet
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.tutor.completion import ReplyWriter
from treadle.demo.tutor.conversation import Conversation
from treadle.demo.tutor.roles import role_of, task_in
from treadle.demo.tutor.settings import MODEL, ErrorRates, TutorSettings

Done = Sequence[tuple[Row, Evolution]]
REPAIRS = [
    *((operator, pattern) for operator in ("self_correct", "hint_step", "hint_tail") for pattern in ("early", "wrong")),
    ("redundant_mod", "redundant"),
    ("redundant_mod", "broken"),
]
TASKS = {
    "redundancy": "redundancy",
    "refine_thoughts": "thoughts",
    "locate_flaw": "locate",
    "analyse_flaw": "analyse",
    "replace_step": "replace",
    "reflect": "reflect",
}
QUESTION = "How many people live in the island Dravo's capital?"
SEARCHED = "<think>I need the capital.</think><search>island of Dravo capital</search>"
DRAVO = f"{SEARCHED}<result>The island of Dravo covers 44 square km and its capital is Tazmero.</result>"
TAZMERO = (
    "<think>So the town.</think><search>town of Tazmero people</search>"
    "<result>The town of Tazmero has 4821 people and lies on the river Kuvlana.</result>"
)
EMPTY = "<think>I search.</think><search></search><result>invalid query: it is empty</result>"
RIGHT = "<think>It is there.</think><answer>\\boxed{4821}</answer>"
SUM = "Nuzvadu fills 39 shelves with 49 jars each, then sells 304 jars. How many jars are left?"
WRONG_SUM = "<think>I compute.</think><python>print(39 * 49 + 304)</python><result>2215</result>"
FLAWED: dict[str, tuple[str, int, tuple[str, ...], str]] = {
    "early": (QUESTION, 2, (DRAVO, "<think>I know.</think><answer>\\boxed{999}</answer>"), "Tazmero"),
    "wrong fact": (QUESTION, 3, (DRAVO, TAZMERO, "<think>So.</think><answer>\\boxed{44}</answer>"), "boxed{4821}"),
    "empty query": (QUESTION, 1, (EMPTY, DRAVO, TAZMERO, RIGHT.replace("4821", "7")), "Dravo"),
    "asked twice": (QUESTION, 2, (DRAVO, DRAVO, "<answer>\\boxed{44}</answer>"), "Tazmero"),
    "beside the point": (
        QUESTION,
        2,
        (DRAVO, "<think>x</think><search>Gredza</search><result>The firm Gredza makes soap in Y.</result>", RIGHT),
        "Tazmero",
    ),
    "wrong operation": (SUM, 1, (WRONG_SUM, "<answer>\\boxed{2215}</answer>"), "39 * 49 - 304"),
    "broken program": (
        SUM,
        1,
        ("<think>x</think><python>print(39 * 49 - 304</python><result>SyntaxError: '(' was never closed</result>",),
        "39 * 49 - 304",
    ),
    "no end": (QUESTION, 3, (DRAVO, TAZMERO, "<think>and so on"), "boxed{4821}"),
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """One round over questions whose first calls are often broken."""
    rates = ErrorRates(broken=0.3)
    folder = tmp_path_factory.mktemp("world")
    flywheel = Flywheel.make(folder, 240, rates=rates, operators=(*DEFAULT_OPERATORS, "reflect"), rounds=1)
    return asyncio.run(flywheel.evolve())


@pytest.fixture(scope="module")
def counts(done: Done) -> Tally:
    return tally(done)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer.load(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))


@pytest.fixture
def strong(tokenizer: ChatTokenizer) -> ReplyWriter:
    return ReplyWriter(TutorSettings(), tokenizer)


def ask(writer: ReplyWriter, task: str, *, prefill: str = "", stop: Sequence[str] = STOPS, **values: object) -> str:
    prompt = render_chatml(PromptSet().messages(task, values)) + prefill
    return write(writer, prompt, stop=stop)


def write(writer: ReplyWriter, prompt: str, *, seed: int = 1, stop: Sequence[str] = STOPS) -> str:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2000, "seed": seed, "stop": list(stop)}
    return writer.write({**body, "include_stop_str_in_output": True}, chat=False).text


@pytest.mark.parametrize(("operator", "pattern"), REPAIRS)
def test_every_error_pattern_is_usually_but_not_always_repaired(counts: Tally, operator: str, pattern: str) -> None:
    assert counts.applied[operator, pattern] >= 15
    assert 0.5 < counts.rate(operator, pattern) < 1


def test_reflection_repairs_and_a_rerollout_is_efficient_again(counts: Tally) -> None:
    assert counts.rate("reflect", "early") > 0.5 and counts.rate("reflect", "wrong") > 0.5
    assert counts.rate("rerollout", "redundant") > 0.25 and counts.rate("rerollout", "broken") > 0.25


def test_flaws_are_located_as_in_the_ledger(done: Done) -> None:
    found = {"early": [0, 0], "broken": [0, 0]}
    for row, evolution in done:
        for event in evolution.events:
            shown = patterns(row, event.parent)
            pool = {entry.key: entry for entry in evolution.pool}
            child = pool.get(event.rollout_key or "")
            if event.operator != "self_correct" or child is None:
                continue
            num_steps = event.parent.trajectory.text.count("<result>") + 1
            for pattern, step in (("early", num_steps), ("broken", 1)):
                if shown & {"early", "broken", "redundant"} == {pattern}:
                    found[pattern][0] += 1
                    found[pattern][1] += child.edit_step == step
    for applied, located in found.values():
        assert applied >= 3 and located / applied > 0.7


def test_noisy_critics_are_occasionally_careless(counts: Tally) -> None:
    assert counts.outcomes["redundant_mod", "no_step_number"] and counts.outcomes["locate_flaw", "no_step_number"]
    assert counts.outcomes["redundant_mod", "no_redundancy"] > counts.outcomes["redundant_mod", "no_step_number"]


def test_refined_trajectories_have_shorter_thoughts_and_the_same_actions(done: Done) -> None:
    pairs = [
        (event.parent.trajectory, entry.trajectory)
        for _, evolution in done
        for event in evolution.events
        for entry in evolution.pool
        if event.operator == "global_refine" and entry.key == event.rollout_key
    ]
    assert len(pairs) > 15
    for parent, child in pairs:
        assert [one.text for one in parent.segments if one.kind != THINK] == [
            one.text for one in child.segments if one.kind != THINK
        ]
        assert len(child.text) <= len(parent.text) and child.text != parent.text


def test_most_questions_yield_an_accepted_trajectory(counts: Tally, done: Done) -> None:
    assert counts.num_accepted >= 0.8 * len(done)


def test_same_questions_make_the_same_pools(tmp_path: Path) -> None:
    made = [asyncio.run(Flywheel.make(tmp_path / name, 12, rounds=2).evolve()) for name in ("a", "b")]
    texts = [[entry.trajectory.text for _, evolution in run for entry in evolution.pool] for run in made]
    assert texts[0] == texts[1] and len(texts[0]) > 40


@pytest.mark.parametrize("name", PROMPTS)
def test_shipped_prompts_are_recognised_by_their_system_messages(name: str) -> None:
    system = PromptSet().texts[name][0]
    assert task_in(system) == TASKS[name]
    assert role_of(MODEL, Conversation(system, "")) == "critic"


@pytest.mark.parametrize("name", ["both", "search", "python", "none"])
def test_agent_prompts_select_no_special_task(name: str) -> None:
    assert role_of(MODEL, Conversation(system_prompt(name), "")) == "policy"


def test_judge_task_is_recognised_by_its_prompt(done: Done) -> None:
    judged = [entry for _, evolution in done for entry in evolution.pool if entry.verdict.method == "model"]
    assert judged and all(raw in ("Correct", "Incorrect") for entry in judged for raw in entry.verdict.raw)


@pytest.mark.parametrize("name", FLAWED)
def test_flaw_is_named_explained_and_replaced(strong: ReplyWriter, name: str) -> None:
    question, number, texts, better = FLAWED[name]
    located = ask(strong, "locate_flaw", stop=[*STOPS, "Analysis:"], question=question, steps=numbered(texts))
    assert located == f"Step: {number}\nAnalysis:"
    kept = numbered(texts[:number])
    prefill = f"Step: {number}\nAnalysis: The trouble with this step is that"
    analysis = ask(strong, "analyse_flaw", prefill=prefill, question=question, steps=kept)
    assert re.fullmatch(r" [a-z][^\n<]+\.", analysis)
    new = ask(strong, "replace_step", question=question, steps=kept, analysis=analysis)
    assert re.fullmatch(r"(?s)<think>[^<]+</think><(search|python|answer)>[^<]+</\1>", new) and better in new


def test_redundancy_is_the_first_needless_call_or_thought_or_no(strong: ReplyWriter) -> None:
    asked = {"question": QUESTION}
    assert ask(strong, "redundancy", steps=numbered((DRAVO, TAZMERO, RIGHT)), **asked) == "Step: no"
    twice = ask(strong, "redundancy", steps=numbered((DRAVO, TAZMERO, TAZMERO, RIGHT)), **asked)
    assert re.fullmatch(r"Step: 3\nAnalysis: .+\nCorrected Step: <think>.+</think><answer>.*4821.*</answer>", twice)
    empty = ask(strong, "redundancy", steps=numbered((EMPTY, DRAVO, TAZMERO, RIGHT)), **asked)
    assert re.fullmatch(r"Step: 1\nAnalysis: .+\nCorrected Step: <think>.+</think><search>.*Dravo.*</search>", empty)
    reopen_thought = "<think>I know it. It is \\boxed{999}.\nWait, let me look. I need the capital.</think>"
    wordy = ask(strong, "redundancy",
        steps=numbered((DRAVO.replace("<think>I need the capital.</think>", reopen_thought),
                                                      TAZMERO, RIGHT)), **asked)  # fmt: skip
    assert wordy.endswith("Corrected Step: <think>I need the capital.</think><search>island of Dravo capital</search>")


def test_open_thought_of_a_trajectory_is_shortened(strong: ReplyWriter) -> None:
    parent = f"{DRAVO}<think>Hmm, let me see. First I look up the population of Tazmero.</think><search>x</search>"
    written = f"{DRAVO.replace('I need the capital.', 'The capital.')}<think>"
    stop = ["</think>"]
    lean = ask(strong, "refine_thoughts", prefill=written, stop=stop, question=QUESTION, trajectory=parent)
    assert lean == "Find the population of Tazmero.</think>"


def test_reflection_is_one_plain_paragraph_about_the_flaw(strong: ReplyWriter) -> None:
    turn = f"{DRAVO}<think>I know.</think><answer>\\boxed{{999}}</answer>"
    said = ask(strong, "reflect", prefill="Let me check.", question=QUESTION, trajectory=turn)
    assert said.startswith(" My step 2 has a flaw.") and "Tazmero" in said and not re.search(r"[<>\n]", said)


@pytest.mark.parametrize(
    ("question", "turn", "expected"),
    [
        (QUESTION, f"{DRAVO}<think>I know. It is \\boxed{{999}}.\nWait, I search.", "<search>.*Tazmero"),
        (QUESTION, f"{EMPTY}<think>Hold on, I search once more.", "<search>.*Dravo"),
        (SUM, f"{WRONG_SUM}<think>Hmm, that looks doubtful; I check with Python.", "<python>.*39 \\* 49 - 304"),
        (SUM, f"{WRONG_SUM}<think>It is \\boxed{{2215}}.\nWait, let me verify.", "<python>.*39 \\* 49 - 304"),
        (QUESTION, f"{DRAVO}{TAZMERO}<think>It is \\boxed{{44}}.\nWait, I am not sure.", "<answer>.*4821"),
    ],
)
def test_hint_usually_makes_the_noisy_policy_think_again(
    tokenizer: ChatTokenizer, question: str, turn: str, expected: str
) -> None:
    noisy = ReplyWriter(TutorSettings(persona="noisy"), tokenizer)
    messages = [{"role": "system", "content": system_prompt("both")}, {"role": "user", "content": question}]
    replies = [write(noisy, render_chatml(messages) + turn, seed=seed) for seed in range(100)]
    assert all(reply.startswith(" ") and "<think>" not in reply for reply in replies)
    heeded = sum(bool(re.search(expected, reply, re.DOTALL)) for reply in replies)
    assert 60 <= heeded <= 97 or "<search></search>" in turn and heeded > 85
    former = re.search(r"boxed\{(\d+)\}", turn)
    stayed = sum(f"boxed{{{former[1]}}}" in reply for reply in replies) if former else 0
    assert stayed >= 10 if former else stayed == 0


def test_stubbornness_determines_how_many_hints_are_followed(tokenizer: ChatTokenizer) -> None:
    prompt = render_chatml([{"role": "user", "content": QUESTION}]) + f"{DRAVO}<think>So \\boxed{{9}}.\nWait, I search."
    for rate, low, high in ((0.0, 85, 100), (0.8, 5, 35)):
        writer = ReplyWriter(TutorSettings(persona="noisy", rates=ErrorRates(stubborn=rate)), tokenizer)
        heeded = sum("<search>" in write(writer, prompt, seed=seed) for seed in range(100))
        assert low <= heeded <= high
