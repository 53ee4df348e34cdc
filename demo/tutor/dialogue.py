"""Play the two sides of a dialogue about a program by rule: the agent that writes it, and the human who requests it.

The agent asks for the hidden details one after the other, then answers. The human reveals what the agent asks for, and
reads it from the hidden program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from treadle.demo.programs.families import NUMBERS, Details, Family, read_program, read_request
from treadle.demo.tutor.conversation import Conversation
from treadle.demo.tutor.seeded_draws import Draws

DialogueRole = Literal["asker", "guesser", "human"]

ANSWER_MARKER = "I WANT TO ANSWER:"
UNKNOWN = "I do not know."
"""Reply of the human to a message that asks for no hidden detail."""

_MAX_TRIES = 2
_AGENT = re.compile(r"(?im)^(?:agent|assistant)\s*:")
_END = re.compile(r"(?im)\n\s*\n|^(?:agent|assistant|human|user)\s*:")


@dataclass(frozen=True, slots=True)
class KnownDetails:
    """Hidden details that an agent knows.

    Attributes:
        number: The number; None until the human reveals it.
        option: The option; None until the human reveals it.
        num_asked: How often the agent asked for the number, and for the option.
    """

    number: int | None
    option: str | None
    num_asked: tuple[int, int]


def dialogue_role(conversation: Conversation) -> DialogueRole | None:
    """Return the role that a prompt gives to the model; None if the prompt is not from a dialogue about a program."""
    if ANSWER_MARKER in conversation.system:
        return "asker"
    is_human = _AGENT.search(conversation.user) and read_program(conversation.user) is not None
    return "human" if is_human else None


def number_question(family: Family) -> str:
    """Return the question for the hidden number."""
    return f"What is the {family.number}?"


def option_question(family: Family) -> str:
    """Return the question for the other hidden detail."""
    first, second, third = family.options
    return f"Is it {first}, {second} or {third}?"


def next_dialogue_turn(conversation: Conversation, role: DialogueRole, guess: float, draws: Draws) -> str:
    """Return the next turn of an agent, or the reply of the human.

    The role `asker` is an agent that asks for the details; `guess` is the share of its dialogues in which it chooses
    the option at random instead. The role `guesser` is an agent that asks for nothing and guesses both details.
    """
    if role == "human":
        return human_reply(conversation.user)
    request = read_request(conversation.user)
    if request is None:
        return f"{ANSWER_MARKER}\npass"
    family, thing = request
    known = _read_replies(conversation, family)
    question = None if role == "guesser" else _next_question(known, family, guess, draws)
    if question is not None:
        return question
    number = draws.choose("number", NUMBERS) if known.number is None else known.number
    option = draws.choose("option", family.options) if known.option is None else known.option
    return f"{ANSWER_MARKER}\n{family.program(thing, number, option)}"


def human_reply(prompt: str) -> str:
    """Return the human's reply to the last message of the agent in a prompt that holds the hidden program.

    Only the first paragraph of the message is read.
    """
    details = read_program(prompt)
    said = list(_AGENT.finditer(prompt))
    if details is None or not said:
        return UNKNOWN
    # Rules may follow the dialogue in the prompt, and it may end with the name of the next speaker.
    texts = [_END.split(prompt[match.end() :], maxsplit=1)[0].strip() for match in said]
    asked = next((text for text in reversed(texts) if text), "")
    return reply_to(asked, details)


def reply_to(question: str, details: Details) -> str:
    """Return the human's reply to a question: a sentence for each detail that the question asks for."""
    words = set(re.findall(r"[a-z]+", question.lower()))
    family = details.family
    told = [f"The {family.number} is {details.number}."] if family.number in words else []
    told += [f"It is {details.option}."] if words.intersection(family.options) else []
    return " ".join(told) or UNKNOWN


def _read_replies(conversation: Conversation, family: Family) -> KnownDetails:
    """Read the details from the human's replies, and count the questions for them."""
    replies = [text for role, text in conversation.messages if role == "user"]
    asked = [text.strip() for role, text in conversation.messages if role == "assistant"]
    numbers = [match[1] for reply in replies for match in re.finditer(rf"\b{family.number} is (\d{{1,4}})\b", reply)]
    options = [match[1] for reply in replies for match in re.finditer(rf"\bis ({'|'.join(family.options)})\b", reply)]
    return KnownDetails(
        number=int(numbers[-1]) if numbers else None,
        option=options[-1] if options else None,
        num_asked=(asked.count(number_question(family)), asked.count(option_question(family))),
    )


def _next_question(known: KnownDetails, family: Family, guess: float, draws: Draws) -> str | None:
    """Return the question for a detail that is missing; None if nothing is left to ask."""
    if known.number is None and known.num_asked[0] < _MAX_TRIES:
        return number_question(family)
    if known.option is None and known.num_asked[1] < _MAX_TRIES and not draws.happens("guess", guess):
        return option_question(family)
    return None
