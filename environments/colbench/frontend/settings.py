"""Settings of the environment `colbench/frontend`. Rules: docs/guides/colbench.md."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from treadle.agent.browser.settings import BrowserSettings
from treadle.core.errors import ConfigError
from treadle.environments.colbench.settings import ColbenchSettings, HumanRole


class PageHumanRole(HumanRole):
    """Model that plays the person, who sees pictures of the page and of the target page."""

    reply_chars: int = Field(default=1000, ge=1)
    """Longest reply in characters; a longer one is cut."""
    instructions: str | None = None
    """Text that replaces the shipped instructions; the pictures follow it."""


class FrontendSettings(ColbenchSettings):
    """Dialogue in which an agent writes web pages for a person who compares their pictures with the target page's."""

    PROMPTS: ClassVar[tuple[str, str]] = ("page_agent", "page_human")

    type: str = "colbench/frontend"
    """Type of the environment."""
    human: PageHumanRole = PageHumanRole()
    """The person."""
    browser: BrowserSettings = BrowserSettings()
    """How pages are drawn."""
    stylesheet: Path | None = None
    """Style sheet for pages that load Tailwind, such as Tailwind's own `tailwind.min.css`; unset: Treadle makes the
    rules of the most used classes itself."""

    def read_stylesheet(self) -> str | None:
        """Return the text of the style sheet; None without one. Raises ConfigError if it cannot be read."""
        if self.stylesheet is None:
            return None
        try:
            return self.stylesheet.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"environment.stylesheet {self.stylesheet} cannot be read: {error}") from None

    @property
    def styles(self) -> str:
        """Source of Tailwind's rules: `treadle`, or the SHA-256 of the style sheet."""
        sheet = self.read_stylesheet()
        return "treadle" if sheet is None else hashlib.sha256(sheet.encode()).hexdigest()

    def digest_parts(self, form: str | None) -> dict[str, Any]:
        """See `EnvironmentSettings`. A style sheet that cannot be read is reported when the environment is opened."""
        try:
            styles: str | None = self.styles
        except ConfigError:
            styles = None
        return {**super().digest_parts(form), "styles": styles}
