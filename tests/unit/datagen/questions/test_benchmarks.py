"""The benchmarks that are known: their files are read, and a configuration adds to them."""

from __future__ import annotations

import json
import logging
import tomllib
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.tables.benchmark_rows import SAMPLES, Row
from support.tables.questions_bench import GOOD, Bench, write_jsonl

from treadle.core.answers.rules import score_answer
from treadle.core.config import load_config, validate
from treadle.core.errors import ConfigError
from treadle.core.runs.execute import execute, fingerprint_of, planned_action
from treadle.datagen.questions.benchmarks import RULES, best_fit, read_benchmarks, rule_for
from treadle.datagen.questions.source_rows import with_digests
from treadle.datagen.questions.sources import QuestionsSettings
from treadle.tasks.config import TreadleConfig

MINE = {"domain": "qa", "question": ["Frage", "frage"], "answer": "Antwort", "choice_columns": ["a", "b"]}
ROWS = (
    {"Frage": "Which river flows through Vorna?", "Antwort": "Ilme"},
    {"frage": "Which hill is highest?", "Antwort": "Arn", "a": "Tesk", "b": "Arn"},
)

IN_CHINESE = {"webwalker", "xbench", "csbench"}
"""Benchmarks that are in Chinese in whole or in part; their F1 is taken over characters."""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def write_rows(path: Path, rows: tuple[Row, ...]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".json":
        path.write_bytes(orjson.dumps(rows))
    else:
        write_jsonl(path, rows)
    return path


@pytest.mark.covers("evaluation-29")
@pytest.mark.parametrize(
    ("name", "file"),
    [
        *((name, "test.jsonl") for name in SAMPLES if name != "mmlu-pro"),
        ("amc23", "test.json"),
        ("mmlu-pro", "test-00000-of-00001.parquet"),
    ],
)
def test_reads_the_rows_of_every_benchmark(bench: Bench, name: str, file: str) -> None:
    sample = SAMPLES[name]
    result = bench.take({"path": write_rows(bench.folder / name / file, sample.rows), "dataset": name})
    assert result.quarantine == []
    assert [row["answers"] for row in result.questions] == list(sample.answers)
    asked = [row.get("question") or row.get("problem") or row.get("Question") for row in sample.rows]
    assert [row["question"] for row in result.questions] == asked
    for taken, row in zip(result.questions, sample.rows, strict=True):
        choices = row.get("options") or [row[letter] for letter in "ABCD" if letter in row]
        assert (taken["choices"], taken["domain"]) == (choices, "choice" if choices else sample.domain)
        rest = json.loads(taken["meta"])
        assert set(rest) <= set(row)
        assert "Format" not in row or rest["Format"] == row["Format"]
        scorer = None if choices or name not in IN_CHINESE else "qa_characters"
        found = (taken["format"], taken["scorer"], taken["search"])
        assert found == (_format(row, choices, name), scorer, sample.search)


def _format(row: Row, choices: list[str], name: str) -> str | None:
    known = {"Assertion": "assertion", "Fill-in-the-blank": "fill_in", "Open-ended": "open_ended"}
    return "multiple_choice" if choices or name == "gpqa" else known.get(row.get("Format", ""))


@pytest.mark.covers("evaluation-29")
def test_parquet_rows_keep_up_to_ten_options(bench: Bench) -> None:
    path = write_rows(bench.folder / "mmlu-pro" / "test-00000-of-00001.parquet", SAMPLES["mmlu-pro"].rows)
    ten, *_ = bench.take({"path": path, "dataset": "mmlu-pro"}).questions
    assert (len(ten["choices"]), ten["answers"], ten["domain"], ten["format"]) == (
        10,
        ["J"],
        "choice",
        "multiple_choice",
    )
    assert [score_answer(said, ten["answers"], ten["choices"], ten["domain"]).score for said in ("J", "(J)", "A")] == [
        1,
        1,
        0,
    ]


@pytest.mark.covers("evaluation-29")
@pytest.mark.parametrize("name", SAMPLES)
def test_gold_answers_of_every_benchmark_score_correct_and_others_wrong(bench: Bench, name: str) -> None:
    path = write_rows(bench.folder / f"{name}.jsonl", SAMPLES[name].rows)
    for row in bench.take({"path": path}).questions:
        rule = row["scorer"] or row["domain"]
        assert all(score_answer(gold, row["answers"], row["choices"], rule).score == 1.0 for gold in row["answers"])
        assert score_answer("xyzzy", row["answers"], row["choices"], rule).score == 0.0


def test_custom_benchmark_uses_character_f1(bench: Bench) -> None:
    row = {"question": "\u54ea\u91cc?", "answer": "\u4e94\u7ea7\u5927\u98ce"}
    path = write_rows(bench.folder / "mine.jsonl", (row,))
    own = {"mine": {"domain": "qa", "scorer": "qa_characters"}}
    (asked,) = bench.take({"path": path}, benchmarks=own).questions
    assert (asked["domain"], asked["scorer"]) == ("qa", "qa_characters")
    said = "\u4e94\u7ea7\u98ce"
    assert score_answer(said, asked["answers"], [], asked["scorer"]).score == pytest.approx(6 / 7)
    assert score_answer(said, asked["answers"], [], asked["domain"]).score == 0.0


@pytest.mark.covers("evaluation-29")
def test_choice_is_correct_by_its_letter_in_any_notation(bench: Bench) -> None:
    rows = [{"question": "Which?", "options": ["w", "x"], "answer": "A"}]
    (asked,) = bench.take({"path": write_rows(bench.folder / "mmlu-pro.json", tuple(rows))}).questions
    said = [score_answer(text, asked["answers"], asked["choices"], asked["domain"]).score for text in ("A", "B", "(A)")]
    assert said == [1.0, 0.0, 1.0]


@pytest.mark.covers("evaluation-29")
@pytest.mark.parametrize("file", ["test.jsonl", "test-00000-of-00001.parquet"])
def test_folder_is_read_like_a_hub_dataset(bench: Bench, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(bench.folder / "hf"))
    sample = SAMPLES["mmlu-pro"]
    folder = write_rows(bench.folder / "mmlu-pro" / file, sample.rows).parent
    result = bench.take({"path": folder, "hub_split": "test"})
    assert [row["answers"] for row in result.questions] == list(sample.answers)
    assert [row["choices"] for row in result.questions] == [row["options"] for row in sample.rows]
    assert {(row["dataset"], row["format"]) for row in result.questions} == {("mmlu-pro", "multiple_choice")}


def test_published_routes_are_registered() -> None:
    local = {name for name, benchmark in RULES.items() if benchmark.search == "local"}
    named = {"2wiki", "bamboogle", "musique", "hotpotqa", "csbench", "nq", "popqa", "triviaqa"}
    assert local == named | {"2wikimultihopqa", "2wikimqa", "hotpot_qa", "trivia_qa"}
    assert {RULES[name].search for name in RULES.keys() - local} == {rule_for("unheard-of").search} == {"web"}


def test_the_headline_suite_is_six_benchmarks() -> None:
    suite = ("aime24", "amc23", "math500", "2wiki", "bamboogle", "musique")
    assert all(rule_for(name).headline for name in suite)
    others = set(SAMPLES) - set(suite) | {"aime", "aime2025", "math", "hotpot_qa", "gsm8k-train", "unheard-of"}
    assert [name for name in others if rule_for(name).headline] == []
    aliases = {
        "aime24": ("aime2024", "aime_2024", "aime-2024"), "amc23": ("amc-23", "amc_23", "amc2023"),
        "math500": ("math-500", "math_500"), "2wiki": ("2wikimultihopqa", "2wikimqa"),
    }  # fmt: skip
    named = {alias: name for name, others in aliases.items() for alias in others}
    assert {name for name, benchmark in RULES.items() if benchmark.headline} == {*suite, *named}
    for alias, name in named.items():
        assert set(RULES[alias].question) == set(RULES[name].question), alias
        assert RULES[alias].model_copy(update={"question": RULES[name].question}) == RULES[name], alias
    assert RULES["olympiad_bench"] == RULES["olympiadbench"] and RULES["webwalkerqa"] == RULES["webwalker"]


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("AIME_2024", "aime_2024"), ("aime_2023", "aime"), ("AMC-23", "amc-23"), ("WebWalkerQA", "webwalkerqa"),
        ("maxwell-aime24-x", "aime24"), ("claimeval", None), ("aimed", None),
        ("math-500", "math-500"), ("mathematics", None), ("math_train", "math"), ("MMLU-Pro", "mmlu-pro"),
        ("mmlu_pro_test", "mmlu_pro"), ("my-mmlu-pro", "mmlu-pro"), ("mmlu-redux", "mmlu"), ("my-gsm8k", None),
        ("2wikimultihopqa_dev", "2wikimultihopqa"), ("", None),
    ],
)  # fmt: skip
def test_longest_matching_benchmark_name_wins(dataset: str, name: str | None) -> None:
    assert best_fit(dataset, RULES) == name


