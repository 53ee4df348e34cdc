"""The tutor in dialogues about programs: an agent that asks, one that guesses, and the human who knows the details."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from treadle.core.chat import ChatTokenizer
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.programs.families import FAMILIES, Details, read_program
from treadle.demo.programs.tasks import make_tasks
from treadle.demo.tutor.completion import ReplyWriter
from treadle.demo.tutor.dialogue import ANSWER_MARKER, UNKNOWN, human_reply, reply_to
from treadle.demo.tutor.settings import MODEL, ErrorRates, TutorSettings
from treadle.environments.colbench.dialect import FINAL
from treadle.environments.colbench.human import Said, human_messages
from treadle.environments.colbench.prompts import instructions

Message = tuple[str, str]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    return ChatTokenizer.load(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))


@pytest.fixture(scope="module")
def writer(tokenizer: ChatTokenizer) -> ReplyWriter:
    return ReplyWriter(TutorSettings(), tokenizer)


def agent_turn(
    writer: ReplyWriter, messages: Sequence[Message], *, model: str = MODEL, seed: int = 0, chat: bool = False
) -> str:
    """Return the agent's next turn after the messages of a dialogue."""
    turns = [("system", instructions("agent")), *messages]
    if chat:
        body: dict[str, Any] = {"messages": [{"role": role, "content": text} for role, text in turns]}
    else:
        text = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
        body = {"prompt": f"{text}<|im_start|>assistant\n"}
    return writer.write({**body, "model": model, "max_tokens": 1000, "seed": seed}, chat=chat).text


def human_turn(writer: ReplyWriter, task: dict[str, Any], messages: Sequence[Message], model: str) -> str:
    """Return the human's reply to the messages of a dialogue, asked as the environment asks."""
    speakers = {"user": "human", "assistant": "agent"}
    said = [Said(speakers[role], text) for role, text in messages]
    asked = human_messages(instructions("human"), task["problem_description"], task["ground_truth"], said)
    return writer.write({"messages": asked, "model": model, "max_tokens": 200}, chat=True).text


def dialogue(
    writer: ReplyWriter,
    task: dict[str, Any],
    *,
    model: str = MODEL,
    human: str = f"{MODEL}-human",
    seed: int = 0,
    chat: bool = False,
) -> list[str]:
    """Return the texts of a whole dialogue after the request."""
    messages: list[Message] = [("user", task["problem_description"])]
    while len(messages) < 20:
        messages.append(("assistant", agent_turn(writer, messages, model=model, seed=seed, chat=chat)))
        if ANSWER_MARKER in messages[-1][1]:
            break
        messages.append(("user", human_turn(writer, task, messages, human)))
    return [text for _, text in messages[1:]]


@pytest.mark.parametrize("chat", [False, True], ids=["ids", "chat"])
@pytest.mark.parametrize("human", [MODEL, f"{MODEL}-human"], ids=["by prompt", "by name"])
def test_asker_finds_out_both_details_and_writes_the_reference(writer: ReplyWriter, chat: bool, human: str) -> None:
    for task in make_tasks("train", 60, 1):
        said = dialogue(writer, task, human=human, chat=chat)
        assert len(said) == 5 and said[-1] == f"{ANSWER_MARKER}\n{task['ground_truth']}"
        assert [text.endswith("?") for text in said] == [True, False, True, False, False]


def test_guesser_answers_at_once_and_is_wrong(writer: ReplyWriter) -> None:
    tasks = list(make_tasks("train", 100, 1))
    said = [dialogue(writer, task, model=f"{MODEL}-guesser") for task in tasks]
    assert all(len(texts) == 1 for texts in said)
    programs = [read_program(texts[0]) for texts in said]
    assert None not in programs and len({one.number for one in programs if one}) > 30
    right = sum(task["ground_truth"] in texts[0] for task, texts in zip(tasks, said, strict=True))
    assert right <= 2


def test_noisy_asker_guesses_the_option_at_its_rate_and_by_chance(tokenizer: ChatTokenizer) -> None:
    settings = TutorSettings(persona="noisy", rates=ErrorRates(guess=0.7))
    writer = ReplyWriter(settings, tokenizer)
    tasks = list(make_tasks("train", 300, 1))
    said = [dialogue(writer, task, model=MODEL, seed=number) for number, task in enumerate(tasks)]
    guessed = [(task, texts) for task, texts in zip(tasks, said, strict=True) if len(texts) == 3]
    asked = [(task, texts) for task, texts in zip(tasks, said, strict=True) if len(texts) == 5]
    assert len(guessed) + len(asked) == 300 and abs(len(guessed) / 300 - 0.7) < 0.08
    assert all(texts[-1].endswith(task["ground_truth"]) for task, texts in asked)
    lucky = sum(texts[-1].endswith(task["ground_truth"]) for task, texts in guessed)
    assert abs(lucky / len(guessed) - 1 / 3) < 0.1, "a guess of one in three"
    for task, texts in guessed:
        wanted, written = read_program(task["ground_truth"]), read_program(texts[-1])
        assert wanted and written and wanted.number == written.number


def test_human_tells_only_what_is_asked_for() -> None:
    details = Details(FAMILIES["score"], "boats", 47, "min")
    assert reply_to("What is the bonus?", details) == "The bonus is 47."
    assert reply_to("Is it max, min or sum?", details) == "It is min."
    assert reply_to("Which bonus do you add, and is it the min?", details) == "The bonus is 47. It is min."
    for question in ("What is the factor?", "What is it for?", "", "Summarise the bonuses", "def f(): return 3"):
        assert reply_to(question, details) == UNKNOWN


def test_human_replies_to_the_last_message_of_the_agent() -> None:
    details = Details(FAMILIES["check"], "boats", 31, "all")
    prompt = (
        f"Hidden code:\n{details.program}\n\nhuman:I need it.\n\nagent:What is the limit?\n\nhuman:The limit is 31."
    )
    assert human_reply(f"{prompt}\n\nagent:Is it any, all or sum?\n\nhuman:") == "It is all."
    assert human_reply(f"{prompt}\n\nagent: Hello!") == UNKNOWN
    assert human_reply("agent: What is the limit?") == UNKNOWN, "nothing is known without the code"


def test_asker_gives_up_on_a_human_who_does_not_tell(writer: ReplyWriter) -> None:
    task = next(make_tasks("train", 1, 1))
    messages: list[Message] = [("user", task["problem_description"])]
    asked = []
    while len(asked) < 10 and not (asked and ANSWER_MARKER in asked[-1]):
        asked.append(agent_turn(writer, messages))
        messages += [("assistant", asked[-1]), ("user", UNKNOWN)]
    assert len(asked) == 5 and asked[0] == asked[1] != asked[2] == asked[3]
    assert read_program(asked[-1]) is not None


def test_asker_believes_what_the_human_says_last(writer: ReplyWriter) -> None:
    task = next(make_tasks("train", 1, 1))
    assert task["ground_truth"].startswith("def score_")
    replies = ["The bonus is 12.", "Sorry, the bonus is 21. It is sum."]
    messages: list[Message] = [("user", task["problem_description"])]
    for reply in replies:
        messages += [("assistant", "What is the bonus?"), ("user", reply)]
    written = read_program(agent_turn(writer, messages))
    assert written is not None and (written.number, written.option) == (21, "sum")


def test_answer_begins_with_the_marker_of_the_environment() -> None:
    assert ANSWER_MARKER == FINAL


def test_unknown_request_gets_an_empty_program(writer: ReplyWriter) -> None:
    assert agent_turn(writer, [("user", "Write a sorting function.")]) == f"{ANSWER_MARKER}\npass"
