"""Play the policy by rule: one turn of a trajectory, from the question and the results so far.

The plan follows from the wording of the question; the values come only from the tool results in the context. Each turn
is derived from scratch, so the rules can also continue an edited trajectory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from treadle.demo.names import NUM_NAMES, name
from treadle.demo.tutor.conversation import Call, Conversation
from treadle.demo.tutor.facts import label, queries, read_facts, read_number
from treadle.demo.tutor.seeded_draws import Draws
from treadle.demo.world import RELATIONS
from treadle.demo.world_templates import RecognizedQuestion, recognise

_MAX_TRIES = 2
_HINTED = 0.3
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """Error rates of the noisy persona: five patterns, each per trajectory, and two reactions to prompts.

    Attributes:
        redundant: Repeats a call although everything is known.
        broken: Its first call is empty or does not parse.
        early: Guesses an answer while one fact is still missing.
        wrong: Follows a wrong plan: another operation, or another fact of the document.
        stubborn: Ignores a hint: keeps its former answer, or continues as if there were no hint.
        careless: As critic or refiner, overlooks a flaw, picks another step, or ignores the format.
        guess: In a dialogue about a program, picks one of three options at random instead of asking which is right.
    """

    redundant: float = 0.25
    broken: float = 0.15
    early: float = 0.15
    wrong: float = 0.15
    stubborn: float = 0.2
    careless: float = 0.1
    guess: float = 0.8

    def scaled(self, factor: float) -> ErrorRates:
        """Return the rates with `redundant`, `broken`, `early` and `wrong` multiplied by a factor."""
        patterns = ("redundant", "broken", "early", "wrong")
        return replace(self, **{pattern: getattr(self, pattern) * factor for pattern in patterns})


STRONG = ErrorRates(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def next_turn(conversation: Conversation, rates: ErrorRates, draws: Draws) -> str:
    """Return the next turn: a think block, then one call or the answer.

    Text in an unclosed think block makes the policy reconsider, unless it is stubborn: it errs less, and trusts only a
    program with the right computation.
    """
    if conversation.thought is None:
        thought, action = plan(conversation, rates, draws)
        return f"<think>{thought}</think>{action}"
    if not conversation.thought.strip():
        thought, action = plan(conversation, rates, draws)
        return f"{thought}</think>{action}"
    if not draws.happens("stubborn", rates.stubborn):
        thought, action = plan(conversation, rates.scaled(_HINTED), draws, doubting=True)
    elif former := boxed(conversation.thought):
        thought, action = draws.choose("stay", _STAYS), _answer(former, draws.choose("say", _SAYS))
    else:
        thought, action = plan(conversation, rates, draws)
    return f" {thought}</think>{action}"


def plan(conversation: Conversation, rates: ErrorRates, draws: Draws, *, doubting: bool = False) -> tuple[str, str]:
    """Return thought and action of the next turn; `doubting`: do not trust the results of earlier calls."""
    asked = recognise(conversation.user)
    if asked is None:
        return _look_up_once(conversation)
    return _Planner(conversation, asked, rates, draws, doubting).turn()


def next_facts(question: str, calls: Sequence[Call]) -> frozenset[tuple[str, str]]:
    """Return the (name, attribute) pairs that a question of the sample world needs looked up next."""
    asked = recognise(question)
    if asked is None:
        return frozenset()
    planner = _Planner(Conversation("", question, tuple(calls)), asked, STRONG, Draws(), doubting=False)
    return frozenset(planner.resolve()[0])


def follow_paths(
    asked: RecognizedQuestion, facts: Mapping[tuple[str, str], str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Follow every path of a question as far as its facts are known.

    Returns the missing facts as (name, attribute), and the values at the ends of complete paths.

    `facts` has values by name and attribute.
    """
    missing, values = [], []
    for slot, *attributes in asked.template.paths:
        at = asked.names[slot]
        for attribute in attributes:
            value = facts.get((at, attribute))
            if value is None:
                missing.append((at, attribute))
                break
            at = value
        else:
            values.append(at)
    return missing, values


def boxed(text: str) -> str | None:
    """Return the content of the last LaTeX box in a text, or None."""
    found = _BOXED.findall(text)
    return found[-1] if found else None


