"""Read the row of a question as verl passes it to the sessions of its group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treadle.agent.contract import DEFAULT_ENVIRONMENT, Task
from treadle.rl.verl.rows import domain_of

VALIDATION = "valid"
"""Value of `extra_info.split` for a validation question."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Columns of one row that verl passes to a session."""

    group_id: str
    step: int
    index: int
    split: str
    question: Task

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Sample:
        """Build a sample from the arguments of an agent loop's `run`; raise DataError for an unknown `data_source`."""
        info = fields["extra_info"]
        rule = domain_of(fields["data_source"])
        question = Task(
            key=str(info["id"]),
            text=info["question"],
            choices=tuple(info.get("choices") or ()),
            dataset=info.get("source") or "",
            domain=info.get("domain") or rule,
            format=info.get("format"),
            scorer=info.get("scorer"),
            environment=info.get("environment") or DEFAULT_ENVIRONMENT,
            answers=tuple(fields["reward_model"]["ground_truth"]),
        )
        return cls(
            group_id=str(fields["uid"]),
            step=int(fields["global_steps"]),
            index=int(info["index"]),
            split=info["split"],
            question=question,
        )

    @property
    def validates(self) -> bool:
        """True for a validation question, which is answered greedily, alone, and not trained on."""
        return self.split == VALIDATION
