"""Search with numbered documents, as planning agents read them."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.agent.tools.search import SearchTool


class DocumentSearch(SearchTool):
    """Search tool of planning agents: each document begins with a line `Doc 1 (Title: …)`."""

    def shown(self, contents: Sequence[str]) -> str:
        """See `SearchTool.shown`."""
        shown = []
        for number, one in enumerate(contents, start=1):
            title, _, text = one.partition("\n")
            shown.append(f"Doc {number} (Title: {title.strip().strip(chr(34))})\n{self.cut(text.strip())}")
        return "\n\n".join(shown)