def _look_up_once(conversation: Conversation) -> tuple[str, str]:
    """Return the turn for a question outside the sample world: one search, then the first words of its result."""
    calls = conversation.calls
    query = " ".join(conversation.user.replace("<", " ").split())[:200]
    if not calls and query:
        return "I do not know this, so I look it up.", f"<search>{query}</search>"
    words = (calls[-1].result or "").replace("<", " ").split() if calls else []
    return "This is what I found.", _answer(" ".join(words[:12]) or "unknown", "The answer is {}.")


class _Planner:
    """Policy for questions of the sample world."""

    def __init__(
        self, conversation: Conversation, asked: RecognizedQuestion, rates: ErrorRates, draws: Draws, doubting: bool
    ) -> None:
        self._calls = conversation.calls
        self._asked = asked
        self._rates = rates
        self._draws = draws
        self._facts = read_facts(conversation.calls)
        self._max_tries = _MAX_TRIES + doubting
        self._trusts_any_program = rates != STRONG and not doubting

    def turn(self) -> tuple[str, str]:
        """Return the thought and the action."""
        missing, values = self.resolve()
        if missing:
            wanted, attribute = missing[0]
            if len(missing) == 1 and self._left(missing[0]) == 1 and self._tries(wanted) == 0 and self._answers_early():
                return self._draws.choose("guess", _GUESSES), self._say(self._guess())
            if self._tries(wanted) >= self._max_tries:
                return f"The documents do not give the {label(attribute)} of {wanted}.", self._say("unknown")
            return self._search(wanted, attribute)
        expression = self._expression(values)
        if expression is None:
            return self._repeat() or self._conclude(values)
        number = self._printed(expression)
        if number is not None:
            return self._repeat() or (self._draws.choose("done", _DONE), self._say(number))
        if self._programs(expression) >= self._max_tries:
            return "The program gave no number.", self._say("unknown")
        if not self._calls and self._answers_early():
            return self._draws.choose("guess", _GUESSES), self._say(self._guess())
        return self._program(expression)

    def _answers_early(self) -> bool:
        """Return whether to answer too early. Drawn once per trajectory, so never after a broken call."""
        return all(call.argument for call in self._calls) and self._draws.happens("early", self._rates.early)

    def resolve(self) -> tuple[list[tuple[str, str]], list[str]]:
        """Follow every path of the question as far as facts are known; see `follow_paths`."""
        return follow_paths(self._asked, self._facts)

    def _left(self, missing: tuple[str, str]) -> int:
        """Return the number of lookups still needed, including this one."""
        ends = [path[-1] for path in self._asked.template.paths]
        if missing[1] in ends:
            return 1
        path = next(path for path in self._asked.template.paths if missing[1] in path)
        return len(path) - path.index(missing[1])

    def _tries(self, wanted: str) -> int:
        return sum(call.tool == "search" and wanted in call.argument for call in self._calls)

    def _search(self, wanted: str, attribute: str) -> tuple[str, str]:
        thought = self._draws.choose("need", _NEEDS).format(what=label(attribute), name=wanted)
        if not self._calls and self._draws.happens("broken", self._rates.broken):
            return thought, "<search></search>"
        options = queries(wanted, attribute)
        place = self._draws.bits("query") + self._tries(wanted)
        return thought, f"<search>{options[place % len(options)]}</search>"

    def _expression(self, values: list[str]) -> str | None:
        combine = self._asked.template.combine
        if self._asked.template.expression:
            return self._asked.expression
        if combine == "sum":
            return f"{values[0]} + {values[1]}"
        return f"abs({values[0]} - {values[1]})" if combine == "difference" else None

    def _printed(self, expression: str) -> str | None:
        """Return the number that the right program printed; None without one.

        The noisy policy trusts the output of any program, unless it reconsiders (`doubting`).
        """
        for call in reversed(self._calls):
            number = read_number(call)
            if number is not None and (self._trusts_any_program or computes(call, expression)):
                return number
        return None

    def _programs(self, expression: str) -> int:
        return sum(
            call.tool == "python" and (self._trusts_any_program or computes(call, expression)) for call in self._calls
        )

    def _program(self, expression: str) -> tuple[str, str]:
        thought = self._draws.choose("compute", _COMPUTES).format(expression)
        if not self._calls and self._draws.happens("broken", self._rates.broken):
            return thought, f"<python>print({expression}</python>"
        if self._draws.happens("wrong", self._rates.wrong):
            expression = _other_operation(expression)
            thought = self._draws.choose("compute", _COMPUTES).format(expression)
        return thought, f"<python>{self._draws.choose('code', _CODES).format(expression)}</python>"

    def _repeat(self) -> tuple[str, str] | None:
        """Return a repeated call at the rate `redundant`, at most one per trajectory; None otherwise."""
        if not self._calls or len({(call.tool, call.argument) for call in self._calls}) < len(self._calls):
            return None
        if not self._draws.happens("redundant", self._rates.redundant):
            return None
        last = self._calls[-1]
        return self._draws.choose("again", _AGAIN), f"<{last.tool}>{last.argument}</{last.tool}>"

    def _conclude(self, values: list[str]) -> tuple[str, str]:
        template = self._asked.template
        wrong = self._draws.happens("wrong", self._rates.wrong)
        if template.combine in ("larger", "smaller"):
            if not all(value.isdecimal() for value in values):
                return "These are no numbers.", self._say("unknown")
            place = template.winner([int(value) for value in values])
            if place is None:
                return f"I compare {' and '.join(values)}, which are equal.", self._say("unknown")
            slot = template.paths[(place + wrong) % len(values)][0]
            return f"I compare {' and '.join(values)}.", self._say(self._asked.names[slot])
        value = self._other_fact(values[0]) if wrong else values[0]
        return self._draws.choose("read", _READS).format(value), self._say(value)

    def _other_fact(self, right: str) -> str:
        others = sorted({value for value in self._facts.values() if value != right})
        return self._draws.choose("other", others) if others else self._guess()

    def _guess(self) -> str:
        path = self._asked.template.paths[0] if self._asked.template.paths else ("a", "")
        if self._asked.template.combine in ("larger", "smaller"):
            return "neither"
        if path[-1] in RELATIONS:
            return name(self._draws.bits("name") & 0xFFFF, self._draws.bits("index") % NUM_NAMES)
        return "farmer" if path[-1] in ("profession", "product") else str(10_000 + self._draws.bits("number") % 90_000)

    def _say(self, value: str) -> str:
        return _answer(value, self._draws.choose("say", _SAYS))


