"""The documented commands that need a Prefect server are run as written, page by page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.docs_desk import Shell
from support.docs_pages import PREFECT, Block, blocks, pages
from support.sweep import sampled

RUNNABLE = [page for page in pages() if any(block.remark == PREFECT for block in blocks(page))]
ADDRESS = re.compile(r'eval "\$\(treadle prefect env\)"')
"""What names the server of `treadle prefect up`."""
RUN = "--param run_id="


@pytest.mark.parametrize(
    "page", sampled(RUNNABLE, [page for page in RUNNABLE if page.name == "README.md"]), ids=lambda page: page.name
)
def test_page_commands_run_as_written(prefect_home, page: Path, tmp_path: Path) -> None:
    shell = Shell(Path(prefect_home.env["PATH"].partition(":")[0]), prefect_home.env)
    for block in blocks(page):
        if block.remark == PREFECT:
            # They use the tests' server, and a root without other runs.
            text = ADDRESS.sub(f"export PREFECT_API_URL={prefect_home.url}", block.text)
            text = text.replace(RUN, f"--param root={tmp_path}/outputs {RUN}")
            shell.run_block(Block(page, block.line, block.language, text, block.remark), tmp_path)
    assert (tmp_path / "outputs/runs/first/records/1/report.json").is_file(), "what ran is the run of the page"


def test_prefect_pages_are_included() -> None:
    assert {"README.md", "prefect.md"} <= {page.name for page in RUNNABLE}