def test_custom_benchmarks_match_before_shorter_shipped_ones() -> None:
    own = validate(QuestionsSettings, {"benchmarks": {"aime-hard": MINE, "vorna": {**MINE, "contains": True}}})
    assert own.benchmark_of("aime-hard-v2").answer == ("Antwort",)
    assert own.benchmark_of("the-vorna-set").answer == ("Antwort",)
    assert own.benchmark_of("aime-hardly").answer == ("answer",) == own.benchmark_of("vornas").answer


def test_format_and_scorer_of_a_custom_benchmark_are_kept_with_its_questions(bench: Bench) -> None:
    path = write_jsonl(
        bench.folder / "mine.jsonl", [*ROWS, {"Frage": "Is it so?", "Antwort": "yes", "art": "true/false"}]
    )
    mine = {**MINE, "format": "open_ended", "format_field": "art", "scorer": "math"}
    result = bench.take({"path": path}, benchmarks={"mine": mine})
    assert [(row["format"], row["scorer"], row["domain"]) for row in result.questions] == [
        ("open_ended", "math", "qa"),
        ("open_ended", None, "choice"),
        ("assertion", "math", "qa"),
    ]


@pytest.mark.covers("evaluation-29")
def test_boolean_and_letter_answers_are_scored_by_their_rules(bench: Bench) -> None:
    path = write_rows(bench.folder / "csbench.jsonl", SAMPLES["csbench"].rows)
    option, true, *_ = bench.take({"path": path}).questions

    def em(prediction: str, question: dict[str, Any]) -> float:
        return score_answer(prediction, question["answers"], question["choices"], question["domain"]).parts["em"]

    assert (em("true", true), em("True", true), em("false", true)) == (1.0, 1.0, 0.0)
    assert (em("C", option), em("(C)", option), em("AVL", option), em("B", option)) == (1.0, 1.0, 1.0, 0.0)


