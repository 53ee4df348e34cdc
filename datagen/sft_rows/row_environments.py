"""Look up the environments that trajectories were made in: their dialects, digests and prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from treadle.agent.contract import Task
from treadle.agent.dialects.base import Dialect
from treadle.agent.dialects.tags import TagDialect
from treadle.core.chat import ChatTokenizer
from treadle.core.errors import ArtifactError, ConfigError, DataError, StageFailed
from treadle.datagen.sft_rows.encoding import Prompt
from treadle.datagen.sft_rows.settings import SftRowsSettings
from treadle.environments.mixture import table_of, unknown_environment
from treadle.environments.rollouts.rows import first_tools
from treadle.environments.settings import Digests, EnvironmentSettings
from treadle.stages.tokenizers import load_tokenizer


@dataclass(frozen=True, slots=True)
class RowEnvironment:
    """One environment of trajectories.

    Attributes:
        dialect: Dialect by which the turns of its trajectories are read.
        bound_dialect: This dialect, adapted to the tokenizer of the rows.
        tags: The dialect if it has tags, so that its trajectories can be repaired; else None.
        rebuilds_prompts: Whether a prompt can be built from the question alone. Otherwise it depends on the episode,
            and is stored with the trajectory.
    """

    settings: EnvironmentSettings
    digests: Digests
    dialect: Dialect
    bound_dialect: Dialect
    tags: TagDialect | None
    rebuilds_prompts: bool

    @classmethod
    def of(cls, settings: EnvironmentSettings, tokenizer: ChatTokenizer | None) -> RowEnvironment:
        """Build the entry of an environment from its settings."""
        dialect = settings.turn_dialect
        return cls(
            settings,
            settings.digests(),
            dialect,
            dialect.bound(tokenizer, is_chat=False),
            dialect if isinstance(dialect, TagDialect) else None,
            settings.first_messages(Task("", "")) is not None,
        )


class RowEnvironments:
    """The environments of a run, by the column `environment` of trajectories.

    Attributes:
        tokenizer: Tokenizer of the rows; None in text mode.
    """

    def __init__(self, settings: SftRowsSettings) -> None:
        self.tokenizer = load_row_tokenizer(settings)
        self._has_student = settings.options.tokenizer is not None
        self._by_name = {
            name: RowEnvironment.of(one, self.tokenizer) for name, one in settings.named_environments().items()
        }

    def of(self, row: Mapping[str, Any]) -> RowEnvironment:
        """Return the environment of a trajectory; raise DataError if this run does not have it."""
        return self[row["environment"]]

    def __getitem__(self, name: str) -> RowEnvironment:
        if name not in self._by_name:
            raise DataError(unknown_environment(name, self._by_name))
        return self._by_name[name]

    def are_encoded_here(self, row: Mapping[str, Any]) -> bool:
        """Return whether a trajectory has no token ids of the rows' tokenizer, so that its text is encoded with it."""
        return self.tokenizer is not None and row["tokenizer_digest"] != self.tokenizer.digest

    def check(self, batch: pa.RecordBatch, kind: str) -> None:
        """Raise StageFailed if trajectories were made in another environment or with another tokenizer.

        Raises DataError for an environment that this run does not have. `kind` is the table that they are from.
        """
        names, digests = (batch.column(name).to_pylist() for name in ("environment", "environment_digest"))
        for name, digest in dict.fromkeys(zip(names, digests, strict=True)):
            if digest not in self[name].digests:
                raise StageFailed(
                    f"trajectories were made in environment {digest[:12]}, but the configuration describes "
                    f"{self[name].digests.plain[:12]}: another prompt, other tools or limits; run "
                    f"`{kind}` again, or restore the [{table_of(name)}] that it was run with"
                )
        for digest in batch.column("tokenizer_digest").unique().to_pylist():
            if digest and self.tokenizer is None:
                raise ConfigError(
                    "trajectories have token ids, but the policy has no tokenizer here; set `tokenizer` of the "
                    "policy's model to its folder"
                )
            is_other = self.tokenizer is not None and digest not in ("", self.tokenizer.digest)
            if is_other and self.tokenizer is not None and not self._has_student:
                raise StageFailed(
                    f"trajectories were made with tokenizer {digest[:12]}, but the policy's in "
                    f"{self.tokenizer.folder} is {self.tokenizer.digest[:12]}; set the tokenizer that `{kind}` used, "
                    "or sft_rows.tokenizer to that of the model to train"
                )

    def prompt(
        self, name: str, question: Mapping[str, Any], rollout_key: str, first_messages: str, tool_schemas: str
    ) -> Prompt:
        """Return the prompt that an environment builds from a question, or else the one that the episode began with.

        `first_messages` and `tool_schemas` are those of the rollout, as JSON. Raises ArtifactError if the environment
        builds no prompt and `first_messages` is empty.
        """
        environment = self[name]
        messages = environment.settings.prompt_messages(Task.from_row(question))
        if messages is None and not first_messages:
            raise ArtifactError(f"trajectory {rollout_key} does not say with which messages it began")
        messages = messages or orjson.loads(first_messages)
        return Prompt.of(messages, first_tools(tool_schemas), self.tokenizer, environment.bound_dialect)


def load_row_tokenizer(settings: SftRowsSettings) -> ChatTokenizer | None:
    """Return the tokenizer of the rows, None in text mode; raise ConfigError if the settings have another digest."""
    return None if settings.tokenizer is None else load_tokenizer(settings.tokenizer, settings.tokenizer_digest)
