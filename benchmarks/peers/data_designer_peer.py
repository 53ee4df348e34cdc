"""Run the work with NeMo Data Designer: a seed table and one column of text by a model.

Its buffer (rows per group, the unit of its checkpoints) is as large as the number of requests in flight, and as many
groups are active as needed to fill them. Resume: `create` of the same dataset with `ResumeMode.ALWAYS`.
"""

from __future__ import annotations

import os

import work

os.environ |= {"NEMO_TELEMETRY_ENABLED": "false", "DATA_DESIGNER_ASYNC_ENGINE": "1"}

import data_designer.config as dd
import pandas as pd
from data_designer.interface import DataDesigner


def main() -> None:
    """Create the dataset, or resume it."""
    kind, url, num_items, in_flight, folder, resume = work.arguments()
    provider = dd.ModelProvider(name="stub", endpoint=url, provider_type="openai", api_key="none")
    parameters = dd.ChatCompletionInferenceParams(max_parallel_requests=in_flight)
    model = dd.ModelConfig(alias="stub", model=work.MODEL, provider="stub", inference_parameters=parameters)
    config = dd.DataDesignerConfigBuilder(model_configs=[model])
    rows = pd.DataFrame([{"item": item, "question": work.prompt(kind, item)} for item in range(num_items)])
    config.with_seed_dataset(dd.DataFrameSeedSource(df=rows))
    config.add_column(
        dd.LLMTextColumnConfig(
            name="answer", prompt="{{ question }}", system_prompt=work.SYSTEM.strip(), model_alias="stub"
        )
    )
    designer = DataDesigner(artifact_path=folder / "artifacts", model_providers=[provider])
    designer.set_run_config(dd.RunConfig(buffer_size=in_flight, display_tui=False))
    mode = dd.ResumeMode.ALWAYS if resume else dd.ResumeMode.NEVER
    table = designer.create(config, num_records=num_items, dataset_name="peers", resume=mode).load_dataset()
    assert table["answer"].str.contains("2300").all()
    work.report([int(item) for item in table["item"]])


if __name__ == "__main__":
    main()
