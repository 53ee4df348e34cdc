"""skeleton"""

from __future__ import annotations
from collections.abc import Sequence
from typing import Literal
from treadle.agent.protocol import TOOL_PROTOCOL, Protocol, Segment

FormatMode = Literal["strict", "loose"]


def format_reasons(
    segments: Sequence[Segment], mode: FormatMode = "strict", protocol: Protocol = TOOL_PROTOCOL
) -> tuple[str, ...]:
    raise NotImplementedError
