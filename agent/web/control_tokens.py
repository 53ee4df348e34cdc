"""Spellings of control tokens in text of the web: no page shall be able to write one, whatever the model.

Where a tokenizer is known, its own tokens count; a server that is sent text reads the others by a tokenizer of its
own, so the spellings that are in use are broken up in any case. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from treadle.agent.prompts import as_data

_ENTITIES = {"<": "&lt;", "[": "&#91;"}
_LONGEST_TOKEN_CHARS = 100

_NAMES = (
    "think(?:ing)?|thoughts?|reason(?:ing)?|tools|tool_(?:calls?|responses?|results?|outputs?|code|name)"
    "|functions?|function_(?:calls?|results?|response)|arg_(?:key|value)"
    "|[bs]o[spt]|eo[adhmpst]|pad|unk|cls|sep|mask|human|assistant|system|observation"
    r"|(?:start|end|begin)_of_\w+|(?:extra_id|unused|reserved|special|pad|spare|control)_?\d+"
    r"|special_token_\d+|reserved_(?:special_)?token_?\d+|(?:fim|jupyter|commit|issue|repo|file|code)_\w+"
    r"|(?:reponame|filename|gh_stars|empty_output|image|audio|video|imagine_\w+)"
    r"|(?:seed|minimax|longcat)[:_]\w{1,60}"
)
_BRACKETED = (
    r"(?:inst|sys|bos|eos|pad|unk|cls|sep|g?mask|smask|tool_\w+|available_tools|system_prompt|img\w*|think|args"
    r"|call_id|prefix|suffix|middle|begin_\w+|end_\w+|unused\w*|control_\d+|multimodal|audio|response|user|assistant)"
)
_KNOWN = re.compile(
    rf"<(?=/?(?:{_NAMES})(?:=[^<>\n]{{0,99}})?>)|\[(?=/?{_BRACKETED}\])|<(?=</?SYS>>)|<(?=\w+\|>)|◁(?=/?\w+▷)|\](?=[<~]\])",
    re.I,
)


def without_known_tokens(text: str) -> str:
    """A text of others in which none of the control tokens that are in use is spelled, nor any `as_data` knows."""
    return _KNOWN.sub(_entity, as_data(text))


def without_tokens(text: str, tokens: frozenset[str]) -> str:
    """A text in which none of a tokenizer's added tokens is spelled.

    Tokens that begin with a letter, or hold none, are words and runs of blanks, and stay.
    """
    return _pattern(tokens).sub(_entity, text)


def _entity(match: re.Match[str]) -> str:
    return _ENTITIES.get(match[0], f"&#{ord(match[0])};")


@lru_cache(maxsize=16)
def _pattern(tokens: frozenset[str]) -> re.Pattern[str]:
    """The first character of each token, where the others follow; made as a tree, as some have thousands."""
    tree: dict[str, Any] = {}
    for token in filter(_is_control, tokens):
        node = tree
        for char in token[:_LONGEST_TOKEN_CHARS]:
            node = node.setdefault(char, {})
        node[""] = {}
    firsts = (f"{re.escape(char)}(?={_rest(node)})" for char, node in sorted(tree.items()))
    return re.compile("|".join(firsts) or r"(?!)")


def _rest(node: dict[str, Any]) -> str:
    if "" in node:  # longer tokens that begin with this one are found by it
        return ""
    return _either(re.escape(char) + _rest(after) for char, after in sorted(node.items()))


def _either(patterns: Iterable[str]) -> str:
    first, *others = patterns
    return f"(?:{'|'.join([first, *others])})" if others else first


def _is_control(token: str) -> bool:
    is_word = token[:1].isalnum() or token[:1].isspace()
    return len(token) > 2 and not is_word and any(map(str.isalpha, token))
