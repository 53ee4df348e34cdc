"""A process that labels eleven groups and prints their advantages: `... labelling_process URL FOLDER OUTAGE_WAIT_S`.

Labels are kept in FOLDER, as a training keeps them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.credit.worked_example import attribution, credit_group, label_actions

from treadle.core.errors import EndpointUnavailable
from treadle.rl.credit.base import turn_credits

NUM_GROUPS = 11
REQUEST_TIME_S = 20.0
MODELS = {"scripted": label_actions}
"""Script by model, for a server in a process of its own."""


def main(url: str, folder: str, outage_wait_s: str) -> None:
    """Credit one group after the other."""
    model = {
        "model": "scripted",
        "endpoints": [{"url": url}],
        "retry_limit": 0,
        "probe_base_s": 0.05,
        "outage_wait_s": float(outage_wait_s),
    }
    rule = attribution(url, model=model, concurrency=1, request_time_s=REQUEST_TIME_S)
    with rule.open(Path(folder)):
        groups = [credit_group(query=f"Do it {number}.") for number in range(NUM_GROUPS)]
        try:
            print(json.dumps([[advantages for advantages, _ in turn_credits(rule, group)] for group in groups]))
        except EndpointUnavailable as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:4])
