"""The table of probes in the documentation: `cd tests && python -m support.sandbox_table` tries all and writes it."""

from __future__ import annotations

from pathlib import Path

from support.sandbox_probes import ALL, verdict
from support.sandbox_users import USERS, report_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "behaviour" / "sandbox.md"
HEADING = "## The probes\n"
KINDS = ("bubblewrap", "landlock")


def column(kind: str, user: str) -> str:
    """What stands over the outcomes of a level and a user."""
    return f"`{kind}`, {user}"


def documented(kind: str, user: str) -> dict[str, str]:
    """What the page says of each probe at a level as a user."""
    lines = PAGE.read_text().partition(HEADING)[2].splitlines()
    header, _, *rows = ([word.strip() for word in line.strip("|").split("|")] for line in lines if line.startswith("|"))
    number = header.index(column(kind, user))
    return {row[0]: row[number] for row in rows}


def main() -> None:
    """Run all probes at each level as each user; replace the table, with which the page ends."""
    columns = {}
    for kind in KINDS:
        for user in USERS:
            outcomes = report_of(user, {"kind": kind})["outcomes"]
            columns[column(kind, user)] = {name: verdict(name, outcomes[name]) for name in ALL}
    rows = [["probe", *columns], ["---"] * (len(columns) + 1)]
    rows += [[name, *(outcomes[name] for outcomes in columns.values())] for name in ALL]
    before, heading, rest = PAGE.read_text().partition(HEADING)
    text = rest.partition("\n\n|")[0]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    PAGE.write_text(f"{before}{heading}{text}\n\n{table}")


if __name__ == "__main__":
    main()