def computes(call: Call, expression: str) -> bool:
    """Return whether a call is a program with this computation in it."""
    return call.tool == "python" and expression.replace(" ", "") in call.argument.replace(" ", "")


def _answer(value: str, sentence: str) -> str:
    boxed = value.translate({ord("{"): None, ord("}"): None, ord("\\"): None})
    return "<answer>" + sentence.format("\\boxed{" + boxed + "}") + "</answer>"


def _other_operation(expression: str) -> str:
    """Return the computation with another operation, whose value differs."""
    for old, new in ((" % ", " // "), (" ** 2", " * 2"), (" + ", " - "), (" * ", " + "), (" - ", " + ")):
        if old in expression:
            return expression.replace(old, new, 1)
    return f"{expression} + 1"


_NEEDS = (
    "I need the {what} of {name}.",
    "First I look up the {what} of {name}.",
    "I have to find the {what} of {name}.",
    "What is the {what} of {name}? I search for it.",
)
_COMPUTES = ("I compute {}.", "This is {}.", "I let Python work out {}.", "So I need the value of {}.")
_CODES = ("print({})", "x = {}\nprint(x)", "result = {}\nprint(result)")
_READS = ("The document says {}.", "It is {}.", "The search gives {}.", "I found {}.")
_DONE = ("The program gives the number.", "That is the result.", "Now I have the value.")
_AGAIN = ("Let me check that again.", "To be sure, I ask once more.", "I repeat this to be certain.")
_GUESSES = ("I think I know this already.", "I believe I remember this.", "This should be easy to say.")
_STAYS = ("No, I stay with what I have.", "I have thought about it and keep my answer.", "I see nothing to change.")
_SAYS = ("{}", "The answer is {}.", "It is {}.")
