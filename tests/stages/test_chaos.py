"""Rollouts against servers that fail in every way at once: counts are checked, durations are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "rollouts" / "chaos.py"
NUM_ROLLOUTS = int(os.environ.get("TREADLE_CHAOS_ROLLOUTS", "200"))
SAMPLE = ("--in-flight", "24", "--latency", "0.05", "--jitter", "0.1", "--outage", "3", "--hedge-floor", "1",
          "--faults", "500=0.05,429=0.05,reset=0.04,hang=0.04,malformed=0.04")  # fmt: skip
# Each of at least 516 requests, those of the run without faults, draws its fault. That all miss a kind of 4 % happens
# once in 1 / 0.96^516 = 1.4e9 times, and all miss any of the five with 3 * 0.96^516 + 2 * 0.95^516 = 2.1e-9.
LONG = ("--in-flight", "64", "--latency", "0.5", "--jitter", "1.0", "--outage", "30")


def chaos(outages: tuple[str, ...]) -> dict[str, Any]:
    """Return the figures of the benchmark; a sample of it unless more rollouts are asked for."""
    shape = (*(LONG if NUM_ROLLOUTS >= 1000 else SAMPLE), "--outages", *outages)
    command = [sys.executable, str(BENCHMARK), "--json", "--rollouts", str(NUM_ROLLOUTS), *shape]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


@pytest.mark.sweep
@pytest.mark.parametrize("outages", [("kill",), ("freeze", "kill")] if NUM_ROLLOUTS >= 1000 else [("freeze", "kill")])
def test_injected_faults_and_outages_change_no_row_and_cost_one_retry_each(outages: tuple[str, ...]) -> None:
    result = chaos(outages)
    made = result["chaos"]
    summary = json.dumps({name: value for name, value in result.items() if name != "calm"})
    print(summary)
    assert made["rollouts"] == result["calm"]["rollouts"] >= 0.9 * NUM_ROLLOUTS
    assert made["proper"] >= 0.999 * made["rollouts"], summary
    assert made["statuses"].get("timeout", 0) == 0 and made["longest_s"] < 120, summary
    assert result["same_rows"], summary
    assert {"500", "429", "reset", "malformed", "hang"} <= set(made["faults"]), summary
    assert made["faults"].get("frozen", 0) > 0 or "freeze" not in outages, summary
    assert result["retries_per_fault"] <= 1.2, summary
