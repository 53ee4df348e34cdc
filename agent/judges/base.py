"""Define judges: a class has the settings of `[scores.judges]`, the messages for a model, and the reading of a reply.

A judge of a user is a class in one file. Documented in docs/behaviour/judges.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import field_validator, model_validator

from treadle.agent.judges.views import (
    MAX_ANSWER_CHARS,
    MAX_GOLD_CHARS,
    MAX_QUESTION_CHARS,
    SEGMENT_CHARS,
    SEGMENT_COUNTS,
    View,
)
from treadle.agent.role_settings import JudgeSampling
from treadle.core.config import config_folders, digest_json, semantic_dump
from treadle.core.errors import ConfigError
from treadle.core.registry import Entry
from treadle.core.untrusted.concealment import exits_as_errors
from treadle.core.untrusted.sanitize import one_line

VIEWS_VERSION = 1
"""Version in the digests of judges; increment it if views are rendered differently."""

_TEXT_FILES = (".txt", ".md")
_MAX_TEXT_CHARS = 100_000
_CHOSEN = frozenset({"models", "domains", "sampling", "on_failed"})
"""Keys that decide which models are asked about which answers, not what a judge is asked."""
_EMPTY = View("0", "")


class Grade(NamedTuple):
    """Grade of an answer or trajectory, from 0 to 1; `parts` are further such numbers by the names in `Judge.PARTS`."""

    value: float
    parts: Mapping[str, float] = {}


class Judge(Entry):
    """Settings of a judge of answers or trajectories: which models are asked about what, and how."""

    PARTS: ClassVar[Mapping[str, str]] = {}
    """Further numbers that a grade may have: name -> meaning."""
    NEEDS_ANSWERS: ClassVar[bool] = False
    """Whether the judge compares with gold answers. If so, it is shown them, and is asked only about answers that the
    rules do not accept. Otherwise it is asked about every answer, never shown gold answers, and its grade is the
    score."""
    UNASKED: ClassVar[frozenset[str]] = frozenset()
    """Keys of this judge that do not affect the messages to a model: models are not asked again if they change."""

    type: str = "correctness"
    """Judge: `correctness`, `rubric`, the name of an entry point, or a class of your own as `my_judges.py:Class` or
    `package.module:Class`."""
    models: tuple[str, ...] = ()
    """Names of judge models under `models`. The majority of several judges decides, and of grades the mean; in a tie,
    the rule decides. If empty, only rules are used."""
    domains: tuple[str, ...] = ()
    """Rules whose questions are judged, such as `math`, `qa` or `task`; empty: all of them."""
    sampling: JudgeSampling = JudgeSampling()
    """Sampling settings of the judges."""
    on_failed: Literal["exclude", "rule"] = "exclude"
    """Treatment of an answer for which no judge returned a verdict that can be parsed. `exclude`: the answer has no
    verdict and is left out of every mean. `rule`: the rule's verdict (wrong) is kept. These answers are counted either
    way."""
    subject: Literal["answer", "trajectory"] = "answer"
    """What is judged: the answer, or everything that the agent wrote and was told."""
    prompt: str = ""
    """System prompt instead of the shipped one: text, or a `.txt` or `.md` file next to the configuration."""
    rubric: str = ""
    """What the judge decides by, after the system prompt: text, or a file as above."""
    prompt_text: str = ""
    """Content of `prompt`; filled in when the configuration is read."""
    rubric_text: str = ""
    """Content of `rubric`; filled in when the configuration is read."""

    def effective(self) -> Self:
        """Return the settings with the texts of `prompt` and `rubric` instead of paths, so that paths do not matter."""
        return self.model_copy(update={"prompt": self.prompt_text, "rubric": self.rubric_text})

    def messages(self, view: View) -> list[dict[str, str]]:
        """Return the messages that ask a model. `view.text` has the untrusted data in blocks, whose tags end in
        `view.nonce`."""
        raise NotImplementedError(f"{type(self).__name__} needs a method messages(view)")

    def read(self, text: str) -> bool | Grade | None:
        """Return the verdict or the grade in a complete reply; None if it cannot be read.

        A judge gives either verdicts or grades.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method read(text)")

    def is_correct(self, grade: float) -> bool:
        """Return whether a grade counts as right."""
        return grade >= 0.5

    def instructions(self, shipped: str) -> str:
        """Return the system prompt: that of the settings, or else `shipped`, followed by the rubric if there is one."""
        rubric = f"\n\nRubric:\n{self.rubric_text}" if self.rubric_text else ""
        return (self.prompt_text or shipped) + rubric

    def digest(self) -> str:
        """Return a digest of everything that affects a model's verdict or grade except the model, sampling and input.

        Raises ConfigError as `checked_messages` does.
        """
        given = {name: value for name, value in semantic_dump(self).items() if name not in _CHOSEN | self.UNASKED}
        bounds = [MAX_QUESTION_CHARS, MAX_GOLD_CHARS, MAX_ANSWER_CHARS, SEGMENT_CHARS, SEGMENT_COUNTS]
        return digest_json([VIEWS_VERSION, bounds, given, self.checked_messages(_EMPTY)])

    def checked_messages(self, view: View) -> list[dict[str, str]]:
        """Return the messages; raise ConfigError if the code of the judge fails or returns anything else."""
        messages: Any = None
        try:
            with exits_as_errors():
                messages = self.messages(view)
            problem = "" if _are_messages(messages) else "it returned no list of messages"
        except Exception as error:  # noqa: BLE001 - any error of a user's class
            problem = one_line(f"{type(error).__name__}: {error}")
        if problem:
            raise ConfigError(f"judge {self.type}: {problem}; correct its method `messages`")
        return list(messages)

    @property
    def kind(self) -> str:
        """Name of the judge in its results: the type, or for a class of the user the name of the class."""
        return self.type.rpartition(":")[2]

    @field_validator("models")
    @classmethod
    def _check_models(cls, models: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [name for name in models if models.count(name) > 1]:
            raise ValueError(f"{twice[0]!r} is listed twice; list each judge once")
        return models

    @model_validator(mode="before")
    @classmethod
    def _read_texts(cls, data: Any) -> Any:
        """Fill in the texts of `prompt` and `rubric`."""
        if not isinstance(data, Mapping):
            return data
        texts: dict[str, Any] = {}
        for key in ("prompt", "rubric"):
            given = data.get(key, "")
            if isinstance(given, str):
                texts |= _text(key, given, data.get(f"{key}_text"))
        return {**data, **texts}


def _are_messages(found: object) -> bool:
    """Return whether a value is a list of messages, each with texts `role` and `content`."""
    return (
        isinstance(found, Sequence)
        and len(found) > 0
        and all(
            isinstance(one, Mapping) and all(isinstance(one.get(key), str) for key in ("role", "content"))
            for one in found
        )
    )


def _text(key: str, given: str, known: object) -> dict[str, str]:
    """Return the fields `key` and `<key>_text` to set for a text or file name; if the file is missing but its text is
    known, return none, so that the known text stays."""
    if "\n" in given or not given.endswith(_TEXT_FILES):
        return {f"{key}_text": given.strip()}
    candidates = list(dict.fromkeys(folder / given for folder in (Path.cwd(), *config_folders.get())))
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        if isinstance(known, str) and known:
            return {}
        raise ValueError(f"{key}: there is no file {' or '.join(map(str, candidates))}")
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{key}: {path} cannot be read as UTF-8 text: {error}") from None
    if not text or len(text) > _MAX_TEXT_CHARS:
        raise ValueError(f"{key}: {path} has {len(text):,} characters; 1 to {_MAX_TEXT_CHARS:,} are allowed")
    return {key: str(path.resolve()), f"{key}_text": text}
