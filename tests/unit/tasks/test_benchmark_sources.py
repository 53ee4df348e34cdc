"""`--benchmark` takes any file with a question and an answer, and says what it does not understand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treadle.core.errors import ConfigError
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.tasks.benchmark_sources import benchmark_name, benchmark_notes, benchmark_source
from treadle.tasks.config import TreadleConfig
from treadle.tasks.evaluation import EvalOptions, evaluation_config

URL = "http://localhost:8000/v1"
SCORER = """
from treadle.api import Scorer


class WordCount(Scorer):
    \"\"\"Counts words.\"\"\"

    async def score(self, task, rollout):
        return 1.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder with files of a user."""
    monkeypatch.chdir(tmp_path)
    Path("q.jsonl").write_text('{"prompt": "What is 2+2?", "gold": {"value": 4}}\n')
    Path("w.csv").write_text("question,answer\nWho?,Ilme\n")
    Path("my_scorers.py").write_text(SCORER)
    return tmp_path


def source(text: str, data_root: Path | None = None, **questions: Any) -> dict[str, Any]:
    return benchmark_source(text, data_root, QuestionsSettings(**questions), 7)


def evaluation(*benchmarks: str, **more: Any) -> TreadleConfig:
    asked = EvalOptions(model="m", endpoints=(URL,), benchmarks=benchmarks, **more)
    return evaluation_config(asked, "outputs", "r")


def test_file_under_an_own_name_is_a_benchmark(folder: Path) -> None:
    assert source("mine=w.csv") == {"dataset": "mine", "split": "heldout", "limit": 7, "path": "w.csv", "domain": "qa"}
    made = source("mine=q.jsonl,question_field=prompt,answer_field=gold.value")
    assert (made["question_field"], made["answer_field"], made["domain"]) == ("prompt", "gold.value", "math")
    assert source("mine=w.csv,domain=math")["domain"] == "math"
    assert "domain" not in source("gsm8k=w.csv") and "domain" not in source("mine=w.csv", domains={"mine": "qa"})
    assert source('mine=w.csv,domain=qa,payload=["a", "b"]')["payload"] == ["a", "b"]
    hub = source("mine,hub=org/name,hub_split=test,domain=qa")
    assert (hub["hub"], hub["hub_split"]) == ("org/name", "test") and "path" not in hub
    assert [benchmark_name(text) for text in ("a=b,c=d", "a,hub=b", "a")] == ["a", "a", "a"]


def test_own_benchmark_is_found_below_the_data_root(folder: Path) -> None:
    Path("mine").mkdir()
    Path("w.csv").rename("mine/test.csv")
    assert source("mine", folder)["path"] == str(folder / "mine" / "test.csv")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mine=w.csv,question_feld=x", "'question_feld' is not a key .* did you mean question_field"),
        ("mine=w.csv,limit=3", "'limit' is not a key"),
        ("mine=w.csv,answer_form=poem", "--benchmark mine.answer_form"),
        ("mine=no.csv", "no file 'no.csv'; write --benchmark mine=FILE$"),
        ("gsmk8=no.csv", "no file 'no.csv'.* did you mean gsm8k"),
        ("gsmk8", "'gsmk8' is not known; give the file of your own: --benchmark gsmk8=FILE; did you mean gsm8k"),
        ("zzz", "'zzz' is not known; .* known are .*math500"),
        ("all=w.csv", "cannot be called 'all'"),
    ],
)
def test_mistakes_are_one_line(folder: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        source(text)


def test_notes_say_how_own_answers_are_compared(folder: Path) -> None:
    config = evaluation("gsmk8=w.csv", "math500=w.csv", "n=q.jsonl,question_field=prompt,answer_field=gold.value")
    assert list(benchmark_notes(config.questions)) == [
        "benchmark gsmk8 is your own (gsm8k is a known one): answers without options are compared as qa; add "
        "domain=math to compare numbers and formulas",
        "benchmark n is your own: answers without options are compared as math; add domain=qa to compare words",
    ]


def test_scorer_applies_to_benchmarks_that_name_none(folder: Path) -> None:
    config = evaluation("mine=w.csv", "gsm8k=w.csv,scorer=qa", scorer="my_scorers.py:WordCount")
    assert [one.scorer for one in config.questions.sources] == ["word_count", "qa"]
    assert config.scorers["word_count"].type == "my_scorers.py:WordCount"
    assert evaluation("mine=w.csv", scorer="qa_characters").questions.sources[0].scorer == "qa_characters"
    with pytest.raises(ConfigError, match="scorer 'nope' is unknown"):
        evaluation("mine=w.csv", scorer="nope")


def test_judge_type_prompt_and_rubric(folder: Path) -> None:
    big: dict[str, Any] = {"judge": "Big", "judge_endpoints": (URL,)}
    Path("rubric.txt").write_text("Be kind.\n")
    graded = evaluation("mine=w.csv", judge_rubric="rubric.txt", **big).scores.judges
    assert (graded.type, graded.rubric_text, graded.domains) == ("rubric", "Be kind.", ())
    prompted = evaluation("mine=w.csv", judge_prompt="Judge it.", **big).scores.judges
    assert (prompted.type, prompted.prompt_text, prompted.domains) == ("correctness", "Judge it.", ("qa",))
    assert evaluation("mine=w.csv", "gsm8k=w.csv", **big).scores.judges.domains == ("math",)
    picked = evaluation("mine=w.csv", best_of=3, **big)
    assert (picked.scores.best_of.model, picked.scores.best_of.attempts) == ("judge", 3)
    assert picked.rollouts.samples_per_question == 3
    assert evaluation("mine=w.csv", best_of=3, samples=8, **big).rollouts.samples_per_question == 8
    Path("own.toml").write_text("rollouts.samples_per_question = 8\n")
    asked = EvalOptions(model="m", endpoints=(URL,), benchmarks=("mine=w.csv",), best_of=3, **big)
    assert evaluation_config(asked, "outputs", "r", [Path("own.toml")]).rollouts.samples_per_question == 8
    with pytest.raises(ConfigError, match="--best-of 3 needs as many rollouts per question"):
        evaluation("mine=w.csv", best_of=3, samples=2, **big)
    with pytest.raises(ConfigError, match="--best-of needs a judge"):
        evaluation("mine=w.csv", best_of=3)
    with pytest.raises(ConfigError, match="--judge-type, --judge-prompt and --judge-rubric need a judge"):
        evaluation("mine=w.csv", judge_rubric="Be kind.")


def test_options_make_the_configuration_that_a_file_would(folder: Path) -> None:
    Path("own.toml").write_text(
        '[[questions.sources]]\npath = "w.csv"\ndataset = "mine"\ndomain = "qa"\nsplit = "heldout"\nlimit = 500\n'
    )
    asked = EvalOptions(model="m", endpoints=(URL,))
    by_file = evaluation_config(asked, "outputs", "r", [Path("own.toml")])
    given = [json.loads(config.questions.model_dump_json()) for config in (by_file, evaluation("mine=w.csv"))]
    assert given[0] == given[1]
