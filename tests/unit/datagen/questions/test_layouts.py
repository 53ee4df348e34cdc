"""Rows as published: question, all accepted answers and options are found by the row's fields."""

from __future__ import annotations

import base64
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.tables.questions_bench import GOOD, Bench, Result, write_jsonl

from treadle.core.errors import DataError, StageFailed
from treadle.core.untrusted.input_files import InputRow
from treadle.datagen.questions.layouts import RowRejected
from treadle.datagen.questions.row_reader import read_options, shuffled
from treadle.datagen.questions.rows import ParsedQuestion, parse_row
from treadle.datagen.questions.sources import QuestionsSettings, SourceSettings

Row = dict[str, Any]
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nHow far?\n\nRemember to put your answer "
    'on its own line after "Answer:".'
)


def read(row: Row, dataset: str = "rows", **source: Any) -> ParsedQuestion:
    """Return the question in a row of a data set of that name."""
    named = SourceSettings(path=Path("rows.jsonl"), dataset=dataset, **{"domain": "qa", **source})
    return parse_row(InputRow(1, row), named, QuestionsSettings())


MILL = "Ann ran to the mill, and Ben went on to the sea."


def asked(text: str, *before: Row) -> list[Row]:
    return [*before, {"role": "user", "content": text}]


TARGET = '{"target": ["a", "b"], "question": "Q?"}'


