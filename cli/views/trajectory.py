"""Render a trajectory for `treadle show`. All text of models and data sets is sanitized here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.text import Text

from treadle.agent.dialects.base import FRAME, REASONING
from treadle.core.untrusted.sanitize import one_line, sanitize
from treadle.environments.rollouts.tool_counts import counts_text
from treadle.environments.settings import DEFAULT_TYPE
from treadle.tasks.inspection.lineage import FoundRollout
from treadle.viewer.changes.trajectory_changes import ChangedSegment, TrajectoryChanges, folded
from treadle.viewer.segments import call_kinds, calls_by_place, style_of
from treadle.viewer.turns import POLICY, opening_text, trimmed_places, turn_heads
from treadle.web.record.run_entries import shown_sources

SEGMENT_STYLES = {
    "think": "dim",
    "call-0": "magenta",
    "call-1": "blue",
    "call-2": "bright_magenta",
    "call-3": "cyan",
    "result": "yellow",
    "answer": "bold green",
}
"""Style of a segment in the viewer -> style in the terminal."""
_MAX_NAME_CHARS = 64
_THINK = "<think>"
_MARKS = {"removed": ("- ", "red"), "added": ("+ ", "green")}
VERDICTS = {True: ("right", "green"), False: ("wrong", "red"), None: ("no verdict", "yellow")}


def trajectory_view(found: FoundRollout, addresses: Mapping[str, str] = MappingProxyType({})) -> Group:
    """Render a trajectory with its question, origin and verdict, and its changes from the parent.

    `addresses`: key of a web entry -> URL of its page, as far as known.
    """
    parts: list[RenderableType] = [Panel(_head(found), expand=False), *_edit(found), _body(found)]
    if (changes := found.changes) is not None:
        assert found.parent is not None
        parts += [Rule(Text(one_line(f"against {found.parent['rollout_key']}")), style="dim", align="left")]
        parts += [changes_view(changes, found.parent)]
    return Group(*parts, Panel(_verdict(found, addresses), expand=False))


def _head(found: FoundRollout) -> Text:
    row, head = found.rollout, Text()
    origin = f"{row['rollout_key']}  {row['model']}  {row['dataset']}  sample {row['sample_index']}"
    if found.is_of_pool:
        parent = f" from {row['parents'][0]}" if row["parents"] else ""
        step = f", step {row['edit_step']}" if row["edit_step"] is not None else ""
        made = f"round {row['round']}, {row['operator']}{parent}{step}" if row["round"] else row["operator"]
        origin = f"{row['rollout_key']}  {made}  {row['dataset']}"
    head.append(one_line(origin) + "\n", style="dim")
    head.append(sanitize(found.question["question"]) + "\n", style="bold")
    if found.question["answers"]:
        head.append("gold: " + sanitize(" | ".join(found.question["answers"])), style="green")
    if found.environment_label != DEFAULT_TYPE:
        head.append(one_line(f"environment: {found.environment_label}"), style="dim")
    return head


def _edit(found: FoundRollout) -> list[Panel]:
    """Render the text that an operator inserted, and its models and prompts."""
    row = found.rollout
    if not found.is_of_pool or not (row["edit_text"] or orjson.loads(row["prompts"])):
        return []
    text = Text(sanitize(row["edit_text"]) or "no text of its own", style="" if row["edit_text"] else "dim")
    models, prompts = orjson.loads(row["models"]), orjson.loads(row["prompts"])
    text.append("\n" + one_line("models: " + ", ".join(f"{role} {models[role]}" for role in models)), style="dim")
    if prompts:
        asked = ", ".join(f"{name} {digest}" for name, digest in prompts.items())
        text.append("\n" + one_line(f"prompts: {asked}"), style="dim")
    return [Panel(text, title=Text(one_line(f"edit by {row['operator']}")), title_align="left", expand=False)]


def _body(found: FoundRollout) -> Text:
    """Render the segments without those of the chat template; in a dialogue, under the names of the speakers."""
    row, body = found.rollout, Text()
    calls, kinds = calls_by_place(found.segments, found.tool_calls), call_kinds(found.segments, found.tool_calls)
    heads = turn_heads(found.segments, row.get("samples") or (), row.get("turn_rewards") or (), row["num_turns"])
    if heads and (opening := opening_text(row)):
        body.append(sanitize(opening) + "\n\n", style="dim")
    trimmed = trimmed_places(found.segments)
    for place, segment in enumerate(found.segments):
        if place in trimmed:
            body.append("-- context trimmed: from here on, the model saw only a part of the above --\n", style="dim")
        if segment["kind"] == FRAME:
            continue
        if head := heads.get(place):
            rewards = "".join(f", reward {reward:g}" for reward in head.rewards)
            body.append(f"{head.label}{rewards}\n", style="bold" if head.speaker == POLICY else "bold blue")
        tool = calls[place]["tool"] if place in calls else ""
        style = style_of(segment["kind"], kinds, tool)
        if segment["kind"] == REASONING and not segment["text"].lstrip().startswith(_THINK):
            body.append("reasoning: ", style="dim italic")  # Nothing else distinguishes it from the reply's text.
        body.append(sanitize(segment["text"]), style=SEGMENT_STYLES.get(style, ""))
        body.append("\n")
    return body


def _verdict(found: FoundRollout, addresses: Mapping[str, str]) -> Text:
    row, text = found.rollout, Text()
    facts = [one_line(row["status"]) + (", truncated" if row.get("truncated") else ""), f"{row['num_turns']} turns"]
    if row["calls_requested"] or found.environment == DEFAULT_TYPE:
        by_tool = f" ({one_line(counts_text(row['tools']))})" if row["tools"] else ""
        facts.append(
            f"{row['calls_executed']} of {row['calls_requested']} calls run{by_tool}, {row['failed_calls']} failed"
        )
    text.append("; ".join([*facts, f"{row['completion_tokens']:,} sampled tokens"]))
    if row.get("reward") is not None:
        text.append(f"; reward {row['reward']:g}")
    for call in found.tool_calls:
        outcome = one_line(f"{call['tool'][:_MAX_NAME_CHARS]}: {call['status']}")
        text.append(f"\n{outcome}", style="dim" if call["status"] == "ok" else "red")
        for source in shown_sources(call.get("sources", ()), addresses):
            text.append(f"\n  {one_line(source)}", style="dim")
    if found.is_of_pool:
        judge = orjson.loads(row["judge"])
        _append_verdict(text, row["correct"], judge["method"], row["prediction"], row["score"])
        for reply in judge["raw"]:
            text.append(f"\njudge said {one_line(reply)!r}", style="dim")
        if judge["error"]:
            text.append(f"\n{one_line(judge['error'])}", style="yellow")
        text.append(f"\n{_spent(row)}", style="dim")
    elif found.score is not None:
        score = found.score
        if score["is_reward"]:
            _append_verdict(text, score["correct"], score["scorer"], score["prediction"], score["score"], "last turn")
        else:
            _append_verdict(text, score["correct"], score["scorer"], score["prediction"], None)
    return text


def _append_verdict(
    text: Text, correct: bool | None, method: str, prediction: str, score: float | None, name: str = "prediction"
) -> None:
    word, style = VERDICTS[correct]
    shown = f" ({one_line(method)}" + (f", score {score:.2f})" if score is not None else ")")
    text.append(f"\n{word}", style=style)
    text.append(f"{shown}: {name} {sanitize(prediction)!r}")


def _spent(row: dict[str, Any]) -> str:
    usage = orjson.loads(row["usage"])
    parts = (f"{role} {used['prompt_tokens']:,} + {used['completion_tokens']:,}" for role, used in usage.items())
    return one_line("tokens, prompt + sampled: " + (", ".join(parts) or "none"))


def changes_view(changes: TrajectoryChanges, parent: dict[str, Any]) -> Group:
    """Render the changes: segments as in the parent in one line, removed and added ones in full."""
    key = one_line(parent["rollout_key"])
    lines: list[Text] = []
    if changes.num_steps:
        steps = "step 1" if changes.num_steps == 1 else f"steps 1-{changes.num_steps}"
        lines.append(Text(f"  {steps} as in {key}", style="dim"))
    for side, pieces in folded(changes.pieces):
        if side == "same":
            kinds = ", ".join(piece.kind for piece in pieces)
            lines.append(Text(one_line(f"{kinds} as in {key}"), style="dim"))
            lines[-1].pad_left(2)
        else:
            lines += [_marked(piece) for piece in pieces]
    if not changes.pieces:
        lines.append(Text("  no changes", style="dim"))
    return Group(*lines, Text())


def _marked(piece: ChangedSegment) -> Text:
    """Render a changed segment, each line marked by its side; a beginning that both sides share is left out."""
    mark, style = _MARKS[piece.side]
    text = sanitize(piece.text[piece.shared_chars :])
    if piece.shared_chars:
        text = f"… {text.lstrip()}" if text.strip() else "… (only this shared beginning)"
    return Text("\n".join(mark + line for line in text.splitlines() or [""]), style=style)
