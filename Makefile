# `make demo` and `make test` need python3 (3.10 or newer) and nothing else: both make .venv and install into it.
PYTHON ?= python3
BIN := .venv/bin
# Idle OpenMP threads sleep instead of spinning: tests stay quick on a busy machine.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test test-all faults lint types docs dist clean

demo: .venv/demo
	$(BIN)/wcapsnet demo --open

test: lint types
	$(BIN)/pytest -n auto --dist loadfile -m "not slow" tests/paper tests/test_memory.py --cov --cov-fail-under=100
	$(BIN)/pytest -n auto --dist loadfile -m "not slow" --ignore tests/paper --ignore tests/test_memory.py

test-all: .venv/dev
	$(BIN)/pytest -n auto --dist loadfile -m slow

# Rows of docs/reliability.md that the record does not have in full.
faults: .venv/dev
	$(BIN)/python tools/faults.py

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/dev
	$(BIN)/mypy

# The variable silences a notice about the theme's end of life.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Wheel and sdist; the wheel is then installed into an empty environment and tried out.
dist: .venv/dev
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python tools/check_dist.py dist

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "wcapsnet needs Python 3.10 or newer; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/demo: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/dev: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ .venv/demo

.venv/docs: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@ .venv/demo

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .coverage .hypothesis