PLAIN: list[tuple[str, Row, str, list[str]]] = [
    (
        "musique",
        {"id": "2hop", "paragraphs": [], "question": "Q?", "answer": "Ilme", "answer_aliases": ["River Ilme", "Ilme"]},
        "Q?",
        ["Ilme", "River Ilme"],
    ),
    (
        "flashrag",
        {"id": "test_0", "question": "Q?", "golden_answers": ["a", "b", "a"], "metadata": {}},
        "Q?",
        ["a", "b"],
    ),
    ("nq", {"question": "Q?", "answer": "a", "golden_answers": ["b", "a"]}, "Q?", ["a", "b"]),
    ("bamboogle", {"Question": "Q?", "Answer": "Ilme"}, "Q?", ["Ilme"]),
    ("aime_2024", {"ID": "2024-I-1", "Problem": "P", "Solution": "S", "Answer": 204}, "P", ["204"]),
    ("aime", {"ID": "1", "Year": 1983, "Problem Number": 1, "Question": "P", "Answer": "060"}, "P", ["060"]),
    ("numina_math_cot", {"source": "aops", "problem": "P", "solution": r"\boxed{1} so \boxed{2}"}, "P", ["2"]),
    (
        "numinamath-tir",
        {"problem": "P", "solution": r"\boxed{7}", "messages": [*asked("P"), {"role": "assistant", "content": "7"}]},
        "P",
        ["7"],
    ),
    ("math", {"problem": "P", "level": "Level 5", "type": "Algebra", "solution": r"so $\boxed{x}$."}, "P", ["x"]),
    ("math-500", {"problem": "P", "solution": r"\boxed{4}", "answer": "3", "unique_id": "t/1.json"}, "P", ["3"]),
    ("dapo-math-17k", {"prompt": asked(DAPO), "reward_model": {"ground_truth": "34"}}, "How far?", ["34"]),
    ("dapo", {"prompt": "P", "solution": "34", "source_prompt": asked(DAPO), "ability": "MATH"}, "P", ["34"]),
    (
        "search-r1",
        {
            "prompt": asked("Answer this: Q?"),
            "question": "Q?",
            "reward_model": {"ground_truth": {"target": ["a", "b"]}},
        },
        "Q?",
        ["a", "b"],
    ),
    (
        "nq",
        {"prompt": asked("Answer: Q?"), "extra_info": {"question": "Q?"}, "reward_model": {"ground_truth": TARGET}},
        "Q?",
        ["a", "b"],
    ),
    ("set", {"prompt": asked("P"), "reward_model": {"ground_truth": '{"x": 1}'}}, "P", ['{"x": 1}']),
    (
        "verl",
        {
            "data_source": "openai/gsm8k",
            "prompt": asked('P Let\'s think step by step and output the final answer after "####".'),
            "reward_model": {"style": "rule", "ground_truth": "72"},
        },
        "P",
        ["72"],
    ),
    ("skywork", {"prompt": asked("P"), "reward_model": {"ground_truth": '["1/2"]'}}, "P", ["1/2"]),
    ("interval", {"prompt": asked("P"), "reward_model": {"ground_truth": "[0, 1]"}}, "P", ["[0, 1]"]),
    (
        "system",
        {"prompt": asked("Q?", {"role": "system", "content": "Think."}), "reward_model": {"ground_truth": "a"}},
        "Q?",
        ["a"],
    ),
    ("parts", {"prompt": asked([{"type": "text", "text": "Q?"}]), "answer": "a"}, "Q?", ["a"]),  # type: ignore[arg-type]
    ("openr1", {"problem": "P", "solution": "S", "answer": "5", "question_type": "math-word-problem"}, "P", ["5"]),
    ("deepscaler", {"problem": "P", "answer": "5", "solution": r"\boxed{6}"}, "P", ["5"]),
    ("big-math", {"problem": "P", "answer": "5", "source": "orca", "llama8b_solve_rate": 0.5}, "P", ["5"]),
    ("openmathreasoning", {"problem": "P", "expected_answer": "5", "generated_solution": "S"}, "P", ["5"]),
    ("gsm8k-copy", {"question": "P", "answer": "9 + 9 = 18\n#### 18"}, "P", ["18"]),
    ("hotpotqa", {"id": "5", "question": "Q?", "answer": "yes", "type": "comparison", "context": {}}, "Q?", ["yes"]),
    (
        "2wikimultihopqa",
        {"_id": "a", "question": "Q?", "answer": "NYC", "answer_id": "Q60", "evidences": [["a", "b", "c"]]},
        "Q?",
        ["NYC"],
    ),
    ("nq_open", {"question": "q", "answer": ["a", "b"]}, "q", ["a", "b"]),
    (
        "natural_questions",
        {
            "question": {"text": "q", "tokens": ["q"]},
            "annotations": {"short_answers": [{"text": ["a"]}, {"text": []}, {"text": ["b", "a"]}]},
        },
        "q",
        ["a", "b"],
    ),
    (
        "triviaqa",
        {"question": "Q?", "answer": {"value": "a", "aliases": ["b", "a"], "normalized_aliases": ["b"]}},
        "Q?",
        ["a", "b"],
    ),
    ("popqa", {"obj": "a", "question": "Q?", "possible_answers": '["a", "b"]'}, "Q?", ["a", "b"]),
    ("simpleqa", {"metadata": "{}", "problem": "Q?", "answer": "a"}, "Q?", ["a"]),
    ("web_questions", {"url": "u", "question": "q", "answers": ["a", "b"]}, "q", ["a", "b"]),
    (
        "squad",
        {"question": "q", "context": MILL, "answers": {"text": ["a", "a"], "answer_start": [1, 1]}},
        f"{MILL}\n\nq",
        ["a"],
    ),
    ("boolq", {"question": "is it", "passage": MILL, "answer": True}, f"{MILL}\n\nis it", ["True"]),
    ("coqa-flat", {"story": MILL, "question": "Who?", "answer": "Ann"}, f"{MILL}\n\nWho?", ["Ann"]),
    ("longbench", {"input": "Who?", "context": MILL, "answers": ["Ann"]}, f"{MILL}\n\nWho?", ["Ann"]),
    ("no passage", {"question": "Who?", "passage": None, "context": " ", "answer": "Ann"}, "Who?", ["Ann"]),
    ("whole prompt", {"prompt": f"{MILL} Who?", "context": MILL, "answer": "Ann"}, f"{MILL} Who?", ["Ann"]),
    ("hotpotqa-text", {"question": "Who?", "context": MILL, "answer": "Ann"}, "Who?", ["Ann"]),
    ("paragraphs", {"question": "Who?", "context": [["Ann", ["Ann ran."]]], "answer": "Ann"}, "Who?", ["Ann"]),
    ("as text", {"question": "Who?", "context": '[["Ann", ["Ann ran."]]]', "answer": "Ann"}, "Who?", ["Ann"]),
    ("my_svamp", {"Body": "Ann has 3.", "Question": "How many?", "Answer": 3.0}, "Ann has 3. How many?", ["3.0"]),
    ("my_asdiv", {"body": "Ann has 3.", "question": "How many?", "answer": "3"}, "Ann has 3. How many?", ["3"]),
    ("svamp", {"Body": "Ann has 3.", "Question": "How many?", "Answer": 3}, "Ann has 3. How many?", ["3"]),
    ("alpaca", {"instruction": "Add them.", "input": "2, 3", "answer": "5"}, "Add them.\n\n2, 3", ["5"]),
    ("no input", {"instruction": "Add 2 and 3.", "input": "", "answer": "5"}, "Add 2 and 3.", ["5"]),
    ("no input", {"instruction": "Add 2 and 3.", "answer": "5"}, "Add 2 and 3.", ["5"]),
    ("for an agent", {"instruction": "Be short.", "question": "Who?", "answer": "Ann"}, "Who?", ["Ann"]),
    ("mgsm", {"question": "Q?", "answer": None, "answer_number": 11}, "Q?", ["11"]),
    ("worked-usd", {"question": "P", "answer": "Ann pays.\n#### $1,234"}, "P", ["1234"]),
    ("worked-fraction", {"question": "P", "answer": "Ann eats.\n#### 1/2"}, "P", ["1/2"]),
    ("worked-share", {"question": "P", "answer": "Ann eats.\n#### 12%"}, "P", ["12%"]),
    ("gsm8k", {"question": "P", "answer": "Ann eats.\n#### 1/2"}, "P", ["1/2"]),
    ("gsm8k", {"question": "P", "answer": "Ann pays.\n#### $12"}, "P", ["12"]),
    ("worked", {"prompt": "P", "solution": "Ann eats.\n#### 12"}, "P", ["12"]),
    ("short", {"prompt": "P", "solution": r"x = \frac{1}{2}"}, "P", [r"x = \frac{1}{2}"]),
    ("gaia", {"task_id": "t", "Question": "Q?", "Level": 1, "Final answer": "17", "file_name": ""}, "Q?", ["17"]),
    ("hle", {"id": "6", "question": "Q?", "image": "", "answer": "a", "canary": "BENCHMARK: x"}, "Q?", ["a"]),
    ("webwalkerqa", {"question": "Q?", "answer": "a", "root_url": "u", "info": {}}, "Q?", ["a"]),
    (
        "asy",
        {"problem": "P [asy] draw((0,0)--(1,1)); [/asy]", "answer": "1"},
        "P [asy] draw((0,0)--(1,1)); [/asy]",
        ["1"],
    ),
]


