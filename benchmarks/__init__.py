"""The tables of the README and docs, written from the rows under results/: `python -m benchmarks.table`."""
