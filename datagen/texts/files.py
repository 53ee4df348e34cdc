"""Read files of whole trajectories, row by row; a bad row is refused with its reason instead of failing the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from treadle.core.chat_turns import well_formed
from treadle.core.config import digest_json
from treadle.core.errors import DataError
from treadle.core.untrusted.input_files import InputRow, file_sha256, read_rows
from treadle.datagen.texts.settings import TextSource
from treadle.environments.planning.dialect import DialectName

ROW_FAULTS = {
    "unreadable": "the row of the file cannot be read",
    "missing_field": "the row has no question or no text",
}
"""Description of each fault of a row by its code."""


@dataclass(frozen=True, slots=True)
class WholeText:
    """One trajectory as a whole text.

    Attributes:
        key: 16 hex digits.
        question: Text of the question; empty if the row has none.
        messages: Messages before the first turn.
        text: Everything after these messages; empty if the row has none.
        tag: Tag around observations.
        reason: Code of ROW_FAULTS if the row cannot be used, else empty.
        where: File and row, for error messages.
        model: Name of the model that wrote it; empty if it is unknown.
        operator: Name of the operator that made it; `text` if it was read from a file.
        parents: Keys of the trajectories that it was made from.
    """

    key: str
    question_key: str
    dataset: str
    domain: str
    question: str
    messages: Sequence[dict[str, str]]
    text: str
    tag: str
    dialect: DialectName | None = None
    reason: str = ""
    where: str = ""
    model: str = ""
    operator: str = "text"
    parents: tuple[str, ...] = ()


def with_digest(source: TextSource) -> TextSource:
    """Return the source with the digest of its content; raise DataError if it cannot be read."""
    return source.model_copy(update={"sha256": file_sha256(source.path)})


def read_texts(sources: Sequence[TextSource]) -> Iterator[WholeText]:
    """Yield the trajectories of all files in their order; raise DataError if one cannot be read or has changed."""
    for number, source in enumerate(sources):
        if source.sha256 not in (None, file_sha256(source.path)):
            raise DataError(f"input file {source.path} changed while the run was starting; start again")
        for count, row in enumerate(read_rows(source.path, source.format), start=1):
            yield _whole_text(source, number, row)
            if count == source.limit:
                break


def _whole_text(source: TextSource, number: int, row: InputRow) -> WholeText:
    fields: dict[str, Any] = row.value or {}
    question, text = (_text(fields, name) for name in (source.question_field, source.text_field))
    reason = "unreadable" if row.value is None else "" if question.strip() and text.strip() else "missing_field"
    key = digest_json(["text", source.dataset_name, number, row.number, question])[:16]
    return WholeText(
        key=key,
        question_key=digest_json([source.dataset_name, question])[:16],
        dataset=source.dataset_name,
        domain=source.domain,
        question=question,
        messages=[{"role": "user", "content": _prompt(_text(fields, source.instruction_field), question, source)}],
        text=text,
        tag=source.tag,
        dialect=source.dialect,
        reason=reason,
        where=f"row {row.number} of {source.path.name}",
    )


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return well_formed(value) if isinstance(value, str) else ""


def _prompt(instruction: str, question: str, source: TextSource) -> str:
    label = "" if question.lstrip().startswith(source.question_label.strip()) else source.question_label
    return f"{instruction.strip()}\n\n{label}{question}" if instruction.strip() else f"{label}{question}"