@pytest.mark.parametrize(("dataset", "row", "question", "answers"), PLAIN, ids=[case[0] for case in PLAIN])
def test_question_and_all_accepted_answers_are_found(dataset: str, row: Row, question: str, answers: list[str]) -> None:
    found = read(row, dataset)
    assert (found.question, list(found.answers), found.choices) == (question, answers, ())


OPTIONS: list[tuple[str, Row, list[str], str]] = [
    (
        "mmlu",
        {"question": "Q", "choices": ["w", "x", "y", "z"], "answer": 2, "subject": "s"},
        ["w", "x", "y", "z"],
        "C",
    ),
    ("mmlu-copy", {"question": "Q", "choices": ["4", "2", "8", "1"], "answer": 2}, ["4", "2", "8", "1"], "C"),
    ("numbers", {"question": "Q", "choices": [4, 2, 8, 1], "answer": 2}, ["4", "2", "8", "1"], "B"),
    ("arc", {"question": "Q", "choices": {"text": ["w", "x"], "label": ["A", "B"]}, "answerKey": "B"}, ["w", "x"], "B"),
    (
        "arc-1",
        {"question": "Q", "choices": {"text": ["w", "x"], "label": ["1", "2"]}, "answerKey": "1"},
        ["w", "x"],
        "A",
    ),
    (
        "commonsense_qa",
        {"question": "Q", "choices": {"label": ["A", "B", "C"], "text": ["w", "x", "y"]}, "answerKey": "C"},
        ["w", "x", "y"],
        "C",
    ),
    (
        "openbookqa",
        {"question_stem": "Q", "choices": {"text": ["w", "x"], "label": ["A", "B"]}, "answerKey": "A"},
        ["w", "x"],
        "A",
    ),
    ("flashrag-mmlu", {"question": "Q", "golden_answers": [1], "choices": ["w", "x"]}, ["w", "x"], "B"),
    (
        "medqa",
        {"question": "Q", "options": {"A": "w", "B": "x", "C": None}, "answer": "x", "answer_idx": "B"},
        ["w", "x"],
        "B",
    ),
    ("medmcqa", {"question": "Q", "opa": "w", "opb": "x", "opc": "y", "opd": "z", "cop": 3}, ["w", "x", "y", "z"], "D"),
    (
        "pairs",
        {"question": "Q", "options": [{"key": "A", "value": "w"}, {"key": "B", "value": "x"}], "answer": "B"},
        ["w", "x"],
        "B",
    ),
    ("supergpqa", {"question": "Q", "options": ["w", "x"], "answer": "x", "answer_letter": "B"}, ["w", "x"], "B"),
    (
        "lsat",
        {"passage": None, "question": "Q", "options": ["(A)w", "(B)x"], "label": "B", "other": None},
        ["(A)w", "(B)x"],
        "B",
    ),
    ("aqua", {"question": "Q", "options": ["A)21", "B)22"], "correct": "B"}, ["A)21", "B)22"], "B"),
    ("as-text", {"question": "Q", "choices": '["w", "x"]', "answer": "A"}, ["w", "x"], "A"),
]


