"""Judgements are keyed by everything they depend on, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.rollouts.scores_bench import judged_by, role
from support.tables.score_tables import gold

from treadle.core.answers.score import Score
from treadle.core.config import load_config, merge
from treadle.core.errors import ConfigError
from treadle.eval.answers import COPIED_COLUMNS, Answer
from treadle.eval.config import ScoresSettings
from treadle.eval.judge_queue import JudgeQueue

SERVED = {"model": {"server": {"type": "vllm", "model": "1/rl@phase-1"}, "endpoints": []}}
WRONG = Score(None, False, "math_rules")


def settings(**changes: Any) -> ScoresSettings:
    given = judged_by({"judge": "http://127.0.0.1:9/v1"}, {"redundancy": {"model": "judge", "votes": 3}})
    given["judges"]["judge"] = merge(given["judges"]["judge"], changes)
    return load_config(ScoresSettings, data={**given, "redundancy": given["judges"]["judge"]})


def keys(made: ScoresSettings, trained: tuple[str, ...] = ()) -> list[str]:
    row = {
        **dict.fromkeys(COPIED_COLUMNS),
        "rollout_key": "r",
        "question_key": "q",
        "status": "answered",
        "calls_requested": 1,
    }
    segments = [{"kind": "answer", "text": "<answer>seven</answer>"}]
    answer = Answer(row, segments, "seven", gold(("7",), (), "math", "How many?"))
    return [judgement.key for judgement in JudgeQueue(made, trained).about(answer, WRONG)]


def test_retrained_judge_is_another_judge() -> None:
    served = settings(**SERVED)
    first, second = keys(served, ("0" * 64,)), keys(served, ("1" * 64,))
    assert len(first) == 2 and not set(first) & set(second)
    assert keys(served, ("0" * 64,)) == first


def test_training_does_not_change_judges_that_the_run_does_not_serve() -> None:
    assert keys(settings(), ("0" * 64,)) == keys(settings())


@pytest.mark.parametrize(
    ("changes", "is_another"),
    [
        ({"model": {"model": "other"}}, True),
        ({"model": {"revision": "2"}}, True),
        ({"sampling": {"temperature": 0.5}}, True),
        ({"tokenizer_digest": "f" * 64}, True),
        ({"name": "large"}, False),
        ({"model": {"endpoints": [{"url": "http://127.0.0.1:8/v1"}]}}, False),
    ],
)
def test_judge_is_identified_by_model_and_sampling(changes: dict[str, Any], is_another: bool) -> None:
    changed = settings(**changes)
    assert role("http://127.0.0.1:9/v1")["name"] == "judge"
    assert bool(set(keys(changed)) & set(keys(settings()))) is not is_another


def test_judge_that_is_called_like_the_votes_on_calls_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "from treadle.api import Judge\n\n\nclass redundancy(Judge):\n"
        "    def messages(self, view):\n        return []\n\n    def read(self, text):\n        return True\n"
    )
    made = load_config(ScoresSettings, data={"options": {"judges": {"type": "mine.py:redundancy"}}})
    with pytest.raises(ConfigError, match="scores.judges.type = 'mine.py:redundancy': votes on calls have this name"):
        JudgeQueue(made)
