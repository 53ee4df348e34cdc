"""Scorers of users: found by the configuration, run on hostile rollouts, and never with a made-up verdict."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from treadle.agent.contract import Outcome, Task
from treadle.agent.dialects.base import Segment
from treadle.api import Score, Scorer
from treadle.core.config import load_config, semantic_dump
from treadle.core.errors import ConfigError
from treadle.core.runs.address import Address
from treadle.environments.scorers.registry import SCORERS, scorer_named
from treadle.environments.scorers.scoring import OpenScorers
from treadle.environments.settings import EnvironmentSettings
from treadle.environments.stored_rollout import StoredRollout
from treadle.tasks.catalog import instance
from treadle.tasks.config import TreadleConfig

STEPS = '''
from treadle.api import Score, Scorer

class Steps(Scorer):
    """Share of the expected steps that the last turn names."""
    PARTS = {"steps": "named steps", "words": "words of the last turn"}
    PAYLOAD = ("steps",)
    least: float = 0.5
    """Share of steps above which a rollout is right."""

    async def score(self, task, rollout):
        said = rollout.last_turn.split()
        steps = sum(step in said for step in task.payload["steps"])
        share = steps / len(task.payload["steps"])
        return Score(share, share > self.least, parts={"steps": steps, "words": len(said)})
'''
VALUES: dict[str, Any] = {}
NEVER = threading.Event()


class Given(Scorer):
    """Does what a rollout's task says."""

    PARTS: ClassVar[Mapping[str, str]] = {"em": "a share", "cost": "any number"}
    TIME_LIMIT_S: ClassVar[float | None] = 0.3

    async def score(self, task: Task, rollout: StoredRollout) -> Any:
        if task.text == "hang":
            await asyncio.Event().wait()
        if task.text == "block":
            NEVER.wait()
        if task.text == "exit":
            sys.exit(3)
        if task.text == "cancel":
            raise asyncio.CancelledError
        if task.text == "raise":
            raise KeyError(task.payload["secret"])
        return VALUES[task.text]


@dataclass(frozen=True)
class Rollout:
    task: Task
    status: str = "answered"
    prediction: str = ""
    outcome: Outcome | None = None

    def stored(self) -> StoredRollout:
        segments = [Segment("text", "first third", 0, 11)]
        return StoredRollout(self.status, False, segments, (), (), None, self.outcome)


def scores_of(*texts: str, scorer: str = "Given", status: str = "answered") -> list[Score]:
    entries = {"given": SCORERS.parse({"type": f"{__name__}:{scorer}"})}
    tasks = [Task(f"q{text}", text, scorer="given", payload={"secret": "hidden words"}) for text in texts]
    with OpenScorers(entries) as scorers:
        return scorers.scores([Rollout(task, status) for task in tasks])


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, "gave no score"),
        (math.nan, "gave nan as score; give a finite number"),
        (math.inf, "gave inf as score"),
        (2e9, "gave 2e+09 as score"),
        (2.0, 'gave 2, but its SCALE is "graded"; set it to "reward"'),
        ("1", "gave a score of type str; return a number, Score, or None"),
        (Score(1.0, parts={"other": 1.0}), "gave a part that its PARTS do not declare; known: em, cost"),
        (Score(1.0, parts={"cost": math.nan}), "gave nan as cost"),
        (Score(1.0, parts={"em": 7.0}), "gave 7 as em, which is a share; rename the part"),
        (Score(None, error="no reference"), "no reference"),
    ],
)
def test_value_that_cannot_be_used_leaves_one_rollout_without_a_verdict(value: Any, error: str) -> None:
    VALUES.update(bad=value, good=0.25)
    bad, good = scores_of("bad", "good")
    assert (bad.score, bad.correct, bad.scorer) == (None, None, "given") and error in (bad.error or "")
    assert good == Score(0.25, False, "given")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("hang", "scorer given did not return within 0.3 s"),
        ("block", "scorer given blocked its event loop for 0.3 s; use `await`"),
        ("exit", "tried to end the process (SystemExit: 3); test_user_scorers.py, line "),
        ("cancel", "scorer given raised CancelledError"),
    ],
)
def test_code_that_does_not_return_leaves_one_rollout_without_a_verdict(text: str, error: str) -> None:
    VALUES.update(one=1.0, two=Score(0.75, False, parts={"cost": -3}))
    one, bad, two = scores_of("one", text, "two")
    assert bad.score is None and error in (bad.error or "")
    assert (one, two) == (Score(1.0, True, "given"), Score(0.75, False, "given", parts={"cost": -3.0}))


def test_error_is_told_without_the_payload() -> None:
    (bad,) = scores_of("raise")
    assert bad.score is None and "KeyError" in (bad.error or "") and "hidden words" not in (bad.error or "")


def test_lost_rollout_is_wrong_and_not_scored() -> None:
    (lost,) = scores_of("raise", status="failed")
    assert lost == Score(0.0, False, "status")


class Sessions(Scorer):
    """Opens something and scores with it."""

    opened: ClassVar[list[str]] = []
    _factor: float = 0.0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        self._factor = 0.5
        self.opened.append("open")
        yield
        self.opened.append("close")

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        return self._factor


def test_scorer_is_open_while_it_scores_and_closed_at_the_end() -> None:
    assert [score.score for score in scores_of("a", "b", scorer="Sessions")] == [0.5, 0.5]
    assert Sessions.opened == ["open", "close"]


class Broken(Scorer):
    """Cannot be opened."""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        raise OSError("no such service")
        yield

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        return 1.0