def test_first_of_several_final_answers_counts(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "olympiadbench.jsonl", [{"question": "Solve it.", "final_answer": ["4", "5"]}])
    assert bench.take({"path": path}).questions[0]["answers"] == ["4"]


def test_every_shipped_benchmark_has_a_domain_and_a_lower_case_name() -> None:
    assert all(benchmark.domain for benchmark in RULES.values())
    assert [name for name in RULES if name != name.lower()] == []


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[gsm8k\n", "bad.toml cannot be used: not valid TOML"),
        ('[gsm8k]\nanwser = "a"\n', "in .*bad.toml: unknown config key 'gsm8k.anwser'; did you mean 'answer'"),
        ('[gsm8k]\nsearch = "paper"\n', "bad.toml: config key 'gsm8k.search': .*'local', 'web' or 'both'"),
        ("gsm8k = 1\n", "bad.toml: config key 'gsm8k': "),
    ],
)
def test_invalid_benchmark_file_is_named_with_its_key(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(ConfigError, match=match):
        read_benchmarks(tmp_path / "bad.toml")


def test_custom_benchmark_may_be_in_its_own_config_file(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "mine.jsonl", ROWS)
    (tmp_path / "run.toml").write_text(f"[[questions.sources]]\npath = {str(path)!r}\n")
    (tmp_path / "mine.toml").write_text('[questions.benchmarks.mine]\ndomain = "qa"\nquestion = "Frage"\n')
    settings = load_config(TreadleConfig, [tmp_path / "run.toml", tmp_path / "mine.toml"]).questions
    assert settings.benchmark_of("mine").question == ("Frage",)
    (tmp_path / "wrong.toml").write_text('[questions.benchmarks.mine]\nanwser = "Antwort"\n')
    with pytest.raises(ConfigError, match=r"'questions.benchmarks.mine.anwser'; did you mean 'answer'.*wrong.toml"):
        load_config(TreadleConfig, [tmp_path / "run.toml", tmp_path / "wrong.toml"])
    with pytest.raises(ConfigError, match="domain of data set 'mine' is not known"):
        with_digests(load_config(TreadleConfig, [tmp_path / "run.toml"]).questions)


def test_custom_benchmark_rows_become_questions(bench: Bench) -> None:
    path = write_jsonl(bench.folder / "mine.jsonl", ROWS)
    result = bench.take({"path": path}, benchmarks={"mine": MINE})
    assert [(row["question"], row["answers"], row["choices"], row["domain"]) for row in result.questions] == [
        ("Which river flows through Vorna?", ["Ilme"], [], "qa"),
        ("Which hill is highest?", ["B"], ["Tesk", "Arn"], "choice"),
    ]


def test_custom_benchmark_replaces_its_namesake_and_matches_longer_names(bench: Bench) -> None:
    own = validate(QuestionsSettings, {"benchmarks": {"gsm8k": {"domain": "math"}, "gsm8k-hard": MINE}})
    assert own.benchmark_of("GSM8K-train").answer_form == "plain"
    assert own.benchmark_of("gsm8k-hard-v2").answer == ("Antwort",)
    assert own.benchmark_of("math500") == RULES["math500"]


def test_training_questions_are_decontaminated_against_a_custom_benchmark(bench: Bench) -> None:
    asked = "Which of the two rivers that meet below the old bridge of Vorna is the longer one?"
    held = write_jsonl(bench.folder / "mine.jsonl", [{"Frage": asked, "Antwort": "Ilme"}])
    path = write_jsonl(bench.folder / "q.jsonl", [{"question": asked, "answer": "Ilme"}, GOOD])
    result = bench.take({"path": path, "domain": "qa"}, benchmarks={"mine": MINE}, decontaminate=[{"path": held}])
    assert result.reasons == [(1, "contaminated")]


@pytest.mark.parametrize(
    ("benchmarks", "match"),
    [
        ({"mine": {"anwser": "a"}}, r"unknown config key 'benchmarks.mine.anwser'; did you mean 'answer'"),
        ({"mine": {"domain": "Maths!"}}, r"'benchmarks.mine.domain': .*pattern"),
        ({"mine": {"search": "paper"}}, r"'benchmarks.mine.search': .*'local', 'web' or 'both'"),
        ({"mine": {"question": []}}, r"'benchmarks.mine.question': .*at least 1 item"),
        ({"mine": {"answer": [""]}}, r"'benchmarks.mine.answer.0': .*at least 1 character"),
        ({"Mine": {}}, r"name 'Mine' must be in lower case; write 'mine'"),
    ],
)
def test_invalid_benchmark_is_refused_with_its_key_and_the_allowed_values(
    benchmarks: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        validate(QuestionsSettings, {"benchmarks": benchmarks})


def test_custom_benchmarks_are_part_of_the_fingerprint(bench: Bench) -> None:
    source = {"path": write_jsonl(bench.folder / "mine.jsonl", ROWS), "domain": "qa", "question_field": "Frage"}
    plain = bench.instance(source, benchmarks={})
    execute(bench.instance(source, benchmarks={"mine": MINE}), bench.run)
    assert planned_action(bench.instance(source, benchmarks={"mine": MINE}), bench.run) == "reuse"
    changed = bench.instance(source, benchmarks={"mine": {**MINE, "answer": "answer"}})
    assert planned_action(changed, bench.run) == "run"
    assert fingerprint_of(changed, {}) != fingerprint_of(plain, {})


@pytest.mark.parametrize("search", ["web", "both"])
def test_disallowed_search_is_warned_about_once(bench: Bench, caplog: pytest.LogCaptureFixture, search: str) -> None:
    path = write_jsonl(bench.folder / "mine.jsonl", ROWS[:1])
    with caplog.at_level(logging.WARNING):
        bench.take({"path": path}, benchmarks={"mine": {**MINE, "search": search}, "near": {"search": "local"}})
    (told,) = caplog.messages
    assert told == (
        f'questions.benchmarks.mine: search = "{search}" takes effect only if environment.search.web is set; without '
        "it all questions are searched in the corpus"
    )


def test_shipped_file_is_packaged() -> None:
    root = Path(__file__).resolve().parents[4]
    setuptools = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "*.toml" in setuptools["package-data"]["*"]
    assert (root / setuptools["package-dir"]["treadle.datagen"] / "questions" / "benchmarks.toml").exists()
