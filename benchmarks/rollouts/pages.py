"""Measure how long pages take to draw: 60 rollouts of three pages each, with several pages in a browser at once.

`python -m benchmarks.rollouts.pages [--pages 180] [--at-once 4]` prints one line. Pages are those of the demo, each of
another design, with Tailwind's rules and a picture, so that no drawing comes from a cache. The start of the
browser counts. They are drawn twice, in two browsers, and must have the same bytes. Exit code 1 if they take longer
than `--most-s` (120 s for 180 pages on two otherwise idle cores), or differ.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from treadle.agent.browser.renderer import PageRenderer
from treadle.agent.browser.settings import BrowserSettings
from treadle.demo.pages.design import SHOPS, page
from treadle.demo.pages.tasks import drawn_design
from treadle.environments.colbench.frontend.stand_ins import stand_in, with_styles

PICTURE = '<img src="https://picsum.photos/id/48/{width}/300">'


def html_of(number: int) -> str:
    """Return a page that differs from all others."""
    html = page(SHOPS[number % len(SHOPS)], drawn_design(0, number))
    return with_styles(html.replace("</main>", f"</main>{PICTURE.format(width=300 + number)}"))


async def drawn(num_pages: int, settings: BrowserSettings) -> tuple[list[bytes], float]:
    """Return the pictures of all pages, and the seconds that they took with the start of the browser."""
    began = time.perf_counter()
    async with PageRenderer(settings, stand_in) as renderer:
        pictures = await asyncio.gather(*(renderer.draw(html_of(number)) for number in range(num_pages)))
        return list(pictures), time.perf_counter() - began


def main() -> int:
    """Draw the pages twice, print figures, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, default=180)
    parser.add_argument("--at-once", type=int, default=BrowserSettings().pages_at_once)
    parser.add_argument("--most-s", type=float, default=120.0)
    options = parser.parse_args()
    settings = BrowserSettings(pages_at_once=options.at_once)
    pictures, first_s = asyncio.run(drawn(options.pages, settings))
    again, second_s = asyncio.run(drawn(options.pages, settings))
    num_different = sum(one != other for one, other in zip(pictures, again, strict=True))
    print(
        f"{options.pages} pages, {options.at_once} at once: {first_s:.1f} and {second_s:.1f} s; "
        f"{len(set(pictures))} different pictures, {num_different} with other bytes in the second browser"
    )
    return int(num_different > 0 or max(first_s, second_s) > options.most_s)


if __name__ == "__main__":
    sys.exit(main())