def test_scorer_that_cannot_be_opened_is_named() -> None:
    with pytest.raises(ConfigError, match="scorer given cannot be opened: OSError: no such service"):
        scores_of("a", scorer="Broken")


def test_scorer_that_no_rollout_needs_is_not_opened() -> None:
    entries = {name.lower(): SCORERS.parse({"type": f"{__name__}:{name}"}) for name in ("Sessions", "Broken")}
    Sessions.opened.clear()
    used, unused = (Rollout(Task(name, name, scorer=name), "answered") for name in ("sessions", "broken"))
    with OpenScorers(entries) as scorers:
        assert [score.score for score in scorers.scores([used])] == [0.5]
        with pytest.raises(ConfigError, match="scorer broken cannot be opened"):
            scorers.scores([used, unused])
        assert [score.score for score in scorers.scores([used])] == [0.5], "the others are still open"
    assert Sessions.opened == ["open", "close"]


class Plain(Scorer):
    """Is not asynchronous."""

    def score(self, task: Task, rollout: StoredRollout) -> float:  # type: ignore[override]
        return 1.0


class Odd(Scorer):
    """Declares a part with a wrong name."""

    PARTS: ClassVar[Mapping[str, str]] = {"No name": "x"}

    async def score(self, task: Task, rollout: StoredRollout) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("name", "error"),
    [("Plain", "must be written with `async def`"), ("Odd", "PARTS: 'No name' must be a name"), ("math", "no math")],
)
def test_class_that_cannot_be_used_is_refused(name: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SCORERS.parse({"type": f"{__name__}:{name}"}) if name != "math" else SCORERS.parse("maths:no math")


def test_task_decides_in_an_environment_that_scores_itself() -> None:
    entries = {"given": SCORERS.parse({"type": f"{__name__}:Given"})}
    scorers = OpenScorers(entries, {"default": EnvironmentSettings()})
    named = {name: scorers.scorer_of(Task("q", "?", domain="task", scorer=name)).name for name in ("given", "qa")}
    assert named == {"given": "given", "qa": "environment"}
    assert scorers.scorer_of(Task("q", "?", domain="task")).name == "environment"


def config(folder: Path, scorer: str = "steps", **more: Any) -> TreadleConfig:
    (folder / "steps.py").write_text(STEPS)
    (folder / "tasks.jsonl").write_text('{"question": "Plan.", "steps": ["first", "second"]}\n')
    source = {"path": str(folder / "tasks.jsonl"), "payload": ["steps"], "scorer": scorer}
    data = {
        "models": {"base": {"model": "m", "endpoints": [{"url": "http://127.0.0.1:1/v1"}]}},
        "environment": {"search": {"enabled": False}},
        "questions": {"sources": [source]},
        "scorers": {"steps": {"type": "steps.py:Steps", "least": 0.25}},
    }
    return load_config(TreadleConfig, data={**data, **more})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_scorers_in_use_are_part_of_what_scores_depend_on_but_not_questions(folder: Path) -> None:
    unused = {"type": "qa", "f1_threshold": 0.5}
    given = config(folder, scorers={"steps": {"type": "steps.py:Steps"}, "lenient": unused})
    scores = instance(given, Address.parse("1/scores@base")).settings
    questions = instance(given, Address.parse("1/questions")).settings
    assert list(scores.scorers) == ["steps"] and questions.without_answers == ("steps",)
    (folder / "steps.py").write_text(STEPS.replace("0.5", "0.75"))
    after = load_config(TreadleConfig, data=given.model_dump(mode="json"))
    changed = instance(after, Address.parse("1/scores@base")).settings
    assert semantic_dump(scores) != semantic_dump(changed)
    assert semantic_dump(questions) == semantic_dump(instance(after, Address.parse("1/questions")).settings)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"scorer": "step"}, r"sources\[0\].scorer: scorer 'step' is unknown; known: steps, math, qa"),
        ({"scorers": {"math": {"type": "qa"}}}, "scorers.math: this name is taken"),
        ({"scorers": {"Bad name": {"type": "qa"}}}, "has up to 48 of a-z"),
        ({"scorers": {"steps": {"type": "steps.py:Steps", "most": 1}}}, "most"),
        ({"scorers": {"steps": {"type": "steps.py:Step"}}}, "there is no Step in .*steps.py"),
    ],
)
def test_wrong_name_or_key_is_refused_when_the_configuration_is_read(
    folder: Path, more: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        config(folder, **more)


def test_payload_and_answers_that_a_scorer_needs_are_checked_before_the_run(folder: Path) -> None:
    source = {"path": str(folder / "tasks.jsonl"), "scorer": "steps"}
    with pytest.raises(ConfigError, match="reads hidden steps; set payload"):
        instance(config(folder, questions={"sources": [source]}), Address.parse("1/questions"))
    guess = {"type": "support.rollouts.dialogues:Guess"}
    given = config(folder, scorer="qa", environment=guess)
    with pytest.raises(ConfigError, match="scorer = 'qa' of tasks.jsonl compares with gold answers"):
        instance(given, Address.parse("1/questions"))


def test_threshold_of_an_entry_decides(folder: Path) -> None:
    lenient = SCORERS.parse({"type": "qa", "f1_threshold": 0.5})
    task = Task("q", "?", domain="qa", scorer="lenient", answers=("red green",))
    scorers = OpenScorers({"lenient": lenient})
    assert scorers.rule_score(Rollout(task, prediction="red green blue white")).correct is True
    assert scorer_named("qa", {}).rule("red green blue white", ("red green",), (), scorers._tools).correct is False
