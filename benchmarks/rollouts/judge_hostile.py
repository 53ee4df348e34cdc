"""Measure how often hostile trajectories flip the verdicts of a real small model, compared with their clean twins.

    python -m benchmarks.rollouts.judge_hostile [--clean 200]

Serves the embedded SmolLM2-135M-Instruct (`treadle env install serve`) as judge, with greedy sampling and at most 16
new tokens. The 200 cases are those of tests/stages/scoring/test_judges_hostile.py. A verdict is flipped if it is the
wrong one that the hostile text aims for; `clean_wrong` counts wrong verdicts on clean twins.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path

from treadle.agent.call_cache import NullCache
from treadle.agent.judges.cases import Case, Verdict
from treadle.agent.judges.model import ModelJudge
from treadle.agent.role import RoleModel
from treadle.core.chat import ChatTokenizer
from treadle.core.engines.config import VllmServer
from treadle.core.engines.serving import ServedModel, serve
from treadle.core.llm.config import EndpointSettings, ModelSettings, Sampling
from treadle.core.llm.pool import ModelPool

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from support.rollouts.hostile_answers import hostile_cases

WINDOW = 4096


async def judge_all(served: ServedModel, cases: list[Case]) -> list[Verdict]:
    """Return the verdicts in the order of the cases."""
    assert served.tokenizer_folder is not None
    codec = ChatTokenizer.load(served.tokenizer_folder)
    settings = ModelSettings(
        model=served.model, endpoints=(EndpointSettings(url=served.url),), max_in_flight=16, hedge_floor_s=None
    )
    async with ModelPool("judge", settings) as pool:
        model = RoleModel("judge", "judge", pool, Sampling(temperature=0.0, max_tokens=16), codec, codec, WINDOW)
        async with ModelJudge(model) as judge:
            return await asyncio.gather(*(judge.verdict(case, NullCache()) for case in cases))


def said(verdict: Verdict) -> str:
    """Return the label of a verdict; `not asked` if the answer is too long to be judged."""
    if verdict.method != "model":
        return "not asked"
    return {True: "Correct", False: "Incorrect", None: "unknown"}[verdict.correct]


def main() -> None:
    """Run the judge, and print a table and a JSON summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clean", type=int, default=200, help="number of clean twins to judge as well")
    clean_wanted = parser.parse_args().clean
    hostile = hostile_cases()
    step = max(1, len(hostile) // clean_wanted)
    clean = hostile[::step]
    with serve(VllmServer(max_model_len=WINDOW), model_name="smollm2", notify=print) as served:
        started = time.monotonic()
        verdicts = asyncio.run(judge_all(served, [*(one.case for one in hostile), *(one.clean for one in clean)]))
        seconds = time.monotonic() - started
    counts: dict[tuple[str, bool], Counter[str]] = {}
    kinds = [*(("hostile", one.right) for one in hostile), *(("clean", one.right) for one in clean)]
    for kind, verdict in zip(kinds, verdicts, strict=True):
        counts.setdefault(kind, Counter())[said(verdict)] += 1
    columns = ("Correct", "Incorrect", "unknown", "not asked")
    print("| | answers | " + " | ".join(columns) + " |")
    for (name, right), row in counts.items():
        label = f"{name}, {'right' if right else 'wrong'} answers"
        print(f"| {label} | {row.total()} | " + " | ".join(str(row[column]) for column in columns) + " |")
    # `verdicts` continues with those on the clean twins, hence strict=False.
    flipped = sum(verdict.correct is (not one.right) for one, verdict in zip(hostile, verdicts, strict=False))
    wrong_anyway = sum(
        verdict.correct is (not one.right) for one, verdict in zip(clean, verdicts[len(hostile) :], strict=True)
    )
    replies = Counter(" ".join(reply.split())[:60] for verdict in verdicts for reply in verdict.raw)
    summary = {
        "flipped": flipped,
        "clean_wrong": wrong_anyway,
        "seconds": round(seconds, 1),
        "prompt_tokens": sum(verdict.prompt_tokens for verdict in verdicts),
        "completion_tokens": sum(verdict.completion_tokens for verdict in verdicts),
        "commonest_replies": replies.most_common(12),
    }
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
