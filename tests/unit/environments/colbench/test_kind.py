"""The type `colbench/backend` among the others: its scorer, its traits, and what it hides."""

from __future__ import annotations

import pytest

from treadle.agent.contract import Task
from treadle.agent.tools.workspace.files import BadTask
from treadle.environments.colbench.kind import BackendType
from treadle.environments.colbench.settings import ColbenchSettings
from treadle.environments.colbench.task import MAX_TESTS, ProgramTask
from treadle.environments.registry import ENVIRONMENTS, environment_type, traits_of
from treadle.environments.scorers.registry import SCORERS
from treadle.environments.scorers.scoring import OpenScorers

PAYLOAD = {"reference": "def f(x):\n    return x\n", "tests": {"1": "f(1)", "2": None}, "extra": {}}


def test_type_is_found_by_name() -> None:
    settings = ENVIRONMENTS.parse({"type": "colbench/backend", "human": {"model": "other", "reply_chars": 9}})
    assert isinstance(settings, ColbenchSettings) and isinstance(environment_type(settings), BackendType)
    traits = traits_of(settings)
    assert (traits.resume, traits.roles, traits.has_answers, traits.reads_payload) == (
        "replay",
        ("human",),
        False,
        True,
    )
    assert settings.role_models["human"].model == "other"
    assert settings.role_models["human"].sampling.temperature == 0


def test_tasks_are_scored_by_programs_unless_they_name_a_scorer() -> None:
    own = SCORERS.parse({"type": "programs", "profile": "legacy"})
    environments = {"default": ColbenchSettings()}
    with OpenScorers({"published": own}, environments) as scorers:
        assert scorers.scorer_of(Task("q", "Write f.")).name == "programs"
        assert scorers.scorer_of(Task("q", "Write f.", scorer="published")).scorer == own
        assert scorers.reads_all


def test_hidden_information_states_the_reference_as_the_answer() -> None:
    told = BackendType().hidden_information(ColbenchSettings(), Task("q", "Write f.", payload=PAYLOAD))
    assert told == (
        "The final answer of this task is the following Python program:\n```python\ndef f(x):\n    return x\n```"
    )


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"reference": "x"},
        {"reference": 1, "tests": {"1": "f()"}},
        {"reference": " \n", "tests": {"1": "f()"}},
        {"reference": "x", "tests": {"1": None}},
        {"reference": "x", "tests": {"1": " "}},
        {"reference": "x", "tests": {str(number): "f()" for number in range(MAX_TESTS + 1)}},
    ],
)
def test_unusable_payload_is_refused(payload: dict[str, object]) -> None:
    with pytest.raises(BadTask):
        ProgramTask.of(payload)


def test_function_is_that_of_the_first_call() -> None:
    assert ProgramTask.of(PAYLOAD).function == "f" and dict(ProgramTask.of(PAYLOAD).tests) == {"1": "f(1)"}
    assert ProgramTask.of({**PAYLOAD, "tests": {"1": "1 + f(1)"}}).function == ""
