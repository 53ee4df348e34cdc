"""Errors of a user's code do not quote the payload; all others stay as they are."""

from __future__ import annotations

import traceback

import pytest
from support.rollouts.dialogues import Guess, Halving, play

from treadle.agent.contract import Task
from treadle.api import Environment, ModelTurn, StoredRollout
from treadle.core.errors import EndpointUnavailable, ModelError, TreadleError
from treadle.core.untrusted.concealment import PayloadInError
from treadle.environments.custom.kind import CustomType

SECRET = "canary-19\nassert solve(2) == 'é'"
TASK = Task("k", "Guess.", payload={"secret": 37, "tests": [{"code": SECRET}]})


def code_of(task: Task) -> str:
    return str(task.payload["tests"][0]["code"])


class Failing(Guess):
    """Fails in every method, with the payload in the message or in the error that it handles."""

    async def reset(self, task: Task) -> str:
        raise ValueError(f"bad payload {dict(task.payload)}")

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        try:
            exec(code_of(task))
        except NameError as error:
            raise RuntimeError(f"tests failed: {code_of(task).splitlines()[1]}") from error
        return 1.0


class Stepping(Guess):
    """Fails in its step."""

    async def step(self, turn: ModelTurn) -> str:
        raise KeyError(code_of(self.task))


def leaks(error: BaseException) -> list[str]:
    """Lines of the whole traceback that quote the payload."""
    whole = "".join(traceback.format_exception(error))
    return [text for text in ("canary-19", "solve(2)") if text in whole]


@pytest.mark.parametrize(("environment", "kind"), [(Failing, "ValueError"), (Stepping, "KeyError")])
async def test_errors_of_episodes_quote_no_payload(environment: type[Environment], kind: str) -> None:
    with pytest.raises(PayloadInError, match=rf"{kind}: .*\[payload\].*test_concealment\.py") as told:
        await play(environment, Halving(None), None, TASK)
    assert leaks(told.value) == []


@pytest.mark.parametrize("kind", [EndpointUnavailable, ModelError, TreadleError])
async def test_errors_of_treadle_keep_their_type_without_the_payload(kind: type[TreadleError]) -> None:
    """A server may repeat the prompt of a partner model, who reads the payload."""

    class Asking(Guess):
        async def step(self, turn: ModelTurn) -> str:
            raise kind(f"HTTP 400: invalid prompt {code_of(self.task)}")

    with pytest.raises(kind, match=r"^HTTP 400: invalid prompt \[payload\]$") as told:
        await play(Asking, Halving(None), None, TASK)
    assert leaks(told.value) == [] and told.value.retryable == kind.retryable


async def test_errors_of_scores_quote_no_payload() -> None:
    rollout = StoredRollout.of(await play(Guess, Halving(None), None, TASK))
    kind = CustomType(Failing)
    with pytest.raises(PayloadInError, match=r"RuntimeError: tests failed: \[payload\]") as told:
        await kind.score(kind.settings.model_validate({"type": "x:y"}), TASK, rollout)
    assert leaks(told.value) == []


async def test_other_errors_keep_their_type_and_traceback() -> None:
    class Buggy(Guess):
        async def step(self, turn: ModelTurn) -> str:
            return self.sekret  # type: ignore[attr-defined, no-any-return]

    with pytest.raises(AttributeError, match="sekret"):
        await play(Buggy, Halving(None), None, TASK)
