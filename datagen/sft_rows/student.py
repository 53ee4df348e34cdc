"""Encode trajectories with the tokenizer and chat template of the student, the model that the rows train.

This is done for trajectories without token ids of that tokenizer. A row then has the context in which the student would
write the turns: the prompt, each turn encoded alone, tool results as blocks inside it, and between two turns what the
template writes there. Native calls are written in the form of the student's model family. Every turn ends with the id
at which the student stops.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from treadle.agent.contract import Message
from treadle.agent.dialects.base import RESULT, Dialect
from treadle.agent.dialects.forms.hermes import CLOSING, OPENING
from treadle.agent.dialects.functions import FunctionsDialect
from treadle.agent.transcript import Transcript
from treadle.core.chat import ChatTokenizer
from treadle.core.chat_turns import text_after_turn
from treadle.core.engines.base_model import context_window
from treadle.core.engines.config import EMBEDDED
from treadle.core.engines.serving import embedded_folder
from treadle.core.errors import ConfigError
from treadle.datagen.sft_rows.encoding import Turns, system_spans

_CHECKED = "40617"


class NotGivenBack(Exception):
    """Error for a text that changes when it is encoded and decoded."""


@dataclass(frozen=True, slots=True)
class StudentEncoder:
    """Encoder of turns with the tokenizer and chat template of the model that rows train."""

    tokenizer: ChatTokenizer

    def turns(self, messages: Sequence[Mapping[str, Any]], dialect: Dialect) -> Turns:
        """Return the turns of a row, encoded; `messages` are those of the column `messages` after the prompt.

        `dialect` is bound to the tokenizer. Raises NotGivenBack, and ConfigError for a role that the template drops.
        """
        transcript = Transcript(dialect, self.tokenizer)
        written: list[Message] = []
        for message in messages:
            if message["role"] != "assistant":
                written.append(Message(message["content"], message["role"]))
                continue
            if written:
                self._append_messages(transcript, dialect, written)
                written = []
            for is_result, text in _pieces(message, dialect):
                before = len(transcript.text)
                if is_result:
                    transcript.append_block(text)
                else:
                    transcript.insert(text)
                if transcript.text[before:] != text:
                    raise NotGivenBack(text)
        ids, origins = transcript.ids.tolist(), bytes(transcript.origins)
        results = [(one.start, one.end) for one in transcript.segments() if one.kind == RESULT]
        return Turns(messages, ids, system_spans(origins), results)

    def _append_messages(self, transcript: Transcript, dialect: Dialect, messages: Sequence[Message]) -> None:
        before = len(transcript.text)
        written = dialect.replies(messages)
        ids, num_end = self.tokenizer.reply_ids([{"role": one.role, "content": one.text} for one in written])
        # As in a rollout, the model writes the end of its turn, and the template the rest.
        transcript.end_turn(ids[num_end - 1] if num_end else None)
        transcript.append(written)
        text = transcript.text[before:]
        for message in written:
            # Templates may strip what they write.
            _, found, text = text.partition(message.text.strip())
            if not found:
                raise NotGivenBack(message.text)


def _pieces(message: Mapping[str, Any], dialect: Dialect) -> Iterator[tuple[bool, str]]:
    """Yield (whether it is a tool result, text) for each piece of a turn."""
    if isinstance(dialect, FunctionsDialect):
        yield False, native_turn(message, dialect)
        return
    content, position = message["content"], 0
    for start, end in message.get("results", ()):
        if start > position:
            yield False, content[position:start]
        yield True, content[start:end]
        position = end
    if position < len(content):
        yield False, content[position:]


def native_turn(message: Mapping[str, Any], dialect: FunctionsDialect) -> str:
    """Return a turn with its reasoning and native calls as a model of the dialect's form writes it."""
    reasoning, content = message.get("reasoning", ""), message["content"]
    if dialect.opens_reasoning:
        thought = f"{reasoning}\n</think>\n\n"
    else:
        thought = f"<think>\n{reasoning}\n</think>\n\n" if reasoning else ""
    calls = [_call(call, dialect) for call in message.get("tool_calls", ())]
    if dialect.form.name == "llama":
        # The form has no place for text next to calls: the calls are the whole turn.
        return thought + ("; ".join(calls) or content)
    return thought + "\n".join([*([content] if content or not calls else []), *calls])


def _call(call: Mapping[str, str], dialect: FunctionsDialect) -> str:
    """Return a call with the white space of `json.dumps`, as chat templates and the models' training data have it."""
    key = "parameters" if dialect.form.name == "llama" else "arguments"
    written = json.dumps({"name": call["name"], key: orjson.loads(call["arguments"])}, ensure_ascii=False)
    if dialect.form.name == "llama":
        return written
    # In JSON, `<` occurs only in strings, so its escape does not change the call, and no string can close the block.
    return f"{OPENING}\n{written.replace('<', chr(92) + 'u003c')}\n{CLOSING}"


def checked_student(folder: Path, prompts: Mapping[str, Sequence[Mapping[str, str]] | None]) -> tuple[str, int | None]:
    """Return digest and context window of a student's tokenizer; `folder` may be `embedded`.

    Raises ConfigError if there is none, and as `check_student` does.
    """
    found = embedded_folder("tokenizer") if folder == Path(EMBEDDED) else folder
    if not (found / "tokenizer.json").is_file():
        raise ConfigError(
            f"sft_rows.tokenizer: there is no {found.absolute() / 'tokenizer.json'}; set it to the folder of the "
            "tokenizer of sft.model, or to embedded"
        )
    tokenizer = ChatTokenizer.load(found)
    check_student(tokenizer, prompts)
    return tokenizer.digest, context_window(found)


def check_student(tokenizer: ChatTokenizer, prompts: Mapping[str, Sequence[Mapping[str, str]] | None]) -> None:
    """Raise ConfigError if a chat template drops or refuses what rows consist of.

    `prompts` are the messages before the first turn, by environment; None if they depend on the episode.
    """
    text_after_turn(tokenizer, ())
    if not tokenizer.turn_end_ids:
        raise ConfigError(f"sft_rows.tokenizer: the template of {tokenizer.folder} does not end turns")
    for name, messages in prompts.items():
        roles = [message["role"] for message in messages or ()] or ["user"]
        probes = [{"role": role, "content": f"{_CHECKED}{place}"} for place, role in enumerate(roles)]
        rendered = tokenizer.render(probes)
        for probe in probes:
            if probe["content"] not in rendered:
                raise ConfigError(
                    f"sft_rows.tokenizer: the chat template of {tokenizer.folder} drops the {probe['role']} message of "
                    f"environment {name}; choose a student whose template writes it, or an environment without it"
                )
        if messages is None:
            tokenizer.reply_ids([{"role": "user", "content": _CHECKED}])
