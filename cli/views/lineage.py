"""Render lineages and pool trees for `treadle lineage`. All text is sanitized here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text
from rich.tree import Tree

from treadle.cli.views.trajectory import VERDICTS
from treadle.core.untrusted.sanitize import one_line
from treadle.datagen.pools.rows import tokens_of
from treadle.tasks.inspection.lineage import LineageStep

CHOSEN = "bold reverse"


def lineage_tree(steps: Sequence[LineageStep]) -> Tree:
    """Render a lineage from the source down; pools are branches."""
    tree = node = Tree(Text(one_line(steps[0].label)))
    for step in steps[1:]:
        branch = node.add(Text(one_line(step.label)))
        if (pool := step.facts.get("pool")) is None:
            node = branch
            continue
        for root in pool["trajectories"]:
            _add_node(branch, root)
        for one in pool["without_result"]:
            branch.add(_event_text(one))
    return tree


def _add_node(branch: Tree, node: Mapping[str, Any]) -> None:
    """Add a trajectory and its edits to a branch, in the order of rounds."""
    child = branch.add(_node_text(node))
    # The sort is stable: in each round, applications without a result come first.
    for item in sorted([*node["without_result"], *node["edits"]], key=lambda item: int(item["round"])):
        if "edits" in item:
            _add_node(child, item)
        else:
            child.add(_event_text(item))


def _node_text(node: Mapping[str, Any]) -> Text:
    text, sft = Text(), node["sft"]
    word, style = VERDICTS[node["correct"]]
    step = f" step {node['edit_step']}" if node["edit_step"] is not None else ""
    made = f"round {node['round']} {node['operator']}{step}" if node["round"] else node["operator"]
    text.append(one_line(made) + " ", style="bold")
    text.append(one_line(node["key"]), style=CHOSEN if node["chosen"] else "cyan")
    text.append(f" {word}", style=style)
    decided = one_line(node["method"]) + (f" {node['score']:.2f}" if node["score"] is not None else "")
    calls = f"{node['calls_requested']} call{'' if node['calls_requested'] == 1 else 's'}"
    text.append(f" ({decided}); {one_line(node['status'])}, {calls}, {tokens_of(node['usage']):,} tokens")
    if sft is not None and sft["row"]:
        text.append("; fine-tuning row", style="green")
    elif sft is not None:
        text.append(f"; no row: {one_line(', '.join(sft['reasons']))}", style="dim")
    if node["chosen"]:
        text.append(" <-- this one", style="bold")
    return text


def _event_text(one: Mapping[str, Any]) -> Text:
    why = ": ".join(filter(None, (one["reason"], one["error"])))
    texts = {"duplicate": f"repeats {one['duplicate_of']}", "found": "found"}
    said = texts.get(one["outcome"], f"{one['outcome']} ({why})")
    made = f"round {one['round']} {one['operator']}" if one["round"] else one["operator"]
    return Text(one_line(f"{made}: {said}, {one['num_tokens']:,} tokens"), style="dim")
