"""Where the well-known data sets keep question, answer and options: data in benchmarks.toml, to which users add.

A source names its data set; the benchmark of that name fills in whatever fields the source leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from treadle.agent.prompts import Format
from treadle.agent.tools.search_config import SearchRoute
from treadle.core.config import Added, Operational, Section, read_toml, validate
from treadle.core.errors import ConfigError

Domain = Literal["math", "qa", "choice"]
AnswerForm = Literal["plain", "gsm8k", "boxed_solution", "first_item", "before_parenthesis", "choice_index"]
"""How the gold answer lies in its field. `plain`: a string, number, boolean or list of them. `gsm8k`: the number
after `#### `. `boxed_solution`: the content of the last box of a worked solution, else all of it. `first_item`: the
first element of a list. `before_parenthesis`: up to the first ` (`. `choice_index`: 0-based number of the option."""

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
"""Formats by what rows call them, in lower case with `_` for all that is no letter."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_listed)]
"""Names of fields; one may be written without the list around it."""


class Benchmark(Section):
    """What is known of one data set. Of several fields named for a thing the first that a row has is taken."""

    domain: Domain | None = None
    """math, qa or choice, which decides the scorer; a row with options is choice whatever stands here. Needed unless
    the source or `questions.domains` says it."""
    question: Names = Field(default=("question",), min_length=1)
    """Field of the question, or several to choose from."""
    prefix: Names = ()
    """Field put before the question, with one blank between, such as the story of a word problem."""
    answer: Names = Field(default=("answer",), min_length=1)
    """Field of the gold answer or answers."""
    answer_form: AnswerForm = "plain"
    """How the answer lies in its field: docs/behaviour/questions.md."""
    choices: Names = ()
    """Field with the list of options."""
    choice_columns: Names = ()
    """Fields with one option each; those behind the last may be missing or null."""
    search: SearchRoute = "web"
    """Where its answers are to be found: in the corpus (local), on the web, or both. Questions are searched there where
    `environment.search` has both and leaves the choice to them; `questions.search` and a source's own word win."""
    format_field: Added[Names] = ()
    """Field with each row's format, such as `Multiple-choice`; one that is missing or null says nothing."""
    format: Added[Format | None] = None
    """Format of rows whose field does not say it: multiple_choice, assertion, fill_in or open_ended. Rows with options
    are multiple_choice unless something else stands here."""
    scorer: Added[Domain | None] = None
    """math, qa or choice: the scorer of questions without options, where it is not that of the domain."""
    contains: Added[bool] = False
    """Whether a data set is of this benchmark also where the name stands later in its own, as in `maxwell-aime`; no
    letter may stand directly before or after it."""
    headline: Operational[bool] = False
    """Whether its figures count in the headline averages of a report."""


def read_benchmarks(path: Path) -> dict[str, Benchmark]:
    """Benchmarks of a TOML file with one table for each, by name; raises ConfigError naming file and key."""
    benchmarks = {}
    for name, table in read_toml(path).items():
        try:
            benchmarks[name] = validate(Benchmark, table, where=name)
        except ConfigError as error:
            raise ConfigError(f"benchmarks in {path}: {error}") from None
    return benchmarks


RULES: Mapping[str, Benchmark] = MappingProxyType(read_benchmarks(Path(__file__).with_name("benchmarks.toml")))
"""The benchmarks that are shipped, by name in lower case."""

GENERIC = Benchmark(question=("question", "input"))
"""Where no benchmark fits."""


def rule_for(dataset: str, own: Mapping[str, Benchmark] = MappingProxyType({})) -> Benchmark:
    """The benchmark of a data set: of the users' `own`, which win, and those shipped.

    Years and splits after a known name do not matter (`aime24`, `gsm8k-train`); of several the longest name fits best.
    """
    known = {**RULES, **own}
    name = best_fit(dataset, known)
    return GENERIC if name is None else known[name]


def best_fit(dataset: str, known: Mapping[str, Benchmark]) -> str | None:
    """Name of the benchmark that a data set is of, in any case: its own, else the longest that fits; None for none."""
    name = dataset.lower()
    if name in known:
        return name
    fitting = [key for key, benchmark in known.items() if _fits(key, name, benchmark.contains)]
    return max(fitting, key=len, default=None)


def _fits(key: str, name: str, anywhere: bool) -> bool:
    """Whether a name begins with a key, or holds it anywhere, as a word of its own."""
    if not anywhere:
        return name.startswith(key) and not name[len(key) :][:1].isalpha()
    return re.search(rf"(?<![^\W\d_]){re.escape(key)}(?![^\W\d_])", name) is not None
