# Every target sets up what it needs, in .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: reproduce test test-all fuzz bench lint clean

reproduce: .venv/.lab  ## every study of the paper in its quick version, and a report
	$(BIN)/entryclip reproduce all --quick --stale recompute

test: .venv/.dev  ## the test suite, the README's and the docstrings' examples among it
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: .venv/.dev  ## with the grids of which the test suite has a covering part
	$(BIN)/python -m pytest -n 2 --dist worksteal -m ''

fuzz: .venv/.dev  ## faults, and thousands of random quantiles, operators and layouts, new ones on every run; takes an hour
	$(BIN)/python -m pytest -n 2 -o timeout=0 --hypothesis-profile=fuzz tests/faults tests/quantiles tests/test_operators.py \
		tests/test_layout.py tests/test_thresholds.py tests/test_clip.py

bench: .venv/.dev  ## speed, as ratios measured side by side, with the results asserted
	$(BIN)/entryclip bench all --json out/benchmarks.json

lint: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf .venv out

.venv/.lab: pyproject.toml constraints.txt | .venv
	$(PIP) --editable '.[lab,lm]'
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv
	$(PIP) --editable '.[dev]'
	@touch $@

.venv:
	$(PYTHON) -c 'import sys; sys.exit("entryclip needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
