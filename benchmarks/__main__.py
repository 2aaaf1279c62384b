"""Run all benchmarks, print the table, save the rows; exit 1 if a limit is not kept."""

import argparse
import dataclasses
import os
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from entryclip.lab.engine.files import write_json
from entryclip.lab.engine.provenance import commit

from . import clip, diagnostics, matrix, noise, optimizers, probe, quantile, regression, training

BENCHMARKS = {
    "quantile": quantile,
    "matrix": matrix,
    "clip": clip,
    "optimizers": optimizers,
    "noise": noise,
    "diagnostics": diagnostics,
    "probe": probe,
    "regression": regression,
    "training": training,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which ones: {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks.json"), help="where the rows go")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}: choose from {', '.join(BENCHMARKS)}")
    names = arguments.names or list(BENCHMARKS)
    results = [result for name in track(names, "benchmarks", transient=True) for result in BENCHMARKS[name].run()]
    machine = {
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "commit": commit(),
    }
    rows = [{**dataclasses.asdict(result), "kept": result.kept} for result in results]
    write_json(arguments.out, {"machine": machine, "rows": rows})
    table = Table(
        "what", "ratio", "limit", "times", title=f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    for result in results:
        sign, colour = (">=" if result.at_least else "<="), ("green" if result.kept else "red")
        table.add_row(result.name, f"[{colour}]{result.ratio:.2f}[/]", f"{sign} {result.limit:g}", result.detail)
    Console(width=160).print(table, f"rows: {arguments.out}")
    return 0 if all(result.kept for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
