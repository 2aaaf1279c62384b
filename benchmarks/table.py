"""The README's table of benchmarks, made from the saved rows."""

from pathlib import Path
from typing import Any

from entryclip.files import write_text

START, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"


def markdown(rows: list[dict[str, Any]]) -> str:
    """One line per row: what was compared, the ratio, what we hold ourselves to, and the times behind it."""
    lines = ["| what | ratio | limit | times |", "|---|---|---|---|"]
    for row in rows:
        sign = "at least" if row["at_least"] else "at most"
        kept = "" if row["kept"] else " **not kept**"
        name = row["name"].replace("|", r"\|")
        lines.append(f"| {name} | {row['ratio']:.2g}{kept} | {sign} {row['limit']:g} | {row['detail']} |")
    return "\n".join(lines)


def replaced(text: str, rows: list[dict[str, Any]]) -> str:
    """`text` with what stands between the two marks replaced by the table."""
    head, rest = text.split(START)
    _, tail = rest.split(END)
    return f"{head}{START}\n{markdown(rows)}\n{END}{tail}"


def update_readme(path: Path, rows: list[dict[str, Any]]) -> None:
    write_text(path, replaced(path.read_text(), rows))
