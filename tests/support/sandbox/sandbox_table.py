"""Write the table of probes in the documentation: `cd tests && python -m support.sandbox.sandbox_table` tries all."""

from __future__ import annotations

from pathlib import Path

from support.sandbox.sandbox_probes import ALL, verdict
from support.sandbox.sandbox_users import USERS, report_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "sandbox-probes.md"
KINDS = ("bubblewrap", "landlock")


def column(kind: str, user: str) -> str:
    """Return the column header for the outcomes of a level and a user."""
    return f"`{kind}`, {user}"


def documented(kind: str, user: str) -> dict[str, str]:
    """Return probe -> outcome at a level as a user, as the page has it. A row holds all probes with its outcomes."""
    lines = PAGE.read_text().splitlines()
    header, _, *rows = ([word.strip() for word in line.strip("|").split("|")] for line in lines if line.startswith("|"))
    number = header.index(column(kind, user))
    return {name: row[number] for row in rows for name in row[0].split(", ")}


def main() -> None:
    """Run all probes at each level as each user; replace the table of them, with which the page ends."""
    columns = {}
    for kind in KINDS:
        for user in USERS:
            outcomes = report_of(user, {"kind": kind})["outcomes"]
            columns[column(kind, user)] = {name: verdict(name, outcomes[name]) for name in ALL}
    names_by_outcomes: dict[tuple[str, ...], list[str]] = {}
    for name in ALL:
        names_by_outcomes.setdefault(tuple(outcomes[name] for outcomes in columns.values()), []).append(name)
    rows = [["probes", *columns], ["---"] * (len(columns) + 1)]
    rows += [[", ".join(names), *outcomes] for outcomes, names in names_by_outcomes.items()]
    text = PAGE.read_text().partition("\n\n| probes")[0]
    PAGE.write_text(f"{text}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows))


if __name__ == "__main__":
    main()
