"""Run the work with distilabel: one `TextGeneration` step over a list of rows.

The batches are as large as the number of requests in flight. Resume: the same pipeline again with its cache, which
keeps whole batches.
"""

from __future__ import annotations

import os

import work
from distilabel.models import OpenAILLM
from distilabel.pipeline import Pipeline
from distilabel.steps import LoadDataFromDicts
from distilabel.steps.tasks import TextGeneration


def main() -> None:
    """Run the pipeline, or resume it."""
    kind, url, num_items, in_flight, folder, _ = work.arguments()
    os.environ["DISTILABEL_LOG_LEVEL"] = "WARNING"
    os.environ["HF_HUB_OFFLINE"] = "1"
    rows = [{"item": item, "instruction": work.prompt(kind, item)} for item in range(num_items)]
    with Pipeline(name="peers", cache_dir=folder / "cache") as pipeline:
        load = LoadDataFromDicts(data=rows, batch_size=in_flight)
        llm = OpenAILLM(model=work.MODEL, base_url=url, api_key="none", generation_kwargs={"max_new_tokens": 1024})
        load >> TextGeneration(llm=llm, system_prompt=work.SYSTEM, input_batch_size=in_flight)
    table = pipeline.run(use_cache=True)["default"]["train"]
    assert all("2300" in text for text in table["generation"])
    work.report(list(table["item"]))


if __name__ == "__main__":
    main()