@pytest.mark.parametrize(("dataset", "row", "choices", "letter"), OPTIONS, ids=[case[0] for case in OPTIONS])
def test_options_are_parsed_in_published_formats(dataset: str, row: Row, choices: list[str], letter: str) -> None:
    found = read(row, dataset)
    assert (found.question, list(found.choices), found.answers, found.domain) == ("Q", choices, (letter,), "choice")


def test_passage_is_placed_before_the_question_with_its_options() -> None:
    race = {"article": MILL, "question": "Who?", "options": ["Ann", "Ben"], "answer": "A", "example_id": "1"}
    found = read(race, "race")
    assert (found.question, found.choices, found.answers) == (f"{MILL}\n\nWho?", ("Ann", "Ben"), ("A",))
    assert json.loads(found.meta) == {"example_id": "1"}
    assert read(race, "race", question_field="question").question == "Who?"


@pytest.mark.parametrize(
    "more",
    [
        {"article": "5"}, {"article": 17}, {"story": {"id": 3}}, {"paragraph": ["Ann ran."]}, {"body": "celestial"},
        {"body": "the human body"}, {"context": "Geography of Europe"}, {"passage": '["p17", "p18"]'},
        {"body": "Ann has 3."}, {"passage": MILL},
    ],
)  # fmt: skip
def test_ids_titles_and_the_answer_are_not_placed_before_the_question(more: Row) -> None:
    found = read({"question": "Who?", "answer": ["Ann", MILL.upper(), "ann has 3."], **more})
    assert found.question == "Who?"


def test_benchmark_is_decontaminated_with_and_without_its_passage(tmp_path: Path) -> None:
    squad = {"question": "Who ran?", "context": MILL, "answers": {"text": ["Ann"]}}
    other = {**squad, "context": "Ben ran to the sea, where he met his three sisters.", "answers": {"text": ["Ben"]}}
    benchmark = write_jsonl(tmp_path / "squad.jsonl", [squad])
    path = write_jsonl(tmp_path / "q.jsonl", [GOOD, squad, {"question": "who ran?", "answer": "Ann"}, other])
    result = Bench(tmp_path).take({"path": path, "domain": "qa"}, decontaminate=[{"path": benchmark}])
    assert result.reasons == [(2, "contaminated"), (3, "contaminated")]
    assert [row["question"] for row in result.questions][1:] == [
        "Ben ran to the sea, where he met his three sisters.\n\nWho ran?"
    ]


def gpqa(question: str) -> Row:
    return {
        "Record ID": "r", "Pre-Revision Question": "no", "Question": question, "Correct Answer": "right\n",
        **{f"Incorrect Answer {number}": f"wrong {number}" for number in (1, 2, 3)},
    }  # fmt: skip


def test_correct_gpqa_option_appears_at_every_position() -> None:
    places = Counter()
    for number in range(400):
        found = read(gpqa(f"Question {number}?"), "gpqa")
        assert found.choices["ABCD".index(found.answers[0])] == "right"
        assert sorted(found.choices) == ["right", "wrong 1", "wrong 2", "wrong 3"]
        places[found.answers[0]] += 1
    assert set(places) == set("ABCD") and max(places.values()) < 140


def test_shuffled_options_depend_only_on_question_and_texts() -> None:
    options = shuffled("Q?", "a", ["b", "c", "d"])
    assert options == shuffled("Q?", "a", ["d", "b", "c"])
    assert (
        read({"question": "Q?", "correct_answer": "a", "incorrect_answers": ["c", "b", "d"]}).choices == options.texts
    )
    assert len({shuffled(f"Q{number}?", "a", ["b", "c", "d"]).texts for number in range(100)}) == 24
    with pytest.raises(RowRejected, match="'a' is also among the wrong options"):
        shuffled("Q?", "a", ["b", "a"])
    letters = shuffled("Q?", "B", ["A", "C", "D"])
    assert letters.texts["ABCD".index(letters.right)] == "B"


