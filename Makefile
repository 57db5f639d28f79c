# The only commands to know: make demo, make test, make check. make demo-large trains on 8192² in 2 GiB; make docs writes the
# API reference; make package what is handed out.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo demo-large test check docs package clean

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
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/ready
	$(BIN)/python docs/make_api.py build/api

package: .venv/ready
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist

clean:
	rm -rf .venv .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
