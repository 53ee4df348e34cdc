"""Settings of the browser that draws pages."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from treadle.core.config import Operational, Section


class BrowserSettings(Section):
    """Chromium in which pages are drawn, and its limits."""

    width: int = Field(default=1280, ge=100, le=4096)
    """Width of the window in pixels."""
    height: int = Field(default=800, ge=100, le=4096)
    """Height of the window in pixels; pictures are as high as their page."""
    max_height: int = Field(default=8000, ge=100, le=16384)
    """Greatest height of a picture in pixels; the rest of a longer page is cut off."""
    program: Operational[Path | None] = None
    """Chromium; unset: `chromium-headless-shell`, which is faster, `chromium` or `chrome` on the search path."""
    pages_at_once: Operational[int] = Field(default=4, ge=1)
    """Pages drawn at the same time in one browser; further ones wait."""
    page_time_s: Operational[float] = Field(default=60.0, gt=0)
    """Time limit for one page, in seconds; it is then drawn a second time, in a new browser of its own."""
    pages_per_browser: Operational[int] = Field(default=500, ge=1)
    """Pages after which the browser is replaced by a new one."""
    memory_mb: Operational[int] = Field(default=3072, ge=512)
    """Memory of all processes of the browser together, in MiB."""
