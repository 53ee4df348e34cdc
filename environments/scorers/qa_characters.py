"""Score short answers in scripts without spaces by F1 over characters."""

from __future__ import annotations

from treadle.core.answers.text_match import characters
from treadle.environments.scorers.qa import QaScorer


class QaCharactersScorer(QaScorer):
    """Compare answers like `qa`, over characters in scripts that are written without spaces."""

    type: str = "qa_characters"
    """Exact match and F1 over characters."""

    @staticmethod
    def tokens(text: str) -> list[str]:
        """See `QaScorer`."""
        return characters(text)
