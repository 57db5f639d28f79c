# The only commands to know: make demo, make test, make check. make demo-large trains on 8192² in 2 GiB.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo demo-large test check clean

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch hatchling editables
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch .venv/ready

demo: .venv/ready
	$(BIN)/python examples/demo.py

demo-large: .venv/ready
	$(BIN)/python examples/demo.py --large

test: .venv/ready
	$(BIN)/python -m pytest -n 2

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
