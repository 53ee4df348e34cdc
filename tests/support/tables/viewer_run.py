"""A run with every kind of trajectory for the viewer: rollouts with scores, pools with fine-tuning rows, a training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from starlette.testclient import TestClient
from support.tables.score_tables import GivenRows, new_run, put_rows, put_tables

from treadle.agent.contract import CallRecord, Ledger
from treadle.agent.dialects.tags import TOOL_DIALECT, tokenise
from treadle.core.runs.address import Address
from treadle.core.runs.execute import execute
from treadle.core.runs.run import Run
from treadle.core.runs.stage import Instance, Stage, StageContext
from treadle.core.tables import TABLES, Table
from treadle.datagen.pools.tables import POOL_EVENTS, POOL_QUESTIONS, POOLS
from treadle.datagen.questions.tables import QUESTIONS
from treadle.datagen.sft_rows.tables import SFT_REJECTIONS, SFT_ROWS
from treadle.environments.rollouts.tables import ROLLOUTS
from treadle.environments.rollouts.tool_counts import tool_counts
from treadle.eval.tables import JUDGEMENTS, SCORES
from treadle.rl.training.tables import RL_ROLLOUTS
from treadle.stages.registry import stage_entries
from treadle.tasks.inspection.lineage import trace_back

stage_entries()


def traced(run: Run, key: str) -> list[dict[str, Any]]:
    """Return the lineage of a trajectory as the command `treadle view` gives it to the viewer."""
    return [step.as_dict() for step in trace_back(run, key)]


_EMPTY: dict[str, Any] = {"string": "", "bool": False, "double": 0.0}


def filled(table: Table, **columns: Any) -> dict[str, Any]:
    """Return a row with these columns; the others are empty, or null where they may be."""
    row = {}
    for field in table.schema:
        kind = str(field.type)
        row[field.name] = None if field.nullable else [] if kind.startswith("list") else _EMPTY.get(kind, 0)
    row |= {name: _empty_json(kind) for name, kind in table.parsed.items() if row[name] is not None}
    unknown = columns.keys() - row.keys()
    return {**row, **{name: value for name, value in columns.items() if name not in unknown}}


def _empty_json(kind: pa.DataType) -> str:
    """Return the text of a column of JSON text without items, by its parsed type."""
    is_list = pa.types.is_list(kind) and not (kind.value_type.num_fields and kind.value_type.field(0).metadata)
    return "[]" if is_list else "{}"


def put_from(
    run: Run,
    address: str,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    inputs: Mapping[str, Address],
    *,
    environment: str = "question",
    environments: Mapping[str, str] = MappingProxyType({}),
) -> Address:
    """Make the instance at `address` hold these tables, made from what others hold: kind -> instance.

    `environment` is the type of its default environment, `environments` are the types of others by name.
    """
    place = Address.parse(address)

    def write(context: StageContext) -> dict[str, Any]:
        for kind, given in json.loads(context.settings.rows).items():
            context.write(kind, given)
        return {}

    stage = Stage(
        name=place.stage, version=1, settings=GivenRows, consumes={kind: kind for kind in inputs},
        produces=tuple(TABLES[kind] for kind in rows), run=write,
    )  # fmt: skip
    given = json.dumps({kind: list(of_kind) for kind, of_kind in rows.items()})
    others = {name: {"type": kind} for name, kind in environments.items()}
    settings = GivenRows(rows=given, environment={"type": environment}, environments=others)
    made_from = {kind: (source,) for kind, source in inputs.items()}
    execute(Instance(address=place, stage=stage, settings=settings, inputs=made_from), run)
    return place


def segments(*parts: tuple[str, str], with_ids: bool = False) -> str:
    """Return segments in their markers, with ten token ids each if there are ids."""
    found = []
    for place, (kind, inner) in enumerate(parts):
        text = inner if kind == "text" else f"<{kind}>{inner}</{kind}>"
        start, end = (10 * place, 10 * place + 10) if with_ids else (0, 0)
        found.append({"kind": kind, "text": text, "start": start, "end": end})
    return json.dumps(found)


def agent_row(table: Table, key: str, question: str, *parts: tuple[str, str], **columns: Any) -> dict[str, Any]:
    """Return a row of `rollouts` or `pools`: answered, its ledger after its segments, all calls well."""
    outcomes = columns.pop("outcomes", {})
    with_ids = columns.pop("with_ids", False)
    tools = [kind for kind, _ in parts if kind in ("search", "python")]
    calls = [
        {"tool": tool, "argument": "x", "status": outcomes.get(place, "ok"), "turn": place, "result_chars": 1}
        for place, tool in enumerate(tools)
    ]
    defaults = {
        "rollout_key": key, "question_key": question, "dataset": "world", "domain": "qa", "model": "base",
        "environment": "default",
        "operator": "rollout", "status": "answered", "segments": segments(*parts, with_ids=with_ids),
        "text": "".join(f"<{kind}>{inner}</{kind}>" for kind, inner in parts), "tool_calls": json.dumps(calls),
        "calls_requested": len(tools), "calls_executed": len(tools), "completion_tokens": 100 + 10 * len(parts),
        "tools": tool_counts(Ledger(CallRecord(call["tool"], "x", call["status"], 0) for call in calls)),
        "num_turns": len(tools) + 1, "failed_calls": sum(call["status"] != "ok" for call in calls),
        "judge": json.dumps({"method": "qa_f1", "raw": [], "error": None}), "prompts": "{}",
        "models": '{"policy": "base"}',
        "usage": '{"policy": {"calls": 2, "prompt_tokens": 900, "completion_tokens": 100}}',
    }  # fmt: skip
    return filled(table, **{**defaults, **columns})


def judgement_row(kind: str, key: str, question: str, replies: Sequence[str], **columns: Any) -> dict[str, Any]:
    """Return a row of `judgements` by the judge `tutor`."""
    fixed = {"judgement_key": f"{kind}-{key}", "kind": kind, "judge": "tutor", "status": "parsed"}
    return filled(JUDGEMENTS, rollout_key=key, question_key=question, replies=list(replies), **{**fixed, **columns})


def question_row(key: str, text: str, answers: Sequence[str] = ("Ilme",), **columns: Any) -> dict[str, Any]:
    """Return a row of `questions`."""
    fixed = {"dataset": "world", "domain": "qa", "split": "heldout", "source_file": "world.jsonl", "source_row": 1}
    fixed["environment"] = "default"
    return filled(
        QUESTIONS,
        question_key=key,
        question=text,
        answers=list(answers),
        meta="{}",
        payload="{}",
        **{**fixed, **columns},
    )


THINK = ("think", "The river that flows through Vorna should stand in the corpus. I search for it.")
SEARCH = ("search", "river through Vorna")
RESULT = (
    "result",
    "\n[1] Vorna: Vorna is a town on the Ilme, below the old bridge.\n[2] Tesk: Tesk lies on the Arn.\n",
)
SURE = ("think", "The first document says it: the Ilme.")
ANSWER = ("answer", r"The river is \boxed{Ilme}.")
PYTHON = ("python", "rivers = {'Vorna': 'Ilme'}\nprint(rivers['Vorna'])")
FAILURE = ("result", "KeyError: 'Vorna'")


def example_run(root: Path | str) -> Run:
    """Return a small run with everything in it."""
    run = new_run(root)
    questions = [
        question_row("q1", "Which river flows through Vorna, the town below the old bridge?"),
        question_row("q2", "How many bridges cross the Arn?", ["3", "three"], dataset="sums", domain="math"),
        question_row("q3", "Which hill is highest?", ["B"], choices=["Tesk", "Arn", "Oreb"], domain="choice"),
    ]
    put_rows(run, "1/questions", QUESTIONS, questions)
    _put_rollouts(run)
    _put_pools(run)
    _put_training(run)
    return run


def _put_rollouts(run: Run) -> None:
    table = ROLLOUTS
    rows = [
        agent_row(table, "r1", "q1", THINK, SEARCH, RESULT, SURE, ANSWER),
        agent_row(table, "r2", "q1", THINK, PYTHON, FAILURE, ANSWER, outcomes={0: "error"}, sample_index=1),
        agent_row(
            table, "r3", "q2", THINK, SEARCH, RESULT, PYTHON, FAILURE, outcomes={1: "timeout"}, status="max_turns",
            dataset="sums", domain="math",
        ),
        agent_row(table, "r4", "q2", ("text", "I cannot say."), status="no_answer", dataset="sums", domain="math"),
        agent_row(table, "r5", "q3", status="failed", error="the endpoint went away", domain="choice"),
    ]  # fmt: skip
    made = put_rows(run, "1/rollouts@base", table, rows)
    verdicts = {"r1": True, "r2": False, "r3": False, "r4": None}
    said = {"verdict": True, "status": "parsed", "raw": ["It names the Ilme.\nVERDICT: right"]}
    scores = [
        filled(
            SCORES, rollout_key=key, question_key=row["question_key"], dataset=row["dataset"],
            domain=row["domain"], model="base", status=row["status"], prediction="Ilme" if correct else "",
            correct=correct, score=None if correct is None else float(correct),
            parts=[{"name": "f1", "value": float(bool(correct))}],
            scorer="qa_f1", error="the checker ended early" if correct is None else None,
            judges=json.dumps({"tutor": said} if correct else {}),
            votes_yes=2 if correct else None, votes_no=7 if correct else None, votes_abstained=1 if correct else None,
        )
        for key, correct in verdicts.items()
        for row in rows
        if row["rollout_key"] == key
    ]  # fmt: skip
    votes = [f"The call for Vorna was of use ({place}).\n<answer>no</answer>" for place in range(7)]
    judgements = [
        judgement_row("correctness", "r1", "q1", said["raw"], prediction="Ilme"),
        judgement_row("redundancy", "r1", "q1", [*votes, *["<answer>yes</answer>"] * 2, "perhaps"]),
    ]
    put_from(run, "1/scores@base", {"scores": scores, "judgements": judgements}, {"rollouts": made})


def _put_pools(run: Run) -> None:
    table = POOLS
    right = {"correct": True, "score": 1.0, "prediction": "Ilme"}
    wrong = {"correct": False, "score": 0.0, "prediction": "Arn"}
    said = json.dumps({"method": "model", "raw": ["The Arn is another river.\nVERDICT: wrong"], "error": None})
    guess = ("answer", r"The river is \boxed{Arn}.")
    rows = [
        agent_row(table, "p1", "q1", THINK, SEARCH, RESULT, ("think", "It must be the Arn."), guess,
                  operator="initial", with_ids=True, **{**wrong, "judge": said}),
        agent_row(table, "p2", "q1", THINK, SEARCH, RESULT, ("think", "It must be the Ilme, says the first."), ANSWER,
                  operator="hint_tail", round=1, parents=["p1"], sample_index=1, edit_step=2,
                  edit_text="Look at the first document again.", with_ids=True, **right),
        agent_row(table, "p3", "q1", THINK, ANSWER, operator="redundant_mod", round=2, parents=["p2"], sample_index=2,
                  **right),
    ]  # fmt: skip
    events = [
        {"event_index": 0, "round": 1, "operator": "hint_tail", "parent": "p1", "outcome": "produced",
         "rollout_key": "p2"},
        {"event_index": 1, "round": 1, "operator": "hint_step", "parent": "p1", "outcome": "rejected",
         "reason": "no_step_number", "reply": "I would begin anew."},
        {"event_index": 2, "round": 2, "operator": "redundant_mod", "parent": "p2", "outcome": "produced",
         "rollout_key": "p3"},
    ]  # fmt: skip
    outcome = {"status": "ok", "num_rounds": 2, "num_trajectories": 3, "num_correct": 2, "usage": "{}"}
    tables = {
        "pools": rows,
        "pool_questions": [filled(POOL_QUESTIONS, question_key="q1", dataset="world", domain="qa", **outcome)],
        "pool_events": [filled(POOL_EVENTS, question_key="q1", usage="{}", **event) for event in events],
    }
    made = put_tables(run, "1/pools", tables)
    labels = [*[-100] * 5, *range(20), *[-100] * 10, *range(20), 7]
    taken = filled(
        SFT_ROWS, rollout_key="p2", question_key="q1", input_ids=list(range(len(labels))), labels=labels,
        num_tokens=len(labels), num_prompt_tokens=5, num_result_tokens=10, num_target_tokens=41,
    )  # fmt: skip
    rejected = [
        filled(SFT_REJECTIONS, rollout_key=key, question_key="q1", reason=reason, reasons=[reason])
        for key, reason in (("p1", "not_correct"), ("p3", "over_limit"))
    ]
    put_from(run, "1/sft_rows", {"sft_rows": [taken], "sft_rejections": rejected}, {"pools": made})


def _put_training(run: Run) -> None:
    text = f"<think>{THINK[1]}</think><search>{SEARCH[1]}</search><result>{RESULT[1]}</result>"
    first = {"reward": 0.81, "score": 1.0, "parts": _parts(f_format=0.0, f_len=0.9, f_tool=0.9)}
    rows = [
        {"session": 0, "output": f"{text}<answer>{ANSWER[1]}</answer>", "prediction": "Ilme", **first},
        {"session": 1, "output": f"{text}<answer>Arn</answer>", "prediction": "Arn", "reward": -1.0, "score": 0.4,
         "parts": _parts(f_format=-1.0, f_len=1.0, f_tool=0.9), "notes": "no_box order", "branch_parent": 0,
         "branch_depth": 1, "tool_failures": 1},
        {"session": 2, "output": "", "finish": "failed"},
    ]  # fmt: skip
    fixed = {
        "step": 3, "group": "g/7?", "question_key": "q1", "dataset": "world", "domain": "qa", "finish": "answered",
        "environment": "default",
        "tool_calls": 1, "model_tokens": 120, "total_tokens": 180,
    }  # fmt: skip
    for row in rows:
        row["segments"] = json.dumps([asdict(one) for one in tokenise(str(row["output"]), TOOL_DIALECT)])
    put_rows(run, "1/rl@phase-1", RL_ROLLOUTS, [filled(RL_ROLLOUTS, **{**fixed, **row}) for row in rows])


def _parts(**values: float) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def client(run: Run, **options: Any) -> TestClient:
    """Return a client of the viewer of a run, which rereads the run each time, without a network."""
    from treadle.viewer.app import make_app

    return TestClient(make_app(run, traced, refresh_s=0), base_url="http://127.0.0.1:8484", **options)


@contextmanager
def served(run: Run, *, refresh_s: float = 0.0, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve the viewer of a run on a free port; yield its URL without a slash at the end."""
    import threading

    import uvicorn

    from treadle.viewer.app import make_app
    from treadle.viewer.server import listen

    config = uvicorn.Config(make_app(run, traced, refresh_s=refresh_s), log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with listen(host, 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def dialogue_row(key: str, question: str, *messages: tuple[str, str], **columns: Any) -> dict[str, Any]:
    """Return a row of `rollouts`: messages as pairs of kind and text, with a frame after each but the last.

    `text` is what the policy wrote. Each segment has ten token ids, and each message of the policy is a turn.
    """
    parts = [part for message in messages for part in (message, ("frame", "<|im_end|>\n<|im_start|>x\n"))][:-1]
    places = range(0, 10 * len(parts), 10)
    given = [
        {"kind": kind, "text": text, "start": place, "end": place + 10}
        for place, (kind, text) in zip(places, parts, strict=True)
    ]
    starts = [one["start"] for one in given if one["kind"] == "text"]
    sample = {"prompt_ids": [1, 2], "training_prompt_ids": None, "ids": [], "origins": [], "spans": []}
    defaults = {
        "rollout_key": key, "question_key": question, "dataset": "world", "domain": "task", "model": "base",
        "environment": "default",
        "operator": "rollout", "status": "finished", "segments": json.dumps(given),
        "text": "".join(text for _, text in parts), "tool_calls": "[]", "completion_tokens": 10 * len(starts),
        "num_turns": len(starts), "samples": [sample | {"turn_starts": starts}],
    }  # fmt: skip
    return filled(ROLLOUTS, **{**defaults, **columns})
