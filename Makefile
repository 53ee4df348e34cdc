# Everything is installed into .venv (Treadle) and $TREADLE_CACHE or ~/.cache/treadle (engines, models).
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Versions that requirements.lock has files for; the first that is found and runs is taken.
PYTHONS := 3.11 3.12 3.13
PYTHON ?= $(shell for one in $(PYTHONS:%=python%) python3; do $$one -c 'import sys, ensurepip; sys.exit("%d.%d" % sys.version_info[:2] not in "$(PYTHONS)".split())' 2>/dev/null && command -v $$one && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PYTEST := $(BIN)/python -m pytest -q --durations=5
# Three processes on two cores: flow tests wait half of the time.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder
E2E_ARGS ?=
BENCH_ARGS ?=

.PHONY: help install demo demo-quick test lint unit stages flows processes test-browser engines test-e2e parity interop sweep chaos bench docs versions clean

help: ## Show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(INSTALLED): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python of $(PYTHONS) with venv was found; install one (Debian, Ubuntu: python3.11-venv), or set PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; here = "%d.%d" % sys.version_info[:2]; sys.exit(here not in "$(PYTHONS)".split() and "requirements.lock is for Python $(PYTHONS), and $(PYTHON) is " + here + "; set PYTHON=/path/to/one of them")'
	@echo "==> Installing Treadle and its locked dependencies into $(VENV) (1 to 3 minutes, 1 GB)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q --no-deps --no-compile --require-hashes -r requirements.lock
	@$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	@# Pip would compile on one core, tests of libraries included. Some files are templates, which cannot be compiled.
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true
	@touch $@

install: $(INSTALLED) ## Install Treadle into .venv
	@echo "next: $(BIN)/treadle doctor   |   $(BIN)/treadle demo --tutor-only   |   make demo (with vLLM, LLaMA-Factory and TRL, 9 GB)"

demo: $(INSTALLED) ## Fine-tune and reinforce a small real model on a sample world and see what it learnt
	@echo "make demo: rows by the rule-based tutor, SmolLM2-135M fine-tuned on them, then reinforced, 80 held-out questions before and after, with real tools;"
	@echo "           some 20 minutes on 2 cores, each step shows its progress and how long is left, also in Prefect at the address that is printed;"
	@echo "           the first time it installs vLLM, LLaMA-Factory and TRL (9 GB in the cache, 5 to 9 minutes)"
	@$(BIN)/treadle demo --prefect

demo-quick: $(INSTALLED) ## The same without engines and training: the tutor alone, in less than a minute
	@$(BIN)/treadle demo --tutor-only

lint: $(INSTALLED) ## Formatting, lint, types, import contracts
	@echo "==> lint, types, import contracts"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

unit: $(INSTALLED) ## Tests without network or processes
	@echo "==> unit tests"
	@$(PYTEST) -n 2 tests/unit

stages: $(INSTALLED) ## Tests with real processes, sandbox and servers on loopback
	@echo "==> stage tests"
	@$(PYTEST) $(PARALLEL) tests/stages

flows: $(INSTALLED) ## Tests with a real Prefect server and worker
	@echo "==> flow tests"
	@$(PYTEST) $(PARALLEL) tests/flows

processes: $(INSTALLED) ## flows and stages at once, which takes less time than one after the other
	@echo "==> flow and stage tests"
	@$(PYTEST) $(PARALLEL) tests/flows tests/stages

test: $(INSTALLED) ## lint, unit, flows and stages (no engines)
	@echo "make test: lint, unit, flow and stage tests; \`make sweep\` runs what they sample"
	@SECONDS=0; $(MAKE) --no-print-directory -j 2 --output-sync=target lint unit; echo "==> lint and unit took $$SECONDS s"
	@SECONDS=0; $(MAKE) --no-print-directory processes; echo "==> processes took $$SECONDS s"

test-browser: $(INSTALLED) ## Tests of the viewer and the report page in a real browser (needs chromium)
	@echo "==> browser tests"
	@$(PYTEST) tests/browser

engines: $(INSTALLED) ## Install vLLM, LLaMA-Factory, TRL and verl, two at a time (11 GB in the cache)
	@echo "==> engines of the end-to-end tests (2.5 + 5.2 + 1.5 + 1.8 GB in the cache)"
	@printf '%s\n' "sft --variant cpu" serve "verl --variant cpu" "trl --variant cpu" | xargs -P 2 -L 1 $(BIN)/treadle env install

test-e2e: $(INSTALLED) ## Tests with real engines on the CPU (vLLM, LLaMA-Factory, TRL, verl; see engines)
	@echo "make test-e2e: tests with real models on vLLM, LLaMA-Factory, TRL and verl; those that are missing are installed"
	@SECONDS=0; $(PYTEST) -n 2 --dist loadfile tests/e2e $(E2E_ARGS); echo "==> e2e took $$SECONDS s"

parity: $(INSTALLED) ## FlashRAG's own retriever and the runner of BFCL next to ours (the first use installs them: 1.8 GB in the cache)
	@$(PYTEST) -s tests/parity

interop: $(INSTALLED) ## llama.cpp's own server with the embedded model; the packages of W&B, MLflow and TensorBoard (the first use downloads 250 MB)
	@$(PYTEST) -s tests/interop

sweep: export TREADLE_SWEEP := 1
sweep: $(INSTALLED) ## What CI samples, whole: 200 kill points, every fault at every step, 10,000 histories, all pages and examples (takes long)
	@echo "make sweep: flow and stage tests that CI leaves out; all examples of properties; then a run killed at 200 moments, helpers and trainings at 201, every fault at every step and every size of a full disk, 10,000 histories; then what CI leaves out of the end-to-end tests, whose engines it installs"
	@$(PYTEST) $(PARALLEL) -m sweep tests/flows tests/stages
	@$(PYTEST) -n 2 tests/unit
	@TREADLE_KILL_POINTS=200 $(PYTEST) -n 3 tests/stages/runs/test_crash.py tests/stages/pools/test_pools_crash.py
	@TREADLE_KILL_POINTS=3 $(PYTEST) -n 2 tests/stages/rollouts/test_custom_environment.py tests/stages/rollouts/test_partner_model.py tests/stages/rollouts/test_mixture.py tests/stages/rollouts/test_mcp_tools.py
	@TREADLE_KILL_POINTS=670 $(PYTEST) -n 3 tests/stages/runs/test_work_kill.py tests/stages/training/test_training_kill.py
	@TREADLE_KILL_POINTS=40 $(PYTEST) tests/stages/exploration/test_exploration_kill.py
	@TREADLE_KILL_POINTS=50 $(PYTEST) -n 2 tests/stages/sandbox/test_sandbox_kill.py
	@TREADLE_FAULT_STRIDE=1 TREADLE_HISTORIES=10000 $(PYTEST) -n 2 --dist worksteal tests/stages/runs/test_faults*.py tests/stages/cli/test_faults_command_line.py tests/stages/runs/test_histories.py
	@TREADLE_FAULT_STRIDE=1 TREADLE_KILL_POINTS=100 $(PYTEST) -n 2 tests/stages/objects
	@$(PYTEST) -s -m sweep tests/e2e

chaos: export TREADLE_SWEEP := 1
chaos: $(INSTALLED) ## 2,000 rollouts against servers that fail in every way, and a whole flow to which everything happens
	@TREADLE_CHAOS_KILLS=$${TREADLE_CHAOS_KILLS:-14} $(PYTEST) -s tests/flows/test_chaos_flow.py
	@TREADLE_CHAOS_ROLLOUTS=$${TREADLE_CHAOS_ROLLOUTS:-2000} $(PYTEST) -s tests/stages/test_chaos.py

bench: $(INSTALLED) ## All benchmarks and the bounds that they are meant to keep (takes long, on an idle machine)
	@$(BIN)/python -m benchmarks.run $(BENCH_ARGS)

docs: $(INSTALLED) ## Generate docs/reference from the code
	@$(BIN)/python -m treadle.tasks.reference docs/reference
	@PYTHONPATH=tests $(BIN)/python -m support.model_servers.server_table docs/reference/model-servers.md

versions: ## Unit tests and the demo of the tutor with each Python that is here, in environments of their own (1 GB each)
	@failed=; for version in $(PYTHONS); do \
	  python=; \
	  for one in $$(type -P -a python$$version || true) $$HOME/.pyenv/versions/$$version*/bin/python $$HOME/.local/share/uv/python/cpython-$$version*/bin/python$$version; do \
	    $$one -c 'import sys, ensurepip; sys.exit("%d.%d" % sys.version_info[:2] != "'$$version'")' 2>/dev/null && { python=$$one; break; }; \
	  done; \
	  test -n "$$python" || { echo "==> Python $$version: not on this machine"; continue; }; \
	  folder=$$(mktemp -d); echo "==> Python $$version ($$python) in $$folder"; \
	  { git clone -q . $$folder/treadle && $(MAKE) -C $$folder/treadle --no-print-directory PYTHON=$$python unit demo-quick; } || failed="$$failed $$version"; \
	  rm -rf $$folder; \
	done; test -z "$$failed" || { echo "failed with Python$$failed"; exit 1; }

clean: ## Remove the environment and caches of this checkout
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build *.egg-info
