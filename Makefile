# Evenflow. `make` lists what there is. Settings go by environment: EVENFLOW_GATEWAY__PORT=9000 make run

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

export VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# What needs real processes, sockets and time; left out of `test-fast`.
SLOW := up e2e chaos contract bench browser
UV_COMPILE = uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-header --extra embedded --group model --group build

.PHONY: help run test test-fast test-postgres test-browser prove bench lint format lock wheel clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

run: $(VENV)/.model ## Install what is locked, verify the model, and serve on this machine (flags: ARGS="--no-answer")
	@exec $(BIN)/evenflow up $(ARGS)

test: $(VENV)/.dev ## Run the whole test suite (flags for pytest: ARGS="-x -k name")
	@$(BIN)/pytest $(ARGS)

test-fast: $(VENV)/.dev ## Run the tests that start no processes
	@EVENFLOW_TEST_POSTGRES=0 $(BIN)/pytest -q $(foreach room,$(SLOW),--ignore=tests/$(room)) $(ARGS)

test-postgres: $(VENV)/.dev ## Run the tests that use PostgreSQL; they fail, rather than skip, if it is not installed
	@EVENFLOW_TEST_POSTGRES=1 $(BIN)/pytest -k postgres $(ARGS)

test-browser: $(VENV)/.dev ## Run the tests that use a browser; they fail, rather than skip, if it is not installed
	@EVENFLOW_TEST_BROWSER=1 $(BIN)/pytest tests/browser $(ARGS)

prove: $(VENV)/.dev ## Run the kills, soaks and outages at full count and length, into docs/proof.md (ARGS: which)
	@mkdir -p build; EVENFLOW_PROVE=1 $(BIN)/pytest --timeout=3600 --junitxml=build/prove.xml -o junit_logging=system-out \
		$(or $(ARGS),$(wildcard $(foreach room,$(SLOW) protocol core,tests/$(room)))); status=$$?; \
		$(BIN)/python infra/docs/proof.py build/prove.xml && exit $$status

bench: $(VENV)/.dev ## Measure the gateway beside others and its floor, in one run (6 minutes, wants a quiet machine)
	@$(BIN)/python -m infra.bench.run $(ARGS)

lint: $(VENV)/.dev ## Check style, types and who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Let ruff put the code in order
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format --quiet .

wheel: $(VENV)/.dev ## Build the wheel into dist/ and look inside
	@rm -rf dist
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist . > /dev/null
	@$(BIN)/python infra/check_wheel.py dist/*.whl

lock: ## Make the lock files anew from pyproject.toml (needs uv)
	@command -v uv > /dev/null || { echo "uv is missing: pip install uv" >&2; exit 2; }
	$(UV_COMPILE) -o requirements.lock
	$(UV_COMPILE) --group dev -c requirements.lock -o requirements-dev.lock

clean: ## Remove environments, caches and builds (.evenflow/, with its keys and data, stays)
	rm -rf $(VENV) .venv-bench build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find gateway workers shared tests infra -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.run: requirements.lock pyproject.toml infra/install.sh
	@infra/install.sh requirements.lock
	@touch $@

# The development lock holds all of the other one, in the same versions.
$(VENV)/.dev: requirements-dev.lock requirements.lock pyproject.toml infra/install.sh
	@infra/install.sh requirements-dev.lock
	@touch $(VENV)/.run $@

$(VENV)/.model: $(VENV)/.run workers/models.py
	@echo "Verifying the model"
	@$(BIN)/python -P -c 'from workers.models import locate; file, digest = locate("", ""); print(f"  {file.name} sha256 {digest}")'
	@touch $@
