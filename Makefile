# Every target sets up what it needs, in .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
# Every file is checked against its hash; torch and triton, whose builds differ between machines, come by version alone.
LOCKED := $(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement

.PHONY: reproduce test test-all fuzz lowest bench lint docs docs-serve release lock licences sbom clean

reproduce: .venv/.lab  ## every study of the paper in its quick version, and a report
	$(BIN)/entryclip reproduce all --quick --stale recompute

test: .venv/.dev  ## the test suite, the README's and the docstrings' examples among it
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: .venv/.dev  ## with the grids of which the test suite has a covering part
	$(BIN)/python -m pytest -n 2 --dist worksteal -m ''

fuzz: .venv/.dev  ## faults, and thousands of random quantiles, operators and layouts, new ones on every run; takes an hour
	$(BIN)/python -m pytest -n 2 -o timeout=0 --hypothesis-profile=fuzz tests/faults tests/quantiles tests/test_operators.py \
		tests/test_layout.py tests/test_thresholds.py tests/test_clip.py

lowest: .venv-lowest/.made  ## tests of the core with the lowest versions that pyproject.toml allows
	.venv-lowest/bin/python -m pytest tests/optim/test_against_torch.py tests/optim/test_lifecycle.py tests/quantiles/test_quantile.py

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
	$(BIN)/python .ci/sbom.py dist/sbom.cdx.json

lock: .venv/.dev  ## the lock files, after a change of constraints.txt
	$(BIN)/python .ci/lock.py

licences: .venv/.dev  ## docs/licences.md
	$(BIN)/python .ci/sbom.py docs/licences.md

sbom: .venv/.dev  ## the bill of materials that goes with a release
	$(BIN)/python .ci/sbom.py out/sbom.cdx.json

clean:
	rm -rf .venv .venv-lowest out dist

.venv/.lab: pyproject.toml constraints.txt .ci/lab.lock | .venv
	$(LOCKED) .ci/lab.lock
	$(PIP) --editable '.[lab,lm]'
	@touch $@

.venv/.docs: pyproject.toml constraints.txt | .venv
	$(PIP) --editable '.[docs]'
	@touch $@

.venv/.dev: pyproject.toml constraints.txt .ci/dev.lock | .venv
	$(LOCKED) .ci/dev.lock
	$(PIP) --editable '.[dev]'
	@touch $@

.venv-lowest/.made: pyproject.toml .ci/lowest.txt
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --requirement .ci/lowest.txt --editable .
	@touch $@

.venv:
	$(PYTHON) -c 'import sys; sys.exit("entryclip needs Python 3.11 or newer; set PYTHON=...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
