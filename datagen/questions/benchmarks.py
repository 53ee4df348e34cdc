"""Look up which fields of a known data set hold question, answer and options, from benchmarks.toml and the user's own.

A source names its data set; the benchmark of that name fills in the fields that the source does not set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from treadle.agent.prompts import Format
from treadle.agent.tools.search_config import SearchRoute
from treadle.core.config import Operational, Section, read_toml, validate
from treadle.core.errors import ConfigError

Domain = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
"""Kind of question. `math`, `qa` and `choice` have scorers of their own, and `task` is scored by its environment;
questions of any other domain name their scorer."""
SCORED_DOMAINS = ("math", "qa", "choice")
"""Domains that have scorers of their own."""
TASK = "task"
"""Domain of tasks that name none and that their environment scores."""
AnswerForm = Literal[
    "plain",
    "gsm8k",
    "boxed_solution",
    "last_box",
    "first_item",
    "before_parenthesis",
    "choice_index",
    "json_list",
    "ground_truth",
]
"""Form of the gold answer in its field. `plain`: a string, number, boolean or list of them. `gsm8k`: the number
after `#### `. `boxed_solution`: the content of the last box of a worked solution, else what follows `#### ` in its last
line, else all of it if it is one short line; other rows have no gold answer. `last_box`: like `boxed_solution`, but a
short line is no answer. `first_item`: the first element of a list.
`before_parenthesis`: up to the first ` (`. `choice_index`: 0-based number of the option. `json_list`: a list of
strings as JSON text; any other text is the answer itself. `ground_truth`: like `json_list`, or an object `{target,
question}`, also as JSON text."""

FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "multiple_choice": "multiple_choice",
        "assertion": "assertion",
        "true_false": "assertion",
        "fill_in": "fill_in",
        "fill_in_the_blank": "fill_in",
        "open_ended": "open_ended",
    }
)
"""Formats by their names in rows, in lower case with `_` for everything that is not a letter."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_listed)]
"""Names of fields; a single name may be given without a list."""


class Benchmark(Section):
    """Field names and rules of one data set.

    If several fields are named for a purpose, the first one that a row has is used.
    """

    domain: Domain | None = None
    """Domain: math, qa or choice, which decide the scorer, or another name, if `scorer` is set; a row with options is
    always choice. Required unless the source or `questions.domains` sets it."""
    question: Names = Field(default=("question",), min_length=1)
    """Field of the question, or several alternatives."""
    prefix: Names = ()
    """Field to put before the question, with a space between, such as the story of a word problem."""
    answer: Names = Field(default=("answer",), min_length=1)
    """Field of the gold answer or answers."""
    answer_form: AnswerForm = "plain"
    """Form of the answer in its field; see docs/behaviour/questions.md."""
    choices: Names = ()
    """Field with the list of options."""
    choice_columns: Names = ()
    """Fields with one option each; those after the last option may be missing or null."""
    search: SearchRoute = "web"
    """Where to search for its answers: in the corpus (local), on the web, or both. It applies if
    `environment.search` has both and leaves the choice to the question; `questions.search` and the source's own
    `search` take precedence."""
    format_field: Names = ()
    """Field with each row's format, such as `Multiple-choice`; a missing or null value is ignored."""
    format: Format | None = None
    """Format of rows without a format field: multiple_choice, assertion, fill_in or open_ended. Default for rows
    with options: multiple_choice."""
    scorer: str | None = None
    """Scorer of questions without options, if it differs from the domain's: a shipped one, an entry point, or an entry
    of the table `scorers`.
    `qa_characters` computes token F1 over characters for Chinese, Japanese, Thai, Lao, Khmer, Burmese and Tibetan,
    whose words are not separated by spaces, and for Korean, whose words have particles; words of other scripts stay
    whole."""
    contains: bool = False
    """Whether the benchmark also applies to data sets with its name anywhere in theirs, as in `maxwell-aime`; no
    letter may be directly before or after it."""
    headline: Operational[bool] = False
    """Whether its scores count in the headline averages of a report."""


def read_benchmarks(path: Path) -> dict[str, Benchmark]:
    """Return the benchmarks of a TOML file with one table each, by name; raise ConfigError naming file and key."""
    benchmarks = {}
    for name, table in read_toml(path).items():
        try:
            benchmarks[name] = validate(Benchmark, table, where=name)
        except ConfigError as error:
            raise ConfigError(f"benchmarks in {path}: {error}") from None
    return benchmarks


RULES: Mapping[str, Benchmark] = MappingProxyType(read_benchmarks(Path(__file__).with_name("benchmarks.toml")))
"""The shipped benchmarks, by name in lower case."""

GENERIC = Benchmark()
"""The benchmark of unknown data sets."""


def rule_for(dataset: str, own: Mapping[str, Benchmark] = MappingProxyType({})) -> Benchmark:
    """Return the benchmark of a data set, from the user's `own`, which take precedence, and the shipped ones.

    Years and splits after a known name are ignored (`aime24`, `gsm8k-train`); if several names match, the longest wins.
    """
    known = {**RULES, **own}
    name = best_fit(dataset, known) if own else _shipped_name(dataset)
    return GENERIC if name is None else known[name]


@lru_cache(maxsize=256)
def _shipped_name(dataset: str) -> str | None:
    # Cached, because this is called for every row.
    return best_fit(dataset, RULES)


def best_fit(dataset: str, known: Mapping[str, Benchmark]) -> str | None:
    """Return the name of a data set's benchmark: an equal name, else the longest that fits, else None.

    Case is ignored.
    """
    name = dataset.lower()
    if name in known:
        return name
    fitting = [key for key, benchmark in known.items() if _fits(key, name, benchmark.contains)]
    return max(fitting, key=len, default=None)


def _fits(key: str, name: str, anywhere: bool) -> bool:
    """Return whether a name starts with a key, or contains it if `anywhere`, as a separate word."""
    if not anywhere:
        return name.startswith(key) and not name[len(key) :][:1].isalpha()
    return re.search(rf"(?<![^\W\d_]){re.escape(key)}(?![^\W\d_])", name) is not None
