"""Make untrusted text safe to insert into prompts: break up spellings of control tokens."""

from __future__ import annotations

import re

from treadle.core.untrusted.lookalikes import sub_first

_CONTROL_TOKEN = re.compile(
    r"<(?=[|\uff5c]|/?s>|(?:start|end)_of_turn>|(?:bos|eos|pad|unk)>)|\[(?=/?(?:INST|SYS)\])", re.I
)


def as_data(text: str) -> str:
    """Return untrusted text for use in a prompt, without spellings of control tokens and without lone surrogates."""
    text = sub_first(_CONTROL_TOKEN, text, lambda bracket: "&lt;" if bracket == "<" else "&#91;")
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
