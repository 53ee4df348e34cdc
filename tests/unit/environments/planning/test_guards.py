"""Planning agents of the web: steps in circles are not run, and a candidate stands for an answer not given."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest

from treadle.agent.call_cache import CallCache, NullCache
from treadle.agent.contract import Task
from treadle.agent.model_types import RolloutLimits
from treadle.agent.rollout import RolloutEngine
from treadle.agent.tools.outcome import CallContext, ToolOutcome
from treadle.agent.trajectory import Trajectory
from treadle.core.answers.extraction import extract_prediction
from treadle.core.errors import DeadlineExceeded
from treadle.core.llm.config import Sampling
from treadle.core.llm.types import Completion, CompletionRequest
from treadle.environments.planning.guards import MONOTONOUS, REPEATED
from treadle.environments.planning.runtime import PlanningRuntime
from treadle.environments.planning.settings import PlanningSettings
from treadle.environments.scorers.scoring import has_given

ANSWER = "<think>done</think><answer>X</answer>"


class Search:
    """Search that fails as often as it is told to."""

    name = "web_search"

    def __init__(self, num_failing: int = 0) -> None:
        self.num_failing = num_failing
        self.asked: list[str] = []

    async def __aenter__(self) -> Search:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def call(self, argument: str, *, deadline: float, context: CallContext | None = None) -> ToolOutcome:
        self.asked.append(argument)
        if argument == "late":
            raise DeadlineExceeded("the time is up")
        failed = len(self.asked) <= self.num_failing
        return ToolOutcome("error" if failed else "ok", f"found {argument}", 0.0)


class Model:
    """Model that says the given texts, one per turn."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)

    async def complete(self, request: CompletionRequest, *, session: str, deadline: float) -> Completion:
        return Completion(self.texts.pop(0), (), "stop", None, 1, 1, "http://x/v1", 0.0, 0)


def played(texts: Sequence[str], search: Search, max_turns: int = 25, cache: CallCache | None = None) -> Trajectory:
    settings = PlanningSettings(dialect="web", max_turns=max_turns)
    engine = RolloutEngine(
        Model(texts), None, Sampling(), RolloutLimits(max_turns=settings.turn_limit()), settings.turn_dialect
    )
    episode = PlanningRuntime(settings, {"web_search": search}).episode()
    cache = NullCache() if cache is None else cache
    return asyncio.run(engine.roll_out(episode, Task("q", "Who?"), seed=1, deadline=math.inf, cache=cache))


def asking(query: str, thought: str = "t") -> str:
    return f"<think>{thought}</think><web_search>{query}</web_search>"


def predicted(made: Trajectory) -> str:
    return extract_prediction([{"kind": one.kind, "text": one.text} for one in made.segments])


def part(made: Trajectory, name: str) -> float:
    assert made.outcome is not None
    return made.outcome.parts[name]


def test_the_fifth_step_of_one_kind_is_not_run_and_another_kind_frees_it() -> None:
    search = Search()
    mixed = f"<think>t</think><reflection>good</reflection>{asking('7')}"
    made = played([*(asking(str(number)) for number in range(6)), mixed, ANSWER], search)
    assert search.asked == ["0", "1", "2", "3", "7"]
    assert [call.note for call in made.calls][:6] == ["", "", "", "", MONOTONOUS, MONOTONOUS]
    assert not made.calls[4].executed and made.status == "answered"


def test_a_step_that_was_written_before_is_not_run_with_another_thought_either() -> None:
    search = Search()
    made = played([asking("a", "one"), asking("a", "two"), ANSWER], search)
    assert search.asked == ["a"] and [call.note for call in made.calls] == ["", REPEATED]


class Units(dict[str, bytes]):
    """Cache of one rollout."""

    def append(self, unit: str, value: bytes) -> None:
        self[unit] = value


def test_a_resumed_rollout_knows_its_steps_and_candidates() -> None:
    texts = [candidate("A", "1"), candidate("B", "2"), asking("2"), candidate("C", "3")]
    units, search = Units(), Search()
    played(texts, Search(), cache=units)
    kept = Units({name: value for name, value in units.items() if name.endswith(("-0", "-1"))})
    assert 0 < len(kept) < len(units)
    made = played(texts[2:], search, cache=kept)
    assert search.asked == [] and made.calls[2].note == REPEATED
    assert (made.status, predicted(made)) == ("answered", "C")


def test_a_step_that_failed_may_be_written_again() -> None:
    search = Search(num_failing=1)
    made = played([asking("a"), asking("a"), ANSWER], search)
    assert search.asked == ["a", "a"] and [call.status for call in made.calls] == ["error", "ok"]


def candidate(text: str, query: str) -> str:
    block = f"<suggested_answer>{text}</suggested_answer>"
    return f"<think>t</think>{block}<think>t</think><double_check>1</double_check>{asking(query)}"


def test_the_third_candidate_is_the_answer() -> None:
    search = Search()
    made = played([candidate("A", "1"), candidate("B", "2"), candidate("C", "3"), ANSWER], search)
    assert (made.status, predicted(made), search.asked) == ("answered", "C", ["1", "2"])
    assert (part(made, "candidates"), part(made, "answered_by_candidate")) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("last", "status", "prediction", "taken"),
    [
        (asking("2"), "max_turns", "A", 1.0),
        ("<think>t</think><suggested_answer>B", "no_answer", "A", 1.0),
        (ANSWER, "answered", "X", 0.0),
    ],
)
def test_the_last_candidate_stands_for_an_answer_not_given(
    last: str, status: str, prediction: str, taken: float
) -> None:
    made = played([candidate("A", "1"), last], Search(), max_turns=2)
    assert (made.status, predicted(made)) == (status, prediction)
    assert part(made, "answered_by_candidate") == taken
    assert has_given(made.status, made.outcome)


def test_a_candidate_before_a_call_in_which_the_time_ran_out_counts() -> None:
    made = played([candidate("A", "late")], Search())
    assert (made.status, predicted(made), part(made, "answered_by_candidate")) == ("timeout", "A", 1.0)


def test_without_a_candidate_a_rollout_that_ran_out_gave_no_answer() -> None:
    made = played([asking("1"), asking("2")], Search(), max_turns=2)
    assert (predicted(made), part(made, "answered_by_candidate")) == ("", 0.0)
    assert not has_given(made.status, made.outcome)
