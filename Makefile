# Every target sets up what it needs, in .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: reproduce test test-all bench lint docs docs-serve release clean

reproduce: .venv/.lab  ## every study of the paper in its quick version, and a report
	$(BIN)/entryclip reproduce all --quick --stale recompute

test: .venv/.dev  ## the test suite, the README's and the docstrings' examples among it
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: .venv/.dev  ## with the grids of which the test suite has a covering part
	$(BIN)/python -m pytest -n 2 --dist worksteal -m ''

bench: .venv/.dev  ## speed, as ratios measured side by side, with the results asserted
	$(BIN)/entryclip bench all --json out/benchmarks.json

lint: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: .venv/.docs  ## the documentation site in out/site; a broken link or a missing page is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: .venv/.docs  ## the site at http://127.0.0.1:8000, built again at every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

release: .venv/.dev  ## wheel and sdist in dist, checked, and the wheel tried in a clean environment
	rm -rf dist
	$(BIN)/python -m pytest tests/test_release.py
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf .venv out dist

.venv/.lab: pyproject.toml constraints.txt | .venv
	$(PIP) --editable '.[lab,lm]'
	@touch $@

.venv/.docs: pyproject.toml constraints.txt | .venv
	$(PIP) --editable '.[docs]'
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv
	$(PIP) --editable '.[dev]'
	@touch $@

.venv:
	$(PYTHON) -c 'import sys; sys.exit("entryclip needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