REFUSED: list[tuple[str, Row, str, str]] = [
    (
        "question is unknown",
        {"ask": "Q?", "answer": "a"},
        "missing_field",
        "in any known field; it has 'ask', 'answer'",
    ),
    (
        "answer is unknown",
        {"question": "Q?", "response": "a"},
        "missing_field",
        "no answer in any .* 'question', 'response'",
    ),
    (
        "encrypted",
        {"id": 1, "prompt": base64.b64encode(b"\x81 twelve bytes or more").decode(), "answer": "4p8=", "canary": "x"},
        "encrypted",
        "provide decrypted rows; the row has 'id', 'prompt', 'answer', 'canary'",
    ),
    (
        "conversation",
        {"prompt": [*asked("a"), {"role": "assistant", "content": "b"}], "answer": "a"},
        "wrong_type",
        "user, assistant",
    ),
    ("no box", {"problem": "P", "solution": "Thus it holds."}, "no_gold_answer", "neither a box"),
    (
        "proof",
        {"problem": "P", "answer": "proof", "question_type": "proof"},
        "no_gold_answer",
        "'proof' is a placeholder",
    ),
    (
        "hidden answer",
        {"question": "Q", "choices": {"text": ["w", "x"], "label": ["A", "B"]}, "answerKey": ""},
        "empty_answer",
        "no non-empty gold",
    ),
    ("hidden place", {"question": "Q", "choices": ["w", "x"], "answer": -1}, "bad_answer", "'-1' is not an index"),
    (
        "place of nothing",
        {"question": "Q", "cop": 1, "opa": "", "opb": ""},
        "bad_choices",
        "2 options, of which 2 empty",
    ),
    (
        "not an option",
        {"question": "Q", "choices": ["w", "x"], "answer": "v"},
        "bad_answer",
        "'v' matches none of the 2",
    ),
    (
        "options that are no JSON",
        {"question": "Q", "options": "['w', 'x']", "answer": "A"},
        "wrong_type",
        "not valid JSON",
    ),
    (
        "picture",
        {"question": "Q", "image": {"bytes": b"\x89PNG", "path": None}, "answer": "a"},
        "needs_picture",
        "'image'",
    ),
    ("pictures", {"question": "Q", "image_1": None, "image_2": "a.png", "answer": "a"}, "needs_picture", "'image_2'"),
    ("placeholder", {"question": "See <image 1>.", "answer": "a"}, "needs_picture", "'<image 1>'"),
    (
        "placeholder in an option",
        {"question": "Q", "choices": ["<image>", "x"], "answer": "B"},
        "needs_picture",
        "'<image>'",
    ),
    ("markdown", {"problem": "P ![](https://example.org/a.png)", "answer": "a"}, "needs_picture", "https"),
    ("part of a message", {"prompt": asked([{"type": "image_url"}]), "answer": "a"}, "needs_picture", "not text"),  # type: ignore[arg-type]
    ("figure", {"question": "Q", "figure": "a.png", "answer": "a"}, "needs_picture", "'figure'"),
    ("figure's bytes", {"question": "Q", "figure": {"bytes": b"x"}, "answer": "a"}, "needs_picture", "'figure'"),
    ("photos", {"question": "Q", "photos": ["A.JPG"], "answer": "a"}, "needs_picture", "'photos'"),
    ("diagram", {"question": "Q", "diagram": "data:image/png;base64,AA", "answer": "a"}, "needs_picture", "'diagram'"),
    ("said to have one", {"question": "Q", "has_image": True, "answer": "a"}, "needs_picture", "'has_image'"),
    ("preview", {"question": "Q", "image_preview": {"bytes": b"x"}, "answer": "a"}, "needs_picture", "'image_preview'"),
    (
        "worked solution without an answer",
        {"prompt": "What is 2+3?", "solution": "We add two and three. The answer is 5."},
        "no_gold_answer",
        "neither a box nor a last line '#### '",
    ),
    (
        "long line",
        {
            "prompt": "P",
            "solution": "We add two and three and then five and seven and so we come to seventeen in all of it",
        },
        "no_gold_answer",
        "neither a box",
    ),
    (
        "file",
        {"task_id": "t", "Level": 1, "Question": "Q", "file_name": "t.xlsx", "answer": "a"},
        "needs_file",
        "t.xlsx",
    ),
    (
        "nested too deeply",
        {"question": "Q", "answer": "a", "more": json.loads("[" * 800 + "]" * 800)},
        "bad_json",
        "deeply",
    ),
]


@pytest.mark.parametrize(("row", "reason", "detail"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_unknown_layouts_are_refused_with_their_columns(row: Row, reason: str, detail: str) -> None:
    with pytest.raises(RowRejected, match=detail) as refused:
        read(row)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "more",
    [
        {"has_image": False}, {"has_image": "false"}, {"figure": ""}, {"image_preview": None}, {"image": "None"},
        {"image": None}, {"images": []}, {"image": {"bytes": None, "path": None}}, {"image": ""}, {"image": False},
        {"figure": "Napoleon"}, {"photo": "taken in 1920"}, {"has_image": "No."}, {"images": "[]"}, {"video": "0"},
        {"diagram": 3}, {"picture": {"caption": "x"}}, {"audio": "no"}, {"rationale_image": "a.png"},
        {"imagery": "vivid"}, {"file_name": "algebra/1.json"},
    ],
)  # fmt: skip
def test_unrelated_fields_do_not_reject_a_question(more: Row) -> None:
    assert read({"question": "What does the <b> tag do?", "answer": "a", **more}).answers == ("a",)


def test_only_fields_named_by_the_source_are_used() -> None:
    row = {"question": "Q?", "answer": "a", "answer_aliases": ["b"], "options": ["a", "b"], "own": "c"}
    assert read(row, answer_field="own").answers == ("c",)
    assert read(row, answer_field="own").choices == ()
    assert read({**row, "options": None}, answer_field="answer").answers == ("a", "b")
    with pytest.raises(RowRejected, match="no question in field 'ask'; it has"):
        read(row, question_field="ask")
    with pytest.raises(RowRejected, match="no answer in field 'gold'; it has"):
        read(row, answer_field="gold")
    worked = {"question": "Q?", "answer": "It is\n#### 18"}
    assert read(worked, answer_form="plain").answers == ("It is\n#### 18",)


def test_custom_benchmark_names_all_its_fields(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "mine.jsonl", [{"problem": "Q?", "answer": "a"}, {"question": "Q?", "solution": "a"}])
    with pytest.raises(StageFailed, match="no question in field 'question'; it has 'problem', 'answer'"):
        Bench(tmp_path).take({"path": path}, benchmarks={"mine": {"domain": "qa"}})


@pytest.mark.parametrize(
    "value", [{"A": "w", "B": None, "C": "y"}, ["w", None, "y"], {"label": ["A"], "text": "w"}, "w", 3]
)
def test_options_in_other_formats_are_refused(value: Any) -> None:
    with pytest.raises(RowRejected) as refused:
        read_options(value)
    assert refused.value.reason in ("wrong_type", "bad_choices")


def take_pictures(bench: Bench, rows: list[Row]) -> Result:
    return bench.take({"path": write_jsonl(bench.folder / "hle.jsonl", rows)}, max_error_rate=0.1)


def test_rows_that_need_an_image_are_counted_and_reported_not_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    picture = {"question": "What is shown?", "answer": "a", "image": "data:image/png;base64,AAAA"}
    result = take_pictures(Bench(tmp_path), [GOOD, picture, picture])
    assert result.reasons == [(2, "needs_picture"), (3, "needs_picture")]
    assert (result.metrics["reason.needs_picture"], result.metrics["questions"]) == (2, 1)
    assert "hle.jsonl: rows that cannot be asked as text or scored are left out: needs_picture 2" in caplog.messages


def test_source_with_only_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match=r"no row of hle.jsonl can be used: 1 rows, 1 unusable \(needs_picture 1\)"):
        take_pictures(Bench(tmp_path), [{"question": "What is shown?", "answer": "a", "image": "a.png"}])


def test_encrypted_benchmark_cannot_be_decontaminated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    hidden = {"problem": base64.b64encode(bytes(range(40))).decode(), "answer": "AAAA", "canary": "x"}
    benchmark = write_jsonl(tmp_path / "browsecomp.jsonl", [hidden])
    path = write_jsonl(tmp_path / "q.jsonl", [GOOD])
    with pytest.raises(DataError, match="no row with a question; .*row 1: the question is encrypted"):
        Bench(tmp_path).take({"path": path, "domain": "qa"}, decontaminate=[{"path": benchmark}])
