"""Run the work with bespokelabs-curator: one `curator.LLM` over a data set, online, with its cache of responses.

Resume: the same call again with the same cache folder.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import work

_litellm = find_spec("litellm")
assert _litellm is not None and _litellm.origin is not None
# Its token counter would download this vocabulary; litellm, a dependency of it, ships the file.
os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(_litellm.origin).parent / "litellm_core_utils" / "tokenizers")

os.environ |= {
    "TELEMETRY_ENABLED": "false",
    "CURATOR_DISABLE_RICH_DISPLAY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}

from bespokelabs import curator  # noqa: E402 (reads its environment on import)
from datasets import Dataset  # noqa: E402


class Answers(curator.LLM):
    """LLM block with one question per row."""

    def prompt(self, row: dict[str, Any]) -> list[dict[str, str]]:
        """Return the messages of one row."""
        return [{"role": "system", "content": work.SYSTEM}, {"role": "user", "content": row["question"]}]

    def parse(self, row: dict[str, Any], response: str) -> dict[str, Any]:
        """Return the finished row."""
        return {"item": row["item"], "response": response}


def main() -> None:
    """Run the work, or resume it."""
    kind, url, num_items, in_flight, folder, _ = work.arguments()
    limits = {"max_requests_per_minute": 10_000_000, "max_tokens_per_minute": 10_000_000_000}
    llm = Answers(
        model_name=work.MODEL,
        backend="openai",
        backend_params={"base_url": url, "api_key": "none", "max_concurrent_requests": in_flight, **limits},
    )
    rows = [{"item": item, "question": work.prompt(kind, item)} for item in range(num_items)]
    table = llm(Dataset.from_list(rows), working_dir=str(folder / "cache")).dataset
    assert all("2300" in text for text in table["response"])
    work.report(list(table["item"]))


if __name__ == "__main__":
    main()
