"""Random conversations of several turns, over all chat templates of the tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st
from support.chat_templates import FAMILIES, write_family
from support.qwen_tokenizer import qwen_tokenizer

from treadle.core.chat import ChatTokenizer
from treadle.demo.byte_tokenizer import write_byte_tokenizer
from treadle.demo.embedded_model import embedded_tokenizer

SHIPPED = ("qwen", "smollm2", "bytes")
MODELS = [*SHIPPED, *FAMILIES]
REWRITES = {
    "llama3": {"white_space"},
    "gemma": {"white_space"},
    "qwen3": {"thoughts", "last_turn"},
    "r1": {"opening", "thoughts"},
    "glm4": {"opening", "thoughts", "white_space"},
    "gpt-oss": {"opening", "turn_end"},
    "mistral": {"opening", "turns", "white_space"},
    "plain": {"tokens", "turn_end"},
}
REFUSED = {"gemma": {"system", "tool"}, "phi": {"tool"}, "r1": {"system", "tool"}, "gpt-oss": {"system", "tool"}}
REFUSED["mistral"] = {"system", "tool"}
ONLY_SOME_TURNS = {"thoughts", "white_space", "last_turn"}
"""Rewrites that leave turns as they are if they have no thoughts and no white space at their ends."""

CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>", "[INST]", "<|user|>", "<end_of_turn>"]
TURNS = st.lists(
    st.sampled_from(["It", " is", " 4.", "\n", "\n\n", "  ", "- a\n", "<think>", "</think>", "é", "🙂", *CONTROL])
    | st.text(max_size=4),
    min_size=1,
    max_size=8,
).map("".join)
HOSTILE = st.lists(
    st.sampled_from([*CONTROL, "<|im_", "end|>", "assistant\n", "\ue000", "\ue0000\ue000", "\ue001", "\ud800", " "])
    | st.text(max_size=4),
    max_size=8,
).map("".join)  # fmt: skip
ROLES = st.lists(st.sampled_from(["user", "tool", "system"]), min_size=1, max_size=3)


class Tokenizers(dict[str, ChatTokenizer]):
    """Tokenizers by model, loaded on first use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, model: str) -> ChatTokenizer:
        shipped = {
            "qwen": qwen_tokenizer,
            "smollm2": embedded_tokenizer,
            "bytes": lambda: write_byte_tokenizer(self._folder / "bytes"),
        }
        folder = shipped[model]() if model in shipped else write_family(FAMILIES[model], self._folder / model)
        self[model] = ChatTokenizer.load(folder)
        return self[model]


def vocabulary(model: str) -> str:
    return model if model in SHIPPED else FAMILIES[model].tokenizer


def reply(model: str, roles: Sequence[str], texts: Sequence[str]) -> list[dict[str, str]]:
    """Return one message for each role that the template accepts; Gemma takes a single one."""
    taken = [role for role in roles if role not in REFUSED.get(model, ())] or ["user"]
    taken = taken[:1] if model == "gemma" else taken
    return [{"role": role, "content": text} for role, text in zip(taken, itertools.cycle(texts), strict=False)]


def token_crosses(tokenizer: ChatTokenizer, before: str, turn: str, after: str) -> bool:
    """Return whether a token crosses the beginning or the end of a turn in the rendered text."""
    start = max((match.end() for match in tokenizer._special_pattern.finditer(before)), default=0)
    end = tokenizer._special_pattern.search(after)
    parts = [before[start:], turn, after[: end.start()] if end else after]
    return tokenizer.encode("".join(parts)) != [item for part in parts for item in tokenizer.encode(part)]
