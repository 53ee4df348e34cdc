"""Render lineages and pool trees for `treadle lineage`. All text is sanitized here."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from rich.tree import Tree

from treadle.cli.views.trajectory import VERDICTS
from treadle.core.untrusted.sanitize import one_line
from treadle.tasks.inspection.lineage import LineageStep
from treadle.tasks.inspection.pool_tree import EventWithoutResult, Node

CHOSEN = "bold reverse"


def lineage_tree(steps: Sequence[LineageStep]) -> Tree:
    """Render a lineage from the source down; pools are branches."""
    tree = node = Tree(Text(one_line(steps[0].label)))
    for step in steps[1:]:
        branch = node.add(Text(one_line(step.label)))
        if step.tree is None:
            node = branch
            continue
        for root in step.tree.roots:
            _add_node(branch, root)
        for one in step.tree.without_result:
            branch.add(_event_text(one))
    return tree


def _add_node(branch: Tree, node: Node) -> None:
    """Add a trajectory and its edits to a branch, in the order of rounds."""
    child = branch.add(_node_text(node))
    below: list[Node | EventWithoutResult] = sorted([*node.without_result, *node.edits], key=_round)
    for item in below:
        if isinstance(item, Node):
            _add_node(child, item)
        else:
            child.add(_event_text(item))


def _round(item: Node | EventWithoutResult) -> tuple[int, bool]:
    return (item.round, False) if isinstance(item, EventWithoutResult) else (item.facts["round"], True)


def _node_text(node: Node) -> Text:
    facts, text = node.facts, Text()
    word, style = VERDICTS[facts["correct"]]
    step = f" step {facts['edit_step']}" if facts["edit_step"] is not None else ""
    made = f"round {facts['round']} {facts['operator']}{step}" if facts["round"] else facts["operator"]
    text.append(one_line(made) + " ", style="bold")
    text.append(one_line(node.key), style=CHOSEN if node.chosen else "cyan")
    text.append(f" {word}", style=style)
    decided = one_line(node.method) + (f" {facts['score']:.2f}" if facts["score"] is not None else "")
    calls = f"{facts['calls_requested']} call{'' if facts['calls_requested'] == 1 else 's'}"
    text.append(f" ({decided}); {one_line(facts['status'])}, {calls}, {node.num_tokens:,} tokens")
    if node.sft_outcome is not None and node.sft_outcome.is_row:
        text.append("; fine-tuning row", style="green")
    elif node.sft_outcome is not None:
        text.append(f"; no row: {one_line(', '.join(node.sft_outcome.reasons))}", style="dim")
    if node.chosen:
        text.append(" <-- this one", style="bold")
    return text


def _event_text(one: EventWithoutResult) -> Text:
    why = ": ".join(filter(None, (one.reason, one.error)))
    said = {"duplicate": f"repeats {one.duplicate_of}", "found": "found"}.get(one.outcome, f"{one.outcome} ({why})")
    made = f"round {one.round} {one.operator}" if one.round else one.operator
    return Text(one_line(f"{made}: {said}, {one.num_tokens:,} tokens"), style="dim")
