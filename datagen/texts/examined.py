"""Read a whole text once: its facts, the fault of its format, and the rules of its dialect that it breaks."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.datagen.texts.blocks import order_fault, read_blocks
from treadle.datagen.texts.files import WholeText
from treadle.datagen.texts.rules import Facts, Step
from treadle.datagen.texts.violations import text_violations


@dataclass(frozen=True, slots=True)
class Examined:
    """Result of reading a whole text.

    Attributes:
        fault: Code of ROW_FAULTS or TEXT_FAULTS; empty if it can be used.
        violations: Codes of the rules of its dialect that it breaks; empty if its dialect is unknown.
    """

    facts: Facts
    fault: str
    violations: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: WholeText) -> Examined:
        """Read a text; if its blocks cannot all be read, the facts cover at most those before the fault."""
        if text.reason:
            return cls(Facts.of(()), text.reason)
        blocks, fault = read_blocks(text.text, text.tag)
        steps = [Step("result" if block.name == text.tag else block.name, block.body) for block in blocks]
        broken = text_violations(text.text, blocks, text.tag, text.dialect) if text.dialect is not None else []
        return cls(Facts.of(steps), fault or order_fault(blocks, text.tag), tuple(broken))
