"""Render lineages and pool trees for `treadle lineage`. All text is sanitized here."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from rich.tree import Tree

from treadle.cli.views.trajectory import VERDICTS
from treadle.core.untrusted.sanitize import one_line
from treadle.tasks.inspection.lineage import LineageStep
from treadle.tasks.inspection.pool_tree import Barren, Node

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
            _grow(branch, root)
        for one in step.tree.barren:
            branch.add(_barren_text(one))
    return tree


def _grow(branch: Tree, node: Node) -> None:
    """Add a trajectory and its edits to a branch, in the order of rounds."""
    twig = branch.add(_node_text(node))
    below: list[Node | Barren] = sorted([*node.barren, *node.edits], key=_round)
    for item in below:
        if isinstance(item, Node):
            _grow(twig, item)
        else:
            twig.add(_barren_text(item))


def _round(item: Node | Barren) -> tuple[int, bool]:
    return (item.round, False) if isinstance(item, Barren) else (item.facts["round"], True)


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
    if node.fate is not None and node.fate.is_row:
        text.append("; fine-tuning row", style="green")
    elif node.fate is not None:
        text.append(f"; no row: {one_line(', '.join(node.fate.reasons))}", style="dim")
    if node.chosen:
        text.append(" <-- this one", style="bold")
    return text


def _barren_text(one: Barren) -> Text:
    why = ": ".join(filter(None, (one.reason, one.error)))
    said = {"duplicate": f"repeats {one.twin}", "found": "found"}.get(one.outcome, f"{one.outcome} ({why})")
    made = f"round {one.round} {one.operator}" if one.round else one.operator
    return Text(one_line(f"{made}: {said}, {one.num_tokens:,} tokens"), style="dim")
