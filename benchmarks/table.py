"""The README's tables, made from the rows under results/: `python -m benchmarks.table` renews them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from entryclip.experiments.regression.table import markdown as regression_table
from entryclip.experiments.store import load_rows
from entryclip.files import write_text

ROOT = Path(__file__).parent.parent


def benchmark_table(rows: list[dict[str, Any]]) -> str:
    """One line per row: what was compared, the ratio, what we hold ourselves to, and the times behind it."""
    lines = ["| what | ratio | limit | times |", "|---|---|---|---|"]
    for row in rows:
        sign = "at least" if row["at_least"] else "at most"
        kept = "" if row["kept"] else " **not kept**"
        name = row["name"].replace("|", r"\|")
        lines.append(f"| {name} | {row['ratio']:.2g}{kept} | {sign} {row['limit']:g} | {row['detail']} |")
    return "\n".join(lines)


TABLES: dict[str, Callable[[Path], str]] = {
    "benchmarks": lambda results: benchmark_table(json.loads((results / "benchmarks.json").read_text())["rows"]),
    "regression": lambda results: regression_table(load_rows(results / "regression")),
}


def renewed(text: str, results: Path) -> str:
    """`text` with what stands between the marks of each table replaced by the table."""
    for name, make in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        head, rest = text.split(start)
        _, tail = rest.split(end)
        text = f"{head}{start}\n{make(results)}\n{end}{tail}"
    return text


def renew_readme(results: Path = ROOT / "results") -> None:
    readme = ROOT / "README.md"
    write_text(readme, renewed(readme.read_text(), results))


if __name__ == "__main__":
    renew_readme()
