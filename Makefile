# make demo    train a small transformer with a hidden fault, find it, show where to look
# make test    the fast tests          make test-slow   the slow ones (servers, browser, kill -9)
# make lint | types | docs | bench     make check       everything that CI runs
# make forensics    build the tiny data set of broken runs; fails if a run does, or if a leak check changes a verdict
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
PYTEST := $(PY) -m pytest
WORKERS ?= 2
TORCH ?= torch==2.13.0
export OMP_NUM_THREADS ?= 1

FAULT ?= random
SEED ?=
STEPS ?=

# make test-lowest   the tests with the oldest versions that the extras allow

.PHONY: demo test test-slow test-lowest lint types docs bench forensics check clean install format
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# //p' Makefile

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "flashback needs Python 3.11 or newer on the PATH; none was found"; exit 2; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (some minutes the first time)"
	$(PY) -m pip install --quiet --upgrade "pip>=25.1"
	$(PY) -m pip install --quiet "$(TORCH)"
	$(PY) -m pip install --quiet --editable ".[all]" --group dev "pyarrow<26"
	@touch $(STAMP)

install: $(STAMP)

demo: $(STAMP)
	@$(PY) examples/demo.py --fault "$(FAULT)" $(if $(SEED),--seed $(SEED)) $(if $(STEPS),--steps $(STEPS))

test: $(STAMP)
	$(PYTEST) -n $(WORKERS) --dist loadfile

test-slow: $(STAMP)
	$(PYTEST) -m slow -n $(WORKERS) --dist loadfile

test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venv-lowest/bin/python -m pip install --quiet "$(TORCH)"
	.venv-lowest/bin/python -m pip install --quiet --editable ".[all]" --group dev -c constraints-lowest.txt
	.venv-lowest/bin/python -m pytest -n $(WORKERS) --dist loadfile -W default

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

types: $(STAMP)
	$(VENV)/bin/mypy

docs: $(STAMP)
	$(PYTEST) tests/test_docs.py tests/test_examples.py -m "slow or not slow"

bench: $(STAMP)
	$(PY) -m benchmarks

forensics: $(STAMP)
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(VENV)/bin/flashback forensics build --scale tiny --out "$$folder/data" --jobs $(WORKERS) && \
	$(VENV)/bin/flashback forensics score --data "$$folder/data" --leaks --limit 8

check: lint types test test-slow forensics

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache demo-runs
