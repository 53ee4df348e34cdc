"""Render the prompts of rollouts again, with or without what their environment hides from the policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from treadle.agent.contract import HIDDEN_COLUMNS, TASK_COLUMNS, Task
from treadle.agent.tools.outcome import clip
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import DataError, StageFailed
from treadle.core.runs.stage import Rows
from treadle.core.tables import MODEL_FOLDER
from treadle.environments.mixture import MixedSettings, unknown_environment
from treadle.environments.registry import hidden_information
from treadle.environments.rollouts.rows import first_tools
from treadle.stages.tokenizers import load_tokenizer

_QUESTION = ("question_key", "split")


def train_questions(tables: tuple[Rows, ...]) -> frozenset[str]:
    """Return the keys of the tasks of the split `train`."""
    rows = (row for table in tables for row in table.rows(_QUESTION))
    return frozenset(row["question_key"] for row in rows if row["split"] == "train")


def tokenizer_of(folder: Path | None, digest: str, checkpoints: tuple[Rows, ...]) -> ChatTokenizer:
    """Return the tokenizer in `folder`, or that of the policy's checkpoint if `folder` is None.

    Raises ConfigError if the tokenizer does not have the given digest.
    """
    return load_tokenizer(checkpoints[0].folder(MODEL_FOLDER) if folder is None else folder, digest)


class HiddenStatements:
    """Statements of what environments hide from the policy about tasks, by the key of the task.

    They are read from `questions` once. Statements of more than `max_chars` characters lose their middle.
    """

    def __init__(self, settings: MixedSettings, tables: tuple[Rows, ...], keys: frozenset[str], max_chars: int) -> None:
        environments = settings.named_environments()
        self._by_key: dict[str, str | None] = {}
        for table in tables:
            for row in table.rows([*TASK_COLUMNS, *HIDDEN_COLUMNS]):
                if row["question_key"] in keys:
                    task = Task.from_row(row)
                    if task.environment not in environments:
                        raise DataError(unknown_environment(task.environment, environments))
                    found = hidden_information(environments[task.environment], task)
                    self._by_key[task.key] = None if found is None else clip(found, max_chars)

    def of(self, question_key: str) -> str:
        """Return the statement about a task; raise StageFailed if its environment gives none."""
        found = self._by_key.get(question_key)
        if found is None:
            raise StageFailed(
                f"the environment of task {question_key} does not state what it hides from the policy; set "
                "preferences.hidden_information = false, or add `hidden_information` to the type of the environment"
            )
        return found


class PromptRenderer:
    """Renderer of the messages before the first turn, with the tokenizer of the rollouts."""

    def __init__(self, settings: MixedSettings, tokenizer: ChatTokenizer) -> None:
        self.tokenizer = tokenizer
        self._environments = settings.named_environments()
        self._dialects = {
            name: one.turn_dialect.bound(tokenizer, is_chat=False) for name, one in self._environments.items()
        }
        self._last: tuple[tuple[str, ...], list[int]] | None = None

    def ids(self, row: Mapping[str, Any], statement: str = "") -> list[int]:
        """Return the token ids of a prompt, from a row with `environment`, `first_messages` and `tool_schemas`.

        A statement of hidden information is put at the beginning of the first message. Raises DataError for an
        environment that the run does not have.
        """
        key = (row["environment"], row["first_messages"], row["tool_schemas"], statement)
        if self._last is None or self._last[0] != key:
            self._last = key, self._render(row, statement)
        return self._last[1]

    def check(self, row: Mapping[str, Any], prompt_ids: list[int]) -> None:
        """Raise StageFailed if a rollout's messages, rendered with this tokenizer and template, give another prompt."""
        if row["tokenizer_digest"] != self.tokenizer.digest or self.ids(row) != prompt_ids:
            raise StageFailed(
                f"the prompt of rollout {row['rollout_key']} has other token ids than its messages with the tokenizer "
                f"in {self.tokenizer.folder}; run `rollouts` again, or set the tokenizer that they were made with"
            )

    def _render(self, row: Mapping[str, Any], statement: str) -> list[int]:
        name = row["environment"]
        if name not in self._dialects:
            raise DataError(unknown_environment(name, self._environments))
        messages = told_messages(orjson.loads(row["first_messages"]), statement)
        return self.tokenizer.prompt_ids(*self._dialects[name].tool_prompt(messages, first_tools(row["tool_schemas"])))


def told_messages(messages: list[dict[str, str]], statement: str) -> list[dict[str, str]]:
    """Return messages with a statement at the beginning of the first one; unchanged for an empty statement."""
    if not statement:
        return messages
    first, *others = messages
    return [{**first, "content": f"{statement}\n\n{first['content']}"}, *others]
