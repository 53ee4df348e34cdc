"""Break up spelled-out control tokens in text from the web, so that no page can put one into a model's prompt.

The tokens of a known tokenizer are broken up. A server that gets text may have another tokenizer, so spellings in
common use are broken up in any case. Pure functions.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from treadle.core.untrusted.lookalikes import sub_first
from treadle.core.untrusted.prompt_text import as_data

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
    """Return untrusted text with `as_data` applied and all control tokens in common use escaped."""
    return sub_first(_KNOWN, as_data(text), _entity)


def without_tokens(text: str, tokens: frozenset[str]) -> str:
    """Return a text with each of a tokenizer's added tokens escaped, so that it is not encoded as a control token.

    Added tokens that begin with a letter or contain no letter are ordinary words and white space; they stay.
    """
    return _pattern(tokens).sub(lambda match: _entity(match[0]), text)


def _entity(character: str) -> str:
    return _ENTITIES.get(character, f"&#{ord(character)};")


@lru_cache(maxsize=16)
def _pattern(tokens: frozenset[str]) -> re.Pattern[str]:
    """Return a pattern that matches the first character of any of the tokens if the rest of the token follows.

    It is built from a prefix tree, since some tokenizers have thousands of tokens.
    """
    tree: dict[str, Any] = {}
    for token in filter(_is_control, tokens):
        node = tree
        for char in token[:_LONGEST_TOKEN_CHARS]:
            node = node.setdefault(char, {})
        node[""] = {}
    firsts = (f"{re.escape(char)}(?={_rest(node)})" for char, node in sorted(tree.items()))
    return re.compile("|".join(firsts) or r"(?!)")


def _rest(node: dict[str, Any]) -> str:
    if "" in node:  # longer tokens with this prefix match here too
        return ""
    patterns = [re.escape(char) + _rest(after) for char, after in sorted(node.items())]
    return f"(?:{'|'.join(patterns)})" if len(patterns) > 1 else patterns[0]


def _is_control(token: str) -> bool:
    is_word = token[:1].isalnum() or token[:1].isspace()
    return len(token) > 2 and not is_word and any(map(str.isalpha, token))
