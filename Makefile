# `make demo` and `make test` work on a fresh machine: they create .venv and install into it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Where the demo finds the Census income table, if it is at hand.
DATA ?=
# Tests start many processes; each would compile all of skest again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo docs test test-slow test-nightly coverage lint format clean

help:
	@echo "make demo       wide & deep on a real mixed table, in under two minutes"
	@echo "make test       the test suite without the slow tests"
	@echo "make test-slow  the slow tests"
	@echo "make test-nightly  scikit-learn's checks of further configurations, other engines, long examples, benchmarks"
	@echo "make coverage   which lines make test runs"
	@echo "make docs       the documentation site, in build/docs"
	@echo "make lint       ruff and mypy"
	@echo "make format     reformat the code"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("skest needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	@echo "Installing skest and its tested dependencies into $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# What is imported is compiled then: all of it takes two minutes.
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev,examples]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/python examples/census_wide_deep.py $(if $(DATA),--data $(DATA)) --offline

test: $(INSTALLED)
	SCIPY_ARRAY_API=1 $(BIN)/python -m pytest -m "not slow and not nightly" -n 2 --dist loadscope

test-slow: $(INSTALLED)
	SCIPY_ARRAY_API=1 $(BIN)/python -m pytest -m slow -n 2 --dist loadscope --no-loadscope-reorder

test-nightly: $(INSTALLED)
	SCIPY_ARRAY_API=1 $(BIN)/python -m pytest -m nightly -n 2 --dist load

# Lines that only other processes run count as missing.
coverage: $(INSTALLED)
	SCIPY_ARRAY_API=1 $(BIN)/python -m pytest -m "not slow and not nightly" -n 2 --dist loadscope --cov

docs: $(INSTALLED)
	$(BIN)/python -m sphinx -q -W --keep-going -j 2 docs build/docs

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache
