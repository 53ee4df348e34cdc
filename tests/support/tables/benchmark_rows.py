"""A few rows of every benchmark of the evaluation, with the fields of the real files; all contents are invented."""

from __future__ import annotations

from typing import Any, NamedTuple

Row = dict[str, Any]


class Sample(NamedTuple):
    """Rows of one benchmark and their expected accepted answers."""

    domain: str
    search: str
    rows: tuple[Row, ...]
    answers: tuple[list[str], ...]


def _aime24(number: int, problem: str, answer: str) -> Row:
    solution = f"Counting leads to \\boxed{{{answer}}}."
    url = f"https://example.org/{number}"
    return {"id": number, "problem": problem, "solution": solution, "answer": answer, "url": url, "question": problem}


def _olympiad(number: int, question: str, answer: str, kind: str) -> Row:
    return {
        "id": number, "subfield": "Algebra", "context": None, "question": question, "solution": ["By symmetry."],
        "final_answer": [answer], "is_multiple_answer": "," in answer, "unit": None, "answer_type": kind, "error": None,
    }  # fmt: skip


def _gaia(number: int, question: str, answer: str) -> Row:
    return {
        "id": number, "task_id": f"t-{number}", "Question": question, "answer": answer, "Level": number,
        "Annotator_Metadata": {"Steps": "1. Look it up.", "Tools": "browser"},
    }  # fmt: skip


def _csbench(number: int, form: str, question: str, answer: str | bool, **more: Any) -> Row:
    return {
        "ID": number, "Split": "test", "Domain": "Data structures", "SubDomain": "Trees", "Format": form,
        "Tag": "Knowledge", "Language": "English", "Question": question, **more, "Answer": answer,
    }  # fmt: skip


def _mmlu_pro(number: int, question: str, options: list[str], letter: str) -> Row:
    return {
        "question_id": number, "question": question, "options": options, "answer": letter,
        "answer_index": "ABCDEFGHIJ".index(letter), "cot_content": "", "category": "other", "src": "invented",
    }  # fmt: skip


def _asked(*pairs: tuple[str, Any]) -> tuple[Row, ...]:
    return tuple({"question": question, "answer": answer} for question, answer in pairs)


SAMPLES: dict[str, Sample] = {
    "aime24": Sample(
        "math",
        "web",
        (
            _aime24(1, "How many ways has a tram of 9 seats to hold 2 sleepers apart?", "028"),
            _aime24(2, "Find the remainder of $7^{20}$ divided by 1000.", "001"),
            _aime24(3, "A ladder of 85 leans 13 from a wall; how high does it reach?", "084"),
        ),
        (["028"], ["001"], ["084"]),
    ),
    "aime25": Sample(
        "math",
        "web",
        (
            {"problem": "Sum the first 20 odd numbers.", "answer": 400, "id": "0"},
            {"problem": "Count the diagonals of a 12-gon.", "answer": 54, "id": "1"},
            {"problem": "What is the product of the roots of $x^2 - 9x + 14$?", "answer": 14, "id": "2"},
        ),
        (["400"], ["54"], ["14"]),
    ),
    "amc23": Sample(
        "math",
        "web",
        (
            {"id": 0, "question": "A hen lays 3 eggs in 4 days. In 48 days?", "answer": "36", "url": "https://a.test"},
            {"id": 1, "question": "How many edges has a pentagonal prism?", "answer": "15", "url": "https://b.test"},
            {"id": 2, "question": "What is 15 % of 240?", "answer": "36", "url": "https://c.test"},
        ),
        (["36"], ["15"], ["36"]),
    ),
    "math500": Sample(
        "math",
        "web",
        _asked(
            ("Simplify $\\frac{14}{49}$.", "\\frac{2}{7}"),
            ("Solve $|x| = 4$.", "-4, 4"),
            ("Which interval satisfies $x^2 < 9$?", "(-3,3)"),
        ),
        (["\\frac{2}{7}"], ["-4, 4"], ["(-3,3)"]),
    ),
    "gsm8k": Sample(
        "math",
        "web",
        (
            {"question": "Ana bakes 6 trays of 12 rolls. How many?", "answer": "6*12=<<6*12=72>>72\n#### 72", "idx": 0},
            {"question": "A mill sells 1,500 sacks less 266.", "answer": "1500-266=1234\n#### 1,234", "idx": 1},
            {"question": "It is 4 degrees and falls by 9.", "answer": "4-9=-5\n#### -5", "idx": 2},
        ),
        (["72"], ["1234"], ["-5"]),
    ),
    "olympiadbench": Sample(
        "math",
        "web",
        (
            _olympiad(1, "For which $n$ is $2^n = n^2$ besides 2?", "4", "Numerical"),
            _olympiad(2, "Find all pairs with $ab = 6$, $a + b = 5$.", "$(2,3),(3,2)$", "Tuple"),
            _olympiad(3, "Where is $\\sqrt{x-1}$ defined?", "$[1, \\infty)$", "Interval"),
        ),
        (["4"], ["$(2,3),(3,2)$"], ["$[1, \\infty)$"]),
    ),
    "2wiki": Sample(
        "qa",
        "local",
        _asked(
            ("Who is the mother of the builder of Fort Orre?", ["Maud of Tesk", "Lady Maud"]),
            ("Do Vorna and Tesk lie in one county?", ["no"]),
            ("When was the director of Ilme at Dusk born?", ["3 May 1911", "1911", "May 1911"]),
        ),
        (["Maud of Tesk", "Lady Maud"], ["no"], ["3 May 1911", "1911", "May 1911"]),
    ),
    "bamboogle": Sample(
        "qa",
        "local",
        _asked(
            ("Who ruled Vorna when its bridge was opened?", ["osric ii"]),
            ("What is the chief port of the land of the Arn hills?", ["tesk"]),
            ("What did the founder of the Orre mill study?", ["botany"]),
        ),
        (["osric ii"], ["tesk"], ["botany"]),
    ),
    "musique": Sample(
        "qa",
        "local",
        _asked(
            ("Into which sea runs the river by the birthplace of Wynn?", ["Grey Sea", "the Grey Sea"]),
            ("Who owns the label that signed The Larks?", ["Halm Records"]),
            ("How long is the wall round the town of the glass fair?", ["2 miles", "two miles"]),
        ),
        (["Grey Sea", "the Grey Sea"], ["Halm Records"], ["2 miles", "two miles"]),
    ),
    "hotpotqa": Sample(
        "qa",
        "local",
        _asked(
            ("Are Finn Aldo and Bea Holt both painters?", ["yes"]),
            ("Which opera is older, The Miller or Red Fen?", ["Red Fen"]),
            ("What team plays at the park named after Tom Oake?", ["Tesk Rovers"]),
        ),
        (["yes"], ["Red Fen"], ["Tesk Rovers"]),
    ),
    "gaia": Sample(
        "qa",
        "web",
        (
            _gaia(1, "How many bridges does the page on Vorna list?", "17"),
            _gaia(2, "Name two colours of the Tesk flag in order.", "blue, white"),
            _gaia(3, "Whose thesis does the talk of 9 June quote?", "Ida Brandt"),
        ),
        (["17"], ["blue, white"], ["Ida Brandt"]),
    ),
    "popqa": Sample(
        "qa",
        "local",
        (
            {"id": 1, "prop": "author", "question": "Who wrote Orre?", "possible_answers": '["Ida Holt", "I. Holt"]'},
            {"question": "In what land is Tesk?", "answer": ["Vorna", "the Vorna"], "data_source": "popqa"},
        ),
        (["Ida Holt", "I. Holt"], ["Vorna", "the Vorna"]),
    ),
    "browsecomp": Sample(
        "qa",
        "web",
        (
            {"question": "Which mill burned twice?", "answer": "Orre mill", "topic": "History", "canary": "X"},
            {"problem": "Who drew the first map?", "answer": "Ida", "problem_topic": "Art", "canary": "X"},
        ),
        (["Orre mill"], ["Ida"]),
    ),
    "gpqa": Sample(
        "choice",
        "web",
        _asked(
            ("Which ion is larger?\n(A) Na+\n(B) K+\n(C) Li+\n(D) H+", "(B) K+"),
            ("Which decay keeps the mass number?\n(A) alpha\n(B) fission\n(C) beta\n(D) none", "(C) beta"),
            (
                "Which base pairs with adenine in DNA?\n(A) thymine\n(B) guanine\n(C) uracil\n(D) cytosine",
                "(A) thymine",
            ),
        ),
        (["(B) K+"], ["(C) beta"], ["(A) thymine"]),
    ),
    "webwalker": Sample(
        "qa",
        "web",
        _asked(
            ("On what day does the Tesk symposium close?", "It closes on 14 March."),
            ("沃尔纳大学的图书馆周日几点关门?", "下午六点"),
            ("Who chairs the board of the Ilme water office?", "Rosa Lindt"),
        ),
        (["It closes on 14 March."], ["下午六点"], ["Rosa Lindt"]),
    ),
    "simpleqa": Sample(
        "qa",
        "web",
        _asked(
            ("In what year did Orla Penn win the Halm prize?", ["1987"]),
            ("What is the middle name of the Vorna mayor Carl Stein?", ["Emil"]),
            ("How tall is the Tesk lighthouse in metres?", ["41"]),
        ),
        (["1987"], ["Emil"], ["41"]),
    ),
    "xbench": Sample(
        "qa",
        "web",
        _asked(
            ("特斯克灯塔是哪一年建成的?", ["1902年"]),
            ("谁创办了奥雷磨坊?", ["林德"]),
            ("伊尔梅河流经几个县?", ["4"]),
        ),
        (["1902年"], ["林德"], ["4"]),
    ),
    "csbench": Sample(
        "qa",
        "local",
        (
            _csbench(1, "Multiple-choice", "Which tree is balanced?", "C", A="a list", B="a trie", C="AVL", D="a heap"),
            _csbench(2, "Assertion", "A stack is last in, first out.", True, Explanation="By definition."),
            _csbench(3, "Assertion", "Every graph is a tree.", False),
            _csbench(4, "Fill-in-the-blank", "Binary search takes ____ time.", "logarithmic"),
            _csbench(5, "Open-ended", "Why are hash tables resized?", "To keep the load and so the chains small."),
        ),
        (["C"], ["True"], ["False"], ["logarithmic"], ["To keep the load and so the chains small."]),
    ),
    "mmlu-pro": Sample(
        "choice",
        "web",
        (
            _mmlu_pro(1, "Which is the tenth letter?", list("abcdefghij"), "J"),
            _mmlu_pro(2, "Which metal is liquid in a warm room?", ["iron", "mercury", "zinc"], "B"),
            _mmlu_pro(3, "What do bees make?", ["honey", "silk", "wool", "ink"], "A"),
        ),
        (["J"], ["B"], ["A"]),
    ),
}
"""By name, as in the folders of the benchmark files."""
