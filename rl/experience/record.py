"""Define a record of experience, its text form, and which records are duplicates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import orjson

from treadle.core.config import digest_json
from treadle.core.errors import DataError
from treadle.core.untrusted.json_text import load_json

RecordKind = Literal["strategy", "lesson", "comparison"]
"""Kind of a record: a strategy comes from successes, a lesson from failures, a comparison from both."""
RECORD_KINDS: tuple[RecordKind, ...] = get_args(RecordKind)
MAX_CHARS = 1_000
"""Maximum number of characters of the situation, and of the advice."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Experience:
    """A piece of advice that comes from rollouts.

    Attributes:
        kind: Whether it comes from successes, failures, or both.
        situation: When it applies.
        advice: What to do, or to avoid.
        workspace: Name of the pool that it belongs to.
        question_keys: Keys of the tasks whose rollouts it comes from; empty if they are not known.
        step: Step of the training in which it was made; 0 if it was made before the training.
    """

    kind: RecordKind
    situation: str
    advice: str
    workspace: str = "default"
    question_keys: tuple[str, ...] = ()
    step: int = 0

    @property
    def key(self) -> str:
        """16 hex digits that depend on the text and the workspace."""
        return digest_json([self.workspace, self.situation, self.advice])[:16]

    @property
    def text(self) -> str:
        """The record as the policy sees it."""
        return f"{self.situation}: {self.advice}"

    def words(self) -> frozenset[str]:
        """Return the different words of the record in lower case."""
        return frozenset(_WORD.findall(self.text.lower()))

    def as_json(self) -> dict[str, Any]:
        """Return the record as data; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, workspace: str = "default") -> Experience:
        """Read a record from data; raise ValueError if it is none. `workspace` is the default for data without one."""
        kind = data.get("kind")
        texts = [data.get(name) for name in ("situation", "advice")]
        if kind not in RECORD_KINDS:
            raise ValueError(f"`kind` is one of {', '.join(RECORD_KINDS)}")
        if not all(isinstance(text, str) and 0 < len(text.strip()) <= MAX_CHARS for text in texts):
            raise ValueError(f"`situation` and `advice` are texts of up to {MAX_CHARS:,} characters")
        keys, step = data.get("question_keys", ()), data.get("step", 0)
        if not isinstance(keys, list | tuple) or not all(isinstance(one, str) for one in keys):
            raise ValueError("`question_keys` is a list of texts")
        named = data.get("workspace", workspace)
        if not isinstance(step, int) or not isinstance(named, str):
            raise ValueError("`step` is a number and `workspace` a text")
        situation, advice = (" ".join(str(text).split()) for text in texts)
        return cls(kind, situation, advice, named, tuple(keys), step)


def are_duplicates(one: frozenset[str], other: frozenset[str], similarity: float) -> bool:
    """Return whether two records, given as sets of words, have a Jaccard index of at least `similarity`."""
    return len(one & other) >= similarity * len(one | other)


def write_records(records: Iterable[Experience]) -> bytes:
    """Return records as JSON lines."""
    return b"".join(orjson.dumps(one.as_json(), option=orjson.OPT_APPEND_NEWLINE) for one in records)


def read_records(paths: Sequence[Path]) -> Iterator[Experience]:
    """Yield the records of files of JSON lines, in order. Raises DataError, naming file and line, for a bad record."""
    for path in paths:
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise DataError(f"cannot read the pool of experience {path}: {error.strerror}") from None
        for number, line in enumerate(lines, 1):
            try:
                data = load_json(line)
                if not isinstance(data, dict):
                    raise ValueError("it is no JSON object")
                yield Experience.from_json(data)
            except ValueError as error:
                raise DataError(f"{path}, line {number}: this is no record of experience: {error}") from None
