"""Make rows for verl with tools from questions, in the schema that AFM and GAP train on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

from treadle.core.answers.ground_truth import BadGroundTruth, GroundTruth, decode, encode
from treadle.core.errors import DataError
from treadle.core.untrusted.input_files import InputRow

ToolSet = Literal["single", "two", "three", "all"]
TOOL_SETS: Mapping[ToolSet, tuple[str, ...]] = {
    "single": ("wiki_search",),
    "two": ("web_search", "crawl_page"),
    "three": ("wiki_search", "web_search", "crawl_page"),
    "all": ("web_search", "crawl_page", "code", "visual_inspector"),
}
"""Name -> tools that a row may use."""
assert tuple(TOOL_SETS) == get_args(ToolSet)

MARKERS = ("Question: ", "Task: ")
"""Separators between the instructions and the question in a prompt; the question follows the last of them."""
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "https://arxiv.org/abs/2508.13167")
_STRINGS = pa.list_(pa.string())
_KWARGS = pa.struct(
    [
        (
            "create_kwargs",
            pa.struct([("ground_truth", pa.string()), ("question", pa.string()), ("data_source", pa.string())]),
        )
    ]
)


def schema_of(tools: Sequence[str]) -> pa.Schema:
    """Return the schema of rows with these tools."""
    info = [
        ("need_tools_kwargs", pa.bool_()),
        ("tools_kwargs", pa.struct([(tool, _KWARGS) for tool in tools])),
        ("index", pa.string()),
        ("question", pa.string()),
        ("answer", _STRINGS),
    ]
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
            ("extra_info", pa.struct(info)),
        ]
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A question that can be written as a row; `index` is empty if it has none yet."""

    question: str
    truth: GroundTruth
    data_source: str
    ability: str | None = None
    index: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Prepared:
        """Read `{question, answer, data_source, file_name}`, or a row of the schema, whose prompt will be replaced.

        Raises DataError for a missing or empty field and for an answer in no known form.
        """
        is_row = isinstance(fields.get("reward_model"), Mapping)
        if is_row:
            info = fields.get("extra_info")
            info = info if isinstance(info, Mapping) else {}
            question = info.get("question") or _asked(fields.get("prompt"))
            truth = _truth(fields["reward_model"].get("ground_truth"))
            index = info.get("index")
        else:
            question, index = fields.get("question"), ""
            truth = GroundTruth(_answers(fields.get("answer")))
        if not isinstance(question, str) or not question.strip():
            raise DataError("question is missing or empty")
        source = fields.get("data_source")
        if not isinstance(source, str) or not source.strip():
            raise DataError("data_source is missing or empty")
        if truth.tests is None and not truth.answers:
            raise DataError("answer is missing or empty")
        file, ability = fields.get("file_name"), fields.get("ability")
        asked = question.strip() + (f"\n\n{file.strip()}" if isinstance(file, str) and file.strip() else "")
        return cls(
            asked,
            truth if truth.tests is not None else GroundTruth(tuple(map(str, truth.answers)), asked),
            source.strip(),
            ability if isinstance(ability, str) else None,
            str(index or ""),
        )

    def row(self, number: int, tools: Sequence[str], instructions: str) -> dict[str, Any]:
        """Return the row for the schema; `number` makes the indices of equal questions different."""
        truth = encode(self.truth)
        kwargs = {"create_kwargs": {"ground_truth": truth, "question": self.question, "data_source": self.data_source}}
        marker = MARKERS[self.truth.tests is not None]
        content = f"{instructions}\n\n{marker}{self.question}" if instructions else f"{marker}{self.question}"
        return {
            "data_source": self.data_source,
            "prompt": [{"role": "user", "content": content}],
            "ability": self.ability,
            "reward_model": {"ground_truth": truth, "style": "rule"},
            "extra_info": {
                "need_tools_kwargs": True,
                "tools_kwargs": dict.fromkeys(tools, kwargs),
                "index": self.index or f"{self.data_source}-{uuid.uuid5(_NAMESPACE, f'{number} {self.question}')}",
                "question": self.question,
                "answer": [str(answer) for answer in self.truth.answers],
            },
        }


def prepared(rows: Iterator[InputRow], refused: list[str] | None) -> Iterator[tuple[int, Prepared]]:
    """Yield each row's number and its question.

    A row that cannot be used raises DataError, or is added to `refused` if that is given. A row with the index of an
    earlier row cannot be used: rows with the same index would be one group in training.
    """
    seen: set[str] = set()
    for row in rows:
        try:
            if row.value is None:
                raise DataError(row.detail)
            one = Prepared.of(row.value)
            if one.index and one.index in seen:
                raise DataError(f"index {one.index[:60]!r} is that of an earlier row")
        except DataError as error:
            if refused is None:
                raise DataError(f"row {row.number}: {error}; --filter-none leaves such rows out") from None
            refused.append(f"row {row.number}: {error}")
            continue
        seen.add(one.index)
        yield row.number, one


def _asked(prompt: Any) -> str:
    """Return the text after the last marker in the user message of a prompt, or the whole message without a marker."""
    users = [part for part in prompt or () if isinstance(part, Mapping) and part.get("role") == "user"]
    content = users[-1].get("content") if users else None
    if not isinstance(content, str):
        return ""
    place, marker = max((content.rfind(f"\n{marker}"), marker) for marker in MARKERS)
    return content[place + 1 + len(marker) :] if place >= 0 else content


def _truth(value: Any) -> GroundTruth:
    try:
        return decode(value)
    except BadGroundTruth as error:
        raise DataError(str(error)) from None


def _answers(value: Any) -> tuple[Any, ...]:
    """Return the answers that are not empty; raise DataError for anything but text, numbers and lists of them."""
    items = value if isinstance(value, list | tuple) else [value]
    if odd := next((item for item in items if item is not None and not isinstance(item, str | int | float)), None):
        raise DataError(f"answer holds a value of type {type(odd).__name__}")
    return tuple(item for item in items if item is not None and str(item).strip())
