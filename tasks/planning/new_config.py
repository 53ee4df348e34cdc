"""Write the configuration of a first run from a few answers."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from treadle.core.config import load_config
from treadle.core.errors import ConfigError, DataError
from treadle.core.untrusted.input_files import read_rows
from treadle.datagen.questions.layouts import LAYOUTS
from treadle.tasks.config import TreadleConfig
from treadle.tasks.planning.toml_lines import toml_value

Goal = Literal["measure", "data", "train"]
GOALS: Mapping[Goal, str] = {
    "measure": "roll out, score and report the model",
    "data": "make fine-tuning rows from its trajectories",
    "train": "make the rows, fine-tune on them, and measure the result",
}
EMBEDDED = "embedded"
"""Answer that selects the small model that comes with Treadle."""
_NUM_ROWS_READ = 50
_NUMBER = re.compile(r"-?\$?-?[0-9][0-9.,]*%?")
_STAGES: Mapping[Goal, Sequence[str]] = {
    "measure": ("rollouts", "scores", "report"),
    "data": ("pools", "sft_rows"),
    "train": ("pools", "sft_rows", "sft"),
}


@dataclass(frozen=True, slots=True)
class Answers:
    """What a first configuration is made from.

    Attributes:
        questions: File with questions and answers.
        model: Name of the model in requests, a folder with a model to serve, or `embedded`.
        goal: What the run does.
        endpoint: Base URL of the model's server; None to start one.
        api_key_env: Environment variable with the key of that server.
        chat: Whether the server has only the route /chat/completions.
        domain: Domain of the questions; None to find it from the first rows.
        corpus: File of documents that the agent may search; None for an agent without search.
        student: Model that is fine-tuned: a folder or `embedded`.
    """

    questions: Path
    model: str
    goal: Goal = "measure"
    endpoint: str | None = None
    api_key_env: str | None = None
    chat: bool = False
    domain: str | None = None
    corpus: Path | None = None
    student: str = EMBEDDED


def domain_of(file: Path) -> str:
    """Return the domain of a file's questions from its first rows: choice, math if all answers are numbers, or qa.

    Raises DataError if the file cannot be read, or has no row with a question.
    """
    rows = [row.value for row in itertools.islice(read_rows(file), _NUM_ROWS_READ) if row.value is not None]
    if not any(name in row for row in rows for name in LAYOUTS.question):
        raise DataError(
            f"{file}: none of the first rows has a field with a question ({', '.join(LAYOUTS.question)}); rename it, "
            "or write the configuration with question_field yourself"
        )
    if any(row.get(name) for row in rows for name in ("choices", "options")):
        return "choice"
    answers = [next((row[one.field] for one in LAYOUTS.answers if one.field in row), None) for row in rows]
    return "math" if all(_is_number(answer) for answer in answers) else "qa"


def _is_number(answer: object) -> bool:
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        return bool(answer) and all(map(_is_number, answer))
    return _NUMBER.fullmatch(str(answer).rpartition("####")[2].strip()) is not None


def new_config(answers: Answers, name: str) -> str:
    """Return the text of a configuration; `name` is the name of its file, for the comment.

    Raises ConfigError for answers that contradict each other or are invalid values, and as `domain_of` does.
    """
    if answers.goal not in get_args(Goal):
        raise ConfigError(f"{answers.goal!r} is no goal; choose {', '.join(GOALS)}")
    tables: dict[str, dict[str, Any]] = {"models.main": _model(answers)}
    tables["flow"] = {"stages": list(_STAGES[answers.goal])}
    source = {"path": str(answers.questions), "domain": answers.domain or domain_of(answers.questions)}
    tables["questions"] = {"sources": [source]}
    search = {"corpus": [str(answers.corpus)]} if answers.corpus is not None else {"enabled": False}
    tables["environment.search"] = search
    if answers.goal == "measure":
        tables["rollouts"] = {"samples_per_question": 1, "max_questions": 100}
    else:
        tables["pools"] = {"max_questions": 100}
        if answers.chat:
            tables["sft_rows"] = {"tokenizer": answers.student}
    if answers.goal == "train":
        tables["sft"] = {"model": answers.student}
    lines = [
        f"# To {GOALS[answers.goal]}.",
        "#",
        f"#   treadle run {name} --run first --dry-run     # the plan and what it will use",
        f"#   treadle run {name} --run first",
    ]
    for table, keys in tables.items():
        lines += ["", f"[{table}]", *(f"{key} = {toml_value(value)}" for key, value in keys.items())]
    text = "\n".join(lines) + "\n"
    load_config(TreadleConfig, data=tomllib.loads(text))
    return text


def _model(answers: Answers) -> dict[str, Any]:
    """Return the table of the model: its endpoint, or the server that the run starts."""
    if answers.endpoint is None:
        if answers.chat or answers.api_key_env:
            raise ConfigError("the route and the key are those of a server; give its URL as the endpoint as well")
        name = "smollm2-135m-instruct" if answers.model == EMBEDDED else Path(answers.model).name.lower()
        server: dict[str, Any] = {"type": "vllm", "model": answers.model}
        if answers.model == EMBEDDED:
            server |= {"max_model_len": 4096, "dtype": "float32"}
        return {"model": name, "server": server}
    endpoint = {"url": answers.endpoint} | ({"api_key_env": answers.api_key_env} if answers.api_key_env else {})
    return {"model": answers.model} | ({"api": "chat"} if answers.chat else {}) | {"endpoints": [endpoint]}
